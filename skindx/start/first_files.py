"""The recipe and the training settings that `skindx new` writes, with a comment at each choice."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from skindx.core.atomic_files import FolderKind, atomic_folder, write_text
from skindx.core.errors import UserError
from skindx.data.origin import Modality
from skindx.data.recipe import load_build_settings
from skindx.start.image_folder import ImageFolder
from skindx.start.standing import BUNDLE, CONFIG, DATA, RECIPE
from skindx.taxonomy import Urgency

Effort = Literal["quick", "usual", "thorough"]
EFFORTS: dict[Effort, tuple[int, int]] = {
    "quick": (12, 128),
    "usual": (12, 160),
    "thorough": (30, 224),
}
"""Epochs, and the side of the images in pixels."""
VIEWS, _HEAD_EPOCHS = 4, 40
"""Views and epochs of a quick training, of the last layer on pretrained weights."""
_FEW = 1000
"""Images below which the last layer alone learns more, and sooner, than a whole network."""
MODALITIES: tuple[Modality, ...] = ("dermoscopic", "clinical", "mixed")
TIERS: tuple[str, ...] = tuple(tier for tier in get_args(Urgency) if tier != "unknown")

_NEW_RUN = FolderKind("a new run")
_UNEVEN = 3
"""Ratio to the smallest class from which the largest one counts less in training."""


@dataclass(frozen=True)
class FirstAnswers:
    """What a person decides, or the defaults."""

    taxonomy: str | None
    """Taxonomy of the classes; None: each folder is a class."""
    urgency: Mapping[str, Urgency]
    modality: Modality
    group_pattern: str
    """Finds the patient or lesion in a file name; "": file names do not tell."""
    effort: Effort

    def frozen(self, pretrained: bool) -> bool:
        """Tell whether only the last layer learns."""
        return pretrained and self.effort == "quick"

    def epochs(self, pretrained: bool) -> int:
        """Return how often each image is seen."""
        return _HEAD_EPOCHS if self.frozen(pretrained) else EFFORTS[self.effort][0]

    def side(self, folder: ImageFolder) -> int:
        """Return the side that networks see, no larger than most images are, pixels."""
        return max(64, min(EFFORTS[self.effort][1], folder.side // 32 * 32))


def batch_of(images: int) -> int:
    """Return images of a step: fewer for a small dataset, so that an epoch has several steps."""
    return 32 if images >= 400 else 16 if images >= 100 else 8


def effort_of(images: int) -> Effort:
    """Return the effort that fits so many images."""
    return "quick" if images < _FEW else "usual"


def check_out(out: Path, folder: Path) -> None:
    """Raise UserError for a run that cannot be written, or would become a class of the folder."""
    if out.absolute().resolve().is_relative_to(folder.resolve()) and folder.is_dir():
        raise UserError(
            f"--out {out} lies inside {folder}, where each folder is a class; give a folder "
            "elsewhere."
        )
    if "${" in str(folder.resolve()):
        raise UserError(
            f"the path {folder} contains ${{, which a recipe reads as a variable; rename the "
            "folder."
        )
    _NEW_RUN.check(out)


def write_first_files(
    out: Path,
    folder: ImageFolder,
    answers: FirstAnswers,
    member: Mapping[str, Any],
    *,
    pretrained: bool,
) -> None:
    """Write both files, or none. Raises UserError for answers that make no recipe."""
    with atomic_folder(out, _NEW_RUN) as made:
        name = out.resolve().name
        write_text(made / RECIPE, recipe_text(name, folder, answers))
        config = config_text(name, folder, answers, member, pretrained=pretrained)
        write_text(made / CONFIG, config)
        load_build_settings(made / RECIPE)


def commands(out: Path) -> tuple[list[str], list[str], list[str], list[str]]:
    """Return the words of build, train and evaluate, and of the page."""
    run, data, bundle = str(out), str(out / DATA), str(out / BUNDLE)
    return (
        ["skindx", "build", str(out / RECIPE), "--out", data],
        ["skindx", "train", data, "--config", str(out / CONFIG), "--out", run],
        ["skindx", "evaluate", bundle, data],
        ["skindx", "serve", bundle],
    )


def recipe_text(name: str, folder: ImageFolder, answers: FirstAnswers) -> str:
    """Return the recipe."""
    urgency = "".join(f"\n  {_plain(key)}: {tier}" for key, tier in answers.urgency.items())
    shipped = "each label is a class; code and urgency come from the shipped lists that know it"
    if answers.taxonomy:
        shipped = "a shipped list of classes, or a file; images of other classes are left out"
    shares = """# Shares of the images; the test split is for the report alone.
