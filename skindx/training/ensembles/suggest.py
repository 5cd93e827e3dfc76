"""Linear probe and nearest neighbours on frozen features, and how they grow with the labels.

The validation images are looked at once, to measure: the regularisation of the probe is chosen by
cross-validation over groups inside the training images.

N = training images, V = validation images, D = dimensions, C = classes
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx.data.loader.batches import learning
from skindx.data.loader.cache import cache_folder
from skindx.data.loader.settings import DiskCache
from skindx.data.manifest import Record, read_manifest
from skindx.data.splits.split import fold_groups
from skindx.metrics import (
    Interval,
    Statistic,
    balanced_accuracy,
    confidence_interval,
    paired_interval,
)
from skindx.taxonomy import Taxonomy
from skindx.training.config.run import MemberSettings, TrainSettings
from skindx.training.parallel.mesh import AloneMesh
from skindx.training.registry import resolve
from skindx.training.tasks.head_data import STRENGTHS, fit_logistic, fit_path
from skindx.training.tasks.heads_job import FeatureFiles, load_trunk
from skindx.training.tasks.image_sets import class_numbers

if TYPE_CHECKING:
    from rich.table import Table


SHARES = (0.1, 0.2, 0.4, 0.7, 1.0)
"""Of the training groups, for the learning curve."""
_FOLDS, _DRAWS = 3, 3
_NEIGHBOURS = 20
_HALF = 0.5
_USUAL = 1e-2
"""The strength where the training images cannot be divided."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """Features with labels and groups."""

    features_ND: Floats
    labels_N: Ints
    groups_N: NDArray[np.str_]

    def rows(self, chosen_N: NDArray[np.bool_]) -> "Split":
        """Return some of the images."""
        return Split(self.features_ND[chosen_N], self.labels_N[chosen_N], self.groups_N[chosen_N])


@dataclass(frozen=True)
class Point:
    """One point of the learning curve: the mean over draws of the groups."""

    share: float
    images: int
    balanced_accuracy: float


@dataclass(frozen=True)
class Probe:
    """The result of one trunk; balanced accuracies on the validation images, 95 % over groups."""

    linear: Interval
    neighbours: Interval
    fits_training: float
    """Balanced accuracy of the linear probe on the images that it learned from."""
    curve: tuple[Point, ...]
    doubling: Interval
    """Gain from the last doubling of the training groups."""


def probe(train: Split, val: Split, classes: int) -> Probe:
    """Measure one trunk's features."""
    scale = _Scale(train.features_ND)
    learned, held = scale.of(train), scale.of(val)
    strength = _chosen(learned, classes)
    whole = _linear(learned, held, strength, classes)
    half = _linear(_draw(learned, _HALF, 0), held, strength, classes)
    linear = Statistic.balanced_accuracy(whole, held.labels_N)
    near = Statistic.balanced_accuracy(neighbours(train, val, classes), held.labels_N)
    on_training = balanced_accuracy(_linear(learned, learned, strength, classes), learned.labels_N)
    curve = tuple(
        Point(
            share,
            round(share * len(learned.labels_N)),
            _score(learned, held, strength, classes, share),
        )
        for share in SHARES
    )
    doubling = paired_interval(
        linear, Statistic.balanced_accuracy(half, held.labels_N), held.groups_N
    )
    return Probe(
        confidence_interval(linear, held.groups_N),
        confidence_interval(near, held.groups_N),
        float(on_training),
        curve,
        doubling,
    )


def neighbours(train: Split, val: Split, classes: int) -> Floats:
    """Return the votes of the nearest training images, V x C, each class weighing the same."""
    unit_ND, unit_VD = (_unit(part.features_ND) for part in (train, val))
    cosine_VN = unit_VD @ unit_ND.T
    most = min(_NEIGHBOURS, cosine_VN.shape[1])
    near_VK = np.argpartition(-cosine_VN, most - 1, axis=1)[:, :most]
    weight_VK = np.exp((np.take_along_axis(cosine_VN, near_VK, 1) - 1) / 0.07)
    counts_C = np.maximum(np.bincount(train.labels_N, minlength=classes), 1)
    votes_VC = np.full((len(unit_VD), classes), 1e-12)
    labels_VK = train.labels_N[near_VK]
    np.add.at(
        votes_VC,
        (np.arange(len(unit_VD))[:, None], labels_VK),
        weight_VK / np.sqrt(counts_C[labels_VK]),
    )
    return np.asarray(votes_VC / votes_VC.sum(axis=1, keepdims=True))


