"""What needs skindx-methods is refused in one sentence where that is not installed."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tiny_dataset import jpeg, skin
from without_kit import Ended, environment, without_kit

from skindx.training.config.run import TrainSettings

ROOT = Path(__file__).resolve().parents[2]
MEMBERS = [{"name": "a", "model": "test_resnet", "preprocess": {"size": 64}}]
KINDS = {
    "kfac": ("preconditioner 'kfac'", {"recipe": {"preconditioner": {"kind": "kfac"}}}),
    "owt": ("parallel form 'owt'", {"engine": {"parallel": {"kind": "owt"}}}),
    "factored": ("exchange 'factored'", {"exchange": {"kind": "factored"}}),
    "hop": ("schedule of members 'hop'", {"engine": {"schedule": "hop"}}),
    "members": ("schedule of members 'members'", {"engine": {"schedule": "members"}}),
}
"""Kind -> how messages name it, and settings with it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run of each kind, as a training leaves its settings."""
    folder = tmp_path_factory.mktemp("runs")
    for kind, (_, settings) in KINDS.items():
        (folder / kind / "members").mkdir(parents=True)
        TrainSettings.parse({"members": MEMBERS, **settings}).save(folder / kind / "train.yaml")
    return folder


WORDS = {
    "--hop": ("schedule of members 'hop'", ["train", "data", "--hop", "--out", "new"]),
    "--set": (
        "schedule of members 'members'",
        ["train", "data", "--set", "engine.schedule=members", "--out", "new"],
    ),
    "--set, a form": (
        "parallel form 'owt'",
        ["train", "data", "--set", "engine.parallel.kind=owt", "--out", "new"],
    ),
    "--join, no run": ("skindx train --join", ["train", "data", "--join", "--out", "new"]),
    "--join": ("schedule of members 'hop'", ["train", "data", "--join", "--out", "hop"]),
}
"""Words of a command line that need the kit, how the message names what is missing, the line."""


@pytest.fixture(scope="module")
def ended(folder: Path) -> dict[tuple[str, str], Ended]:
    """Return how each command line ended, by kind and what it does with the kind's run."""
    lines: dict[tuple[str, str], list[str]] = {}
    for kind in KINDS:
        goes_on = ["train", "data", "--config", f"{kind}/train.yaml", "--out", kind]
        lines[kind, "train"] = goes_on
        lines[kind, "upgrade"] = ["doctor", "--upgrade", kind]
    lines["", "standing"] = []
    lines |= {("", name): words for name, (_, words) in WORDS.items()}
    return dict(zip(lines, without_kit(*lines.values(), where=folder), strict=True))


def needs(what: str) -> str:
    return (
        f"{what} needs skindx-methods, which is not installed; "
        f"run `pip install {ROOT / 'methods'}`.\n"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_settings_of_a_run_are_refused_and_the_run_stays_as_it_was(
    kind: str, folder: Path, ended: dict[tuple[str, str], Ended]
) -> None:
    what, _ = KINDS[kind]
    code, out, err = ended[kind, "train"]
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.endswith(needs(what))
    code, out, err = ended[kind, "upgrade"]
    assert (code, err, out.count("\n")) == (1, "", 1)
    assert out.startswith(f"failed: {kind} (run): ")
    assert out.endswith(needs(what))
    assert sorted(file.name for file in (folder / kind).iterdir()) == ["members", "train.yaml"]


def test_where_a_run_stands_is_said_all_the_same(ended: dict[tuple[str, str], Ended]) -> None:
    code, out, err = ended["", "standing"]
    assert (code, err) == (0, "")
    assert "0 of 1 member trained" in out


@pytest.mark.parametrize("name", WORDS)
def test_a_command_line_is_refused_and_nothing_is_written(
    name: str, folder: Path, ended: dict[tuple[str, str], Ended]
) -> None:
    what, _ = WORDS[name]
    code, out, err = ended["", name]
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.endswith(needs(what))
    assert sorted(path.name for path in folder.iterdir()) == sorted(KINDS)


def test_a_first_training_is_estimated_all_the_same(tmp_path: Path) -> None:
    for number in range(12):
        file = tmp_path / "images" / ("acne", "rosacea")[number % 2] / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jpeg(skin(number)))
    words = ("new", "images", "--out", "run", "--effort", "quick", "--network", "test_resnet")
    done = subprocess.run(
        [sys.executable, "-m", "skindx", *words, "--yes"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" of memory") == 3


SETTINGS = """
from skindx.core.errors import UserError
from skindx.training.config.run import TrainSettings

assert TrainSettings.parse({"engine": {"elastic": None}}).engine.run_method == ""
for change in ({"engine": {"elastic": {}}}, {"exchange": {"kind": "local"}}):
    try:
        TrainSettings.parse(change)
    except UserError as error:
        print(error)
"""


def test_a_setting_that_names_a_method_is_refused_unless_it_is_null() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SETTINGS],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    elastic, local = done.stdout.splitlines()
    how = f"needs skindx-methods, which is not installed; run `pip install {ROOT / 'methods'}`."
    assert elastic.endswith(f"engine setting 'elastic' {how}")
    assert local.endswith(f"exchange 'local' {how}")


@pytest.mark.long
@pytest.mark.distributed
def test_a_training_with_two_ranks_needs_no_kit(small_dataset: Path, tmp_path: Path) -> None:
    raw = {
        "engine": {"accelerator": "cpu", "ranks": 2},
        "recipe": {"epochs": 1, "batch": 9},
        "members": MEMBERS,
    }
    (tmp_path / "plain.yaml").write_text(yaml.safe_dump(raw))
    command = [sys.executable, "-m", "skindx", "train", str(small_dataset), "--out", "run"]
    done = subprocess.run(
        [*command, "--config", "plain.yaml"],
        env={**environment(), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("packed") == 1