split: {train: 0.6, val: 0.1, calibration: 0.1, test: 0.2}
"""
    if folder.by_folders:
        pattern = _plain(answers.group_pattern) if answers.group_pattern else "null"
        about, sources = (
            "",
            f"""\
  - kind: folder
    path: {_plain(str(folder.path.resolve()))}
    modality: {answers.modality} # dermoscopic, clinical or mixed: which photos a bundle is for
    # The first (group) in a file name is the patient or lesion, which no split divides.
    group_pattern: {pattern}
    licence: "" # needed to publish, as are creator and attribution
""",
        )
    else:
        assert folder.proposal is not None
        raw = folder.proposal.raw
        about = "".join(f"# {_one_line(line)}\n" for line in folder.proposal.lines)
        sources = "".join(_source_text(source, answers.modality) for source in raw["sources"])
        if "split" in raw:
            shares = _split_text(raw["split"])
        for key in ("groups", "boxes"):
            shares += f"{key}: {_plain(raw[key])}\n" if key in raw else ""
    return f"""\
# Recipe of `skindx build`, written by `skindx new` on {_today()}: {folder.images:,} images.
# Change what is wrong, then run: skindx build THIS_FILE --out DATASET
{about}name: {_plain(name)}
taxonomy: {_plain(answers.taxonomy) if answers.taxonomy else "null"} # {shipped}
# urgent, soon or routine for a class; what looks like a cancer or an emergency needs one.
urgency: {urgency or "{}"}
sources:
{sources}screen:
  not_skin: review # images that show no skin: review flags them, drop leaves them out, off
{shares}"""


def _source_text(source: Mapping[str, Any], modality: str) -> str:
    """Return a source in YAML, one line a key."""
    raw = {**source, "modality": source.get("modality") or modality}
    if raw["kind"] == "folder":
        raw.setdefault("licence", "")
    lines = "".join(f"    {key}: {_plain(value)}\n" for key, value in raw.items())
    return f"  - {lines.lstrip()}"


def _split_text(split: Mapping[str, Any]) -> str:
    """Return shares of the splits; frozen splits only where their file is."""
    shares = {key: value for key, value in split.items() if key != "frozen"}
    if "frozen" not in split:
        return f"split: {_plain(shares)}\n"
    roots = (Path.cwd(), Path(__file__).resolve().parents[2])
    frozen = [one for root in roots if (one := root / split["frozen"]).is_file()]
    if frozen:
        about = "No split divides a group, and each group has its frozen place."
        return f"# {about}\nsplit: {_plain({**shares, 'frozen': str(frozen[0])})}\n"
    about = f"For the frozen splits add `frozen:` with {split['frozen']} of the sources."
    return f"# {about}\nsplit: {_plain(shares)}\n"


def _one_line(text: str) -> str:
    return "".join(one if one.isprintable() else "\ufffd" for one in text)


def config_text(
    name: str,
    folder: ImageFolder,
    answers: FirstAnswers,
    member: Mapping[str, Any],
    *,
    pretrained: bool,
) -> str:
    """Return the training settings."""
    counts = folder.counts.values()
    uneven = max(counts) >= _UNEVEN * min(counts)
    frozen = answers.frozen(pretrained)
    about = "It starts from the weights named here."
    rates = "learning_rate: 0.0005\n  head_learning_rate: 0.002 # of the new last layer"
    if member.get("pretrained"):
        about = "It starts from timm's weights, which skindx train fetches once."
    elif not pretrained:
        about = """It starts from random weights, and learns little from few
  # images; with pretrained weights instead:
  # weights: FILE, or pretrained: true, which fetches them once."""
        rates = "learning_rate: 0.001"
    lines = "".join(f"    {key}: {_plain(value)}\n" for key, value in member.items())
    if frozen:
        rates = "learning_rate: 0.005 # of the last layer"
        lines += f"""\
    trunk: frozen # only the last layer learns, which is fast; trained: the whole network
    views: {VIEWS} # flips and turns of each image that it sees; more takes longer
"""
    return f"""\
# Settings of `skindx train`, written by `skindx new` on {_today()} for {answers.effort} training.
# skindx plan make THIS_FILE DATASET measures what it takes; `skindx new` only estimated it.
name: {_plain(name)}
engine:
  accelerator: auto # a GPU where there is one
recipe:
  epochs: {answers.epochs(pretrained)} # how often each image is seen; more takes longer
  batch: {batch_of(folder.images)} # images of a step; fewer need less memory
  {rates}
  class_weights: {"sqrt" if uneven else "none"} # sqrt lets rare classes count more
members:
  # One network; a second entry makes an ensemble. {about}
  -{lines[3:]}"""


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _plain(value: Any) -> str:
    """Return a value in YAML on one line: JSON is YAML but for characters that YAML has escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(one if one.isprintable() else f"\\U{ord(one):08x}" for one in text)