class _Scale:
    def __init__(self, features_ND: Floats) -> None:
        self.mean_D, std_D = features_ND.mean(axis=0), features_ND.std(axis=0)
        self.std_D = np.where(std_D < 1e-4 * max(float(std_D.max()), 1e-12), 1.0, std_D)

    def of(self, split: Split) -> Split:
        scaled_ND = (split.features_ND - self.mean_D) / self.std_D
        return Split(scaled_ND, split.labels_N, split.groups_N)


def _chosen(train: Split, classes: int) -> float:
    """Return the C of least loss, cross-validated over groups inside the training images."""
    pairs = [(g, str(n)) for g, n in zip(train.groups_N, train.labels_N.tolist(), strict=True)]
    fold_of = fold_groups(pairs, _FOLDS, 0)
    fold_N = np.array([fold_of[group] for group in train.groups_N.tolist()])
    losses = np.zeros(len(STRENGTHS))
    for fold in range(_FOLDS):
        learned, held = train.rows(fold_N != fold), train.rows(fold_N == fold)
        if len(set(learned.labels_N.tolist())) < classes or not len(held.labels_N):
            continue
        losses += _path_losses(learned, held, classes)
    return STRENGTHS[int(losses.argmin())] if losses.any() else _USUAL


def _path_losses(learned: Split, held: Split, classes: int) -> Floats:
    """Return the loss on `held` by strength; infinite beyond where it rose twice in a row."""
    result = np.full(len(STRENGTHS), np.inf)
    path = fit_path(learned.features_ND, learned.labels_N, _balance(learned, classes), classes)
    for at, (_, (weight_CD, bias_C)) in enumerate(path):
        log_VC = _log_softmax(held.features_ND @ weight_CD.T + bias_C)
        weights_V = _balance(held, classes)
        result[at] = -float((weights_V * log_VC[np.arange(len(log_VC)), held.labels_N]).sum())
        if at > 1 and result[at] > result[at - 1] > result[at - 2]:
            break
    return result


def _balance(split: Split, classes: int) -> Floats:
    """Return weights N with which all classes weigh the same, of mean 1."""
    counts_C = np.maximum(np.bincount(split.labels_N, minlength=classes), 1)
    weights_N = 1 / counts_C[split.labels_N]
    return np.asarray(weights_N * len(weights_N) / weights_N.sum())


def _linear(train: Split, val: Split, strength: float, classes: int) -> Floats:
    """Return the probe's probabilities V x C; a class that it never saw has none."""
    seen = np.unique(train.labels_N)
    probabilities_VC = np.zeros((len(val.labels_N), classes))
    if len(seen) == 1:
        probabilities_VC[:, seen[0]] = 1.0
        return probabilities_VC
    number = np.searchsorted(seen, train.labels_N)
    weight_CD, bias_C = fit_logistic(
        train.features_ND, number, _balance(train, classes), len(seen), strength
    )
    probabilities_VC[:, seen] = np.exp(_log_softmax(val.features_ND @ weight_CD.T + bias_C))
    return probabilities_VC


def _draw(train: Split, share: float, seed: int) -> Split:
    """Return a random share of the training groups, of each class's about as many."""
    rng = np.random.default_rng((seed, round(100 * share)))
    first_of = dict(zip(train.groups_N[::-1].tolist(), train.labels_N[::-1].tolist(), strict=True))
    chosen: list[str] = []
    for label in sorted(set(first_of.values())):
        groups = sorted(group for group, first in first_of.items() if first == label)
        count = max(1, round(share * len(groups)))
        chosen += rng.choice(groups, count, replace=False).tolist()
    return train.rows(np.isin(train.groups_N, chosen))


