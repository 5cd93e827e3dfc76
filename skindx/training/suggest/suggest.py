"""`skindx train --suggest`: what the available trunks say of a dataset before training."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx.data.loader.settings import DiskCache
from skindx.data.manifest import Record, read_manifest
from skindx.metrics import Interval
from skindx.taxonomy import Taxonomy
from skindx.training.config.run import MemberSettings, TrainSettings
from skindx.training.features.store import FeatureFiles
from skindx.training.features.trunk import load_trunk
from skindx.training.feeding.cache_policy import cache_folder
from skindx.training.feeding.folds import learning
from skindx.training.feeding.images import class_numbers
from skindx.training.parallel.alone import AloneMesh
from skindx.training.suggest.probe import Probe, Split, probe
from skindx.training.towers import with_towers

_FITS = 0.97
"""A probe that fits its own images so well is not held back by the features."""


@dataclass(frozen=True)
class Suggestion:
    """One trunk's answer, and what it says to do."""

    member: str
    model: str
    trunk: str
    probe: Probe
    sentences: tuple[str, ...]


def suggest(dataset: Path, settings: TrainSettings, out: Path | None) -> list[Suggestion]:
    """Return a linear probe and nearest neighbours on each trunk of the members, best first.

    Writes OUT/suggest.json where `out` is given. Raises UserError where no member has weights to
    start from, and for a dataset without training or validation images.
    """
    records = learning(read_manifest(dataset))
    classes = Taxonomy.load(dataset / "taxonomy.yaml").keys
    _check(records, classes)
    members = [m for m in with_towers(settings).members if m.weights or m.pretrained]
    if not members:
        raise UserError(
            "no trunk is available: no member starts from weights; set pretrained: true, or give "
            "--weights FILE, or a model: local-dir:FOLDER with pretrained: true."
        )
    found: dict[tuple[str, str], Suggestion] = {}
    for member in members:
        key = (load_trunk(member).key, member.preprocess.model_dump_json())
        if key not in found:
            found[key] = _suggestion(dataset, settings, member, records, classes)
    best = sorted(found.values(), key=lambda own: -own.probe.linear.value)
    if out is not None:
        write_json(out / "suggest.json", {"trunks": [_plain(own) for own in best]})
    return best


def _check(records: list[Record], classes: tuple[str, ...]) -> None:
    for split in ("train", "val"):
        labels = {record.label for record in records if record.split == split}
        if not labels:
            raise UserError(f"the dataset has no {split} images; build it with more images.")
        if split == "train" and len(labels) < len(classes):
            missing = next(key for key in classes if key not in labels)
            raise UserError(
                f"no training image shows the class {missing!r}; add images of it, or take the "
                "class out of the taxonomy."
            )


def _suggestion(
    dataset: Path,
    settings: TrainSettings,
    member: MemberSettings,
    records: list[Record],
    classes: tuple[str, ...],
) -> Suggestion:
    trunk, cache = load_trunk(member), settings.loader.cache
    folder = cache_folder(dataset, cache if isinstance(cache, DiskCache) else DiskCache())
    files = FeatureFiles(folder, dataset, records, trunk, member.preprocess, 1)
    (features_ND,) = files.open(AloneMesh(settings.engine), print)
    labels_N = class_numbers(records, classes)
    groups_N = np.array([record.group for record in records])
    whole = Split(features_ND.astype(np.float64), labels_N, groups_N)
    in_train = np.array([record.split == "train" for record in records])
    answer = probe(whole.rows(in_train), whole.rows(~in_train), len(classes))
    name = member.tower.name if member.tower else member.model
    return Suggestion(member.name, name, trunk.key, answer, sentences(answer))


def sentences(answer: Probe) -> tuple[str, ...]:
    """Return what a probe says: how good it is, what more labels and a fine-tune may bring."""
    linear, near, gain = answer.linear, answer.neighbours, answer.doubling
    said = [
        f"A linear probe reaches {_percent(linear)} balanced accuracy on validation, nearest "
        f"neighbours {_percent(near)}.",
        f"The last doubling of the training groups brought {_points(gain)}; "
        + (
            "as many again would likely bring somewhat less than that."
            if gain.low > 0
            else "this does not show that more labels like these would help."
        ),
    ]
    if answer.fits_training >= _FITS:
        said.append(
            f"The probe fits its own training images to {answer.fits_training:.0%}: the features "
            "tell them apart, and what is missing is on new images. More labels and stronger "
            "regularisation come first; a fine-tune may help as well; only a trial shows it."
        )
    else:
        said.append(
            f"The probe that generalises best fits its own training images to "
            f"{answer.fits_training:.0%} only: these features hardly tell the classes apart. A "
            "fine-tune, a higher resolution or another trunk will likely bring more than labels."
        )
    return tuple(said)


def _percent(interval: Interval) -> str:
    return f"{interval.value:.1%} [{interval.low:.1%}, {interval.high:.1%}]"


def _points(interval: Interval) -> str:
    low, value, high = (100 * part for part in (interval.low, interval.value, interval.high))
    return f"{value:+.1f} points [{low:+.1f}, {high:+.1f}]"


def _plain(own: Suggestion) -> dict[str, Any]:
    answer = own.probe
    return {
        "member": own.member,
        "model": own.model,
        "trunk": own.trunk,
        "balanced_accuracy": {
            "linear": _bounds(answer.linear),
            "knn": _bounds(answer.neighbours),
            "linear_on_its_training_images": answer.fits_training,
        },
        "doubling": _bounds(answer.doubling),
        "curve": [asdict(point) for point in answer.curve],
        "says": list(own.sentences),
    }


def _bounds(interval: Interval) -> list[float]:
    return [interval.value, interval.low, interval.high]
