"""The demo: from synthetic images to a diagnosis, by the commands that a user types."""

import json
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from skindx.core.atomic_files import FolderKind, write_text
from skindx.core.errors import JobError, UserError
from skindx.core.machine import python_command
from skindx.data.manifest import read_manifest
from skindx.data.synthetic.site import make_site, serve_site
from skindx.models.bundle.installed import bundle_path
from skindx.models.bundle.use_limits import EXAMPLES, Example, read_examples

MARK = ".skindx-demo"
_DEMO = FolderKind(
    "the demo",
    MARK,
    (
        *("atlas", "bundle", "checkpoints", "data", "detector", "evaluation", "members"),
        *("*.json", "*.yaml", "*.log", "*.tmp-*"),
    ),
)
HERE = Path(__file__).parent
RELEASED = "ham10000"
"""The bundle that a checkout brings, with photos to try."""


def run_demo(out: Path, seed: int) -> None:
    """Paint, scrape, build, train, evaluate and diagnose in `out`, a few minutes on two cores.

    Where the released bundle is installed, the last diagnosis is of a real photo by it. An earlier
    demo in `out` is replaced. Raises UserError for a folder that holds anything else.
    """
    started = time.monotonic()
    example = released_example()
    steps = 5 if isinstance(example, str) else 6
    _clear(out)
    _say(f"1/{steps}  Painting a small synthetic Skin-10 and putting it on a local web site")
    make_site(out / "atlas", seed=seed)
    _say(f"2/{steps}  Scraping the site and building the dataset")
    dataset, bundle = out / "data", out / "bundle"
    with serve_site(out / "atlas" / "site") as origin:
        write_text(out / "recipe.yaml", recipe(origin, out / "atlas" / "annotations.json", seed))
        _verb("build", str(out / "recipe.yaml"), "--out", str(dataset))
    _say(f"3/{steps}  Training two CNNs with DeepSpeed on two ranks, and the detector")
    _verb("train", str(dataset), "--config", str(_near(HERE / "train.yaml")), "--out", str(out))
    _say(f"4/{steps}  Evaluating on the test split, which nothing has seen so far")
    _verb("evaluate", str(bundle), str(dataset))
    _say(f"5/{steps}  Diagnosing one test image with the packed bundle")
    image = next(record for record in read_manifest(dataset) if record.split == "test")
    _verb("diagnose", str(bundle), str(dataset / image.path))
    print(f"\n(The painter calls this image {image.label.replace('_', ' ')}.)")
    if isinstance(example, str):
        print(f"No real photo is diagnosed: {example}")
    else:
        photo, shown = example
        _say(f"6/{steps}  Diagnosing a real photo with the released model, {RELEASED}")
        _verb("diagnose", RELEASED, str(_near(photo)))
        truth = shown.truth.replace("_", " ")
        print(f"\n(Its source calls this photo {truth}, by {shown.truth_by}. {shown.credit})")
    print(f"The demo took {time.monotonic() - started:.0f} s. Now open the page:\n")
    if steps == 6:
        print(f"    {_shown('serve', RELEASED)}")
        print("\nor that of the model that learned from the paintings:\n")
    print(f"    {_shown('serve', str(bundle))}\n")


def released_example() -> tuple[Path, Example] | str:
    """Return the released model's first example, or why there is none, in a sentence."""
    try:
        bundle = bundle_path(RELEASED)
        examples = read_examples(bundle).photos.values()
    except UserError as error:
        return str(error)
    for photo in examples:
        return bundle.resolve().parent / EXAMPLES / photo.example.file, photo.example
    return f"{RELEASED} brings no examples; install it again."


def recipe(origin: str, annotations: Path, seed: int) -> str:
    """Return the demo's recipe: impolite to its own origin alone."""
    text = (HERE / "recipe.yaml").read_text(encoding="utf-8")
    values = {
        "ORIGIN": origin,
        "HOST": origin.removeprefix("http://"),
        "BOXES": json.dumps(str(annotations)),
        "SEED": str(seed),
    }
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def _clear(out: Path) -> None:
    _DEMO.check(out)
    # Its content alone: the folder may be a mount point, or the one we stand in.
    for path in sorted(out.iterdir(), key=lambda path: path.name == MARK) if out.is_dir() else ():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    write_text(out / MARK, "Made by `skindx demo`, which replaces this folder.\n")


def _say(line: str) -> None:
    print(f"\n== {line}", flush=True)


def _shown(*arguments: str) -> str:
    program = Path(sys.executable).with_name("skindx")
    return shlex.join([str(_near(program)) if program.exists() else "skindx", *arguments])


def _near(path: Path) -> Path:
    """Shorten a path below the current folder, as one would type it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _verb(*arguments: str) -> None:
    print(f"$ {_shown(*arguments)}", flush=True)
    finished = subprocess.run(python_command("-m", "skindx", *arguments), check=False)
    if finished.returncode:
        raise JobError(f"the demo stopped at `skindx {arguments[0]}`; read its error above.")