def _draws(train: Split, share: float) -> Sequence[Split]:
    return [train] if share == 1 else [_draw(train, share, seed) for seed in range(_DRAWS)]


def _score(train: Split, val: Split, strength: float, classes: int, share: float) -> float:
    scores = [
        balanced_accuracy(_linear(drawn, val, strength, classes), val.labels_N)
        for drawn in _draws(train, share)
    ]
    return float(np.mean(scores))


def _unit(rows_ND: Floats) -> Floats:
    return np.asarray(rows_ND / np.maximum(np.linalg.norm(rows_ND, axis=1, keepdims=True), 1e-12))


def _log_softmax(logits_NC: Floats) -> Floats:
    shifted = logits_NC - logits_NC.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


# `skindx train --suggest`: what the available trunks say of a dataset before training.

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
    check_classes(records, classes)
    members = [m for m in resolve(settings).members if m.weights or m.pretrained]
    if not members:
        raise UserError(
            "no trunk is available: no member starts from weights; set pretrained: true, or give "
            "--weights FILE, or a model: local-dir:FOLDER with pretrained: true."
        )
    result: dict[tuple[str, str], Suggestion] = {}
    for member in members:
        key = (load_trunk(member).key, member.preprocess.model_dump_json())
        if key not in result:
            result[key] = _suggestion(dataset, settings, member, records, classes)
    best = sorted(result.values(), key=lambda suggestion: -suggestion.probe.linear.value)
    if out is not None:
        write_json(out / "suggest.json", {"trunks": [_plain(suggestion) for suggestion in best]})
    return best


def check_classes(records: Sequence[Record], classes: Sequence[str]) -> None:
    """Raise UserError for a dataset without training or validation images of its classes."""
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
    lines = [
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
        lines.append(
            f"The probe fits its own training images to {answer.fits_training:.0%}: the features "
            "tell them apart, and what is missing is on new images. More labels and stronger "
            "regularisation come first; a fine-tune may help as well; only a trial shows it."
        )
    else:
        lines.append(
            f"The probe that generalises best fits its own training images to "
            f"{answer.fits_training:.0%} only: these features hardly tell the classes apart. A "
            "fine-tune, a higher resolution or another trunk will likely bring more than labels."
        )
    return tuple(lines)


def _percent(interval: Interval) -> str:
    return f"{interval.value:.1%} [{interval.low:.1%}, {interval.high:.1%}]"


def _points(interval: Interval) -> str:
    low, value, high = (100 * part for part in (interval.low, interval.value, interval.high))
    return f"{value:+.1f} points [{low:+.1f}, {high:+.1f}]"


def _plain(suggestion: Suggestion) -> dict[str, Any]:
    answer = suggestion.probe
    return {
        "member": suggestion.member,
        "model": suggestion.model,
        "trunk": suggestion.trunk,
        "balanced_accuracy": {
            "linear": _bounds(answer.linear),
            "knn": _bounds(answer.neighbours),
            "linear_on_its_training_images": answer.fits_training,
        },
        "doubling": _bounds(answer.doubling),
        "curve": [asdict(point) for point in answer.curve],
        "says": list(suggestion.sentences),
    }


def _bounds(interval: Interval) -> list[float]:
    return [interval.value, interval.low, interval.high]


def curve_table(suggestion: Suggestion) -> "Table":
    """Return the linear probe's balanced accuracy over shares of the training groups."""
    from rich.table import Table

    table = Table(
        title=f"{suggestion.model}, trunk {suggestion.trunk}", box=None, title_justify="left"
    )
    for heading in ("training groups", "images", "balanced accuracy"):
        table.add_column(heading, justify="right")
    for point in suggestion.probe.curve:
        table.add_row(
            f"{point.share:.0%}", f"about {point.images}", f"{point.balanced_accuracy:.1%}"
        )
    return table
