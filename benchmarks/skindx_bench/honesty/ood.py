"""Train, fit and choose out-of-distribution detectors for a bundle.

Each training leaves out some classes, whose images then are out of distribution. Detectors are
fitted on its training images, their thresholds on its calibration images; they are compared by
what they refuse of the left-out classes and of painted images. Photos of another camera, the final
test of a check, must not choose it.
"""

import dataclasses
import itertools
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.atomic_files import FolderKind, atomic_file, atomic_folder
from skindx.core.errors import JobError, UserError
from skindx.core.settings_base import Settings
from skindx.data.layout import CACHE, MANIFEST, STORE, TAXONOMY
from skindx.data.manifest import Record, Split, read_image, read_manifest, split_of, write_manifest
from skindx.data.splits.split import fold_groups
from skindx.metrics import Interval, share_interval
from skindx.models.bundle.bundle import open_bundle
from skindx.models.ensemble import Ensemble
from skindx.models.ood.ood_check import RATE, combine, features_of, p_values, rate_of
from skindx.models.ood.ood_detectors import DEFAULT
from skindx.models.ood.ood_features import Features, TrainingFeatures
from skindx.models.ood.stored_check import last_layers
from skindx.taxonomy import Taxonomy
from skindx.training.config.run import TrainSettings
from skindx.training.run import unfinished
from skindx_bench.harness.result import Figure, Result
from skindx_bench.harness.training import end_on_sigterm, preset, run_skindx
from skindx_bench.honesty.ood_candidates import KINDS, Gram, LayeredFeatures, hooked, taken
from skindx_bench.honesty.ood_study import painted_images

VIEW = FolderKind("a view of a dataset", MANIFEST, (TAXONOMY, STORE, CACHE))


def fold_view(dataset: Path, out: Path, fold: int, folds: int, seed: int = 0) -> Path:
    """Write `out`, a dataset folder whose test split is one fold of all of `dataset`.

    The images stay where they are. Raises UserError for a dataset with fewer groups than parts.
    """
    records = refold(read_manifest(dataset), fold, folds, seed)
    with atomic_folder(out, VIEW) as folder:
        (folder / STORE).symlink_to((dataset / STORE).resolve())
        shutil.copyfile(dataset / TAXONOMY, folder / TAXONOMY)
        write_manifest(folder, records)
    return out


def refold(records: Sequence[Record], fold: int, folds: int, seed: int = 0) -> list[Record]:
    """Return `records` split for fold 0 .. folds - 1: test, val, and the rest to train on.

    Whole groups are divided into 2 x `folds` parts, stratified by class: two parts are the test
    split, the next one is val, so that the test splits of all folds are disjoint and make up the
    dataset. There is no calibration split: nothing conformal is fitted in a cross-validation.
    """
    if not 0 <= fold < folds or folds < 2:
        raise UserError(f"fold {fold} of {folds} is not there; count from 0, of at least 2 folds.")
    groups = [(record.group, record.label) for record in records]
    parts = 2 * folds
    if len({group for group, _ in groups}) < parts:
        raise UserError(f"{folds} folds need at least {parts} groups; ask for fewer folds.")
    part_of = fold_groups(groups, parts, seed)
    splits: dict[int, Split] = {
        2 * fold: "test",
        2 * fold + 1: "test",
        (2 * fold + 2) % parts: "val",
    }
    return [
        dataclasses.replace(record, split=splits.get(part_of[record.group], "train"), fold=None)
        for record in records
    ]


def class_view(dataset: Path, out: Path, left_out: Collection[str]) -> Path:
    """Write `out`, a dataset folder of the same images and splits without some classes.

    The images stay where they are. Raises UserError for a class that the dataset does not have,
    and where fewer than two classes are left.
    """
    records = read_manifest(dataset)
    present = {record.label for record in records}
    if unknown := sorted(set(left_out) - present):
        raise UserError(
            f"{dataset} has no images of {', '.join(unknown)}; it has {', '.join(sorted(present))}."
        )
    if len(present - set(left_out)) < 2:
        raise UserError(
            f"{dataset} without {', '.join(sorted(left_out))} has fewer than 2 classes."
        )
    taxonomy = Taxonomy.load(dataset / TAXONOMY)
    kept = [key for key in taxonomy.keys if key not in left_out]
    with atomic_folder(out, VIEW) as folder:
        (folder / STORE).symlink_to((dataset / STORE).resolve())
        taxonomy.subset(kept).save(folder / TAXONOMY)
        write_manifest(folder, [record for record in records if record.label not in left_out])
    return out


def paired_classes(records: Sequence[Record]) -> tuple[tuple[str, ...], ...]:
    """Return the classes in pairs, the largest with the smallest, so that each is left out once.

    Of an odd number the middle one is alone.
    """
    counts = Counter(record.label for record in records)
    ordered = sorted(counts, key=lambda label: (-counts[label], label))
    half = len(ordered) // 2
    pairs = [(ordered[n], ordered[-1 - n]) for n in range(half)]
    return (*pairs, *((label,) for label in ordered[half : len(ordered) - half]))


OWN, LEFT_OUT = "own", "left out"
"""Kinds of images: test images of the classes trained on, images of the others."""

CANDIDATES: tuple[tuple[str, ...], ...] = (
    *((kind,) for kind in KINDS),
    ("mahalanobis", "image"),
    ("energy", "image_mixture"),
    ("knn", "image_mixture"),
    ("mahalanobis", "image_mixture"),
    ("relative_mahalanobis", "image_mixture"),
    ("vim", "image_mixture"),
    ("gram", "image_mixture"),
    ("energy", "knn", "relative_mahalanobis", "vim", "image_mixture"),
)

# N = images, K = detectors

Scores = Mapping[tuple[str, str], NDArray[np.float64]]
"""Scores N by (kind of detector, kind of images); `calibration` is one of the latter."""


def is_served(candidate: Sequence[str]) -> bool:
    """Tell whether a bundle can carry these detectors: exports give no layer but the last."""
    return not any(issubclass(KINDS[kind].detector, Gram) for kind in candidate)


@dataclass(frozen=True)
class Refusals:
    """Refusals of one candidate for one kind of images, over all trainings."""

    out_N: NDArray[np.bool_]
    groups_N: NDArray[np.str_]
    areas: tuple[float, ...]
    """Of each training: AUROC against the images of its own classes."""

    @property
    def share(self) -> Interval:
        """The share refused; images of one group count as one."""
        return share_interval(self.out_N, self.groups_N)

    @property
    def area(self) -> float:
        """The mean AUROC of the trainings."""
        return float(np.mean(self.areas))


def refusals(
    candidate: Sequence[str], trainings: Sequence[tuple[Scores, Mapping[str, Sequence[str]]]]
) -> dict[str, Refusals]:
    """Return what a candidate refuses of each kind of images.

    A training is its scores and the groups of its images by their kind.
    """
    from sklearn.metrics import roc_auc_score

    found: dict[str, list[tuple[NDArray[np.bool_], Sequence[str], float]]] = {}
    for scores, groups in trainings:
        known_NK = _columns(scores, candidate, "calibration")
        own_N = combine(_columns(scores, candidate, OWN), known_NK)
        for kind, of in groups.items():
            asked_NK = _columns(scores, candidate, kind)
            out_N = p_values(known_NK, asked_NK) <= rate_of(len(known_NK))
            asked_N = combine(asked_NK, known_NK)
            truth_N = np.repeat([0, 1], [len(own_N), len(asked_N)])
            area = float(roc_auc_score(truth_N, np.concatenate([own_N, asked_N])))
            found.setdefault(kind, []).append((out_N, of, area))
    return {
        kind: Refusals(
            np.concatenate([out_N for out_N, _, _ in parts]),
            np.concatenate([np.array(of) for _, of, _ in parts]),
            tuple(area for _, _, area in parts),
        )
        for kind, parts in found.items()
    }


def _columns(scores: Scores, candidate: Sequence[str], kind: str) -> NDArray[np.float64]:
    return np.stack([scores[detector, kind] for detector in candidate], axis=1)


def merit(found: Mapping[str, Refusals]) -> float:
    """Return what a candidate is chosen by: the mean of two shares refused.

    The one is that of images of left-out classes, the other the mean over painted kinds.
    """
    painted = [part.share.value for kind, part in found.items() if kind not in (OWN, LEFT_OUT)]
    return (found[LEFT_OUT].share.value + float(np.mean(painted))) / 2


def choose(
    found: Mapping[tuple[str, ...], Mapping[str, Refusals]], promised: float
) -> tuple[str, ...] | None:
    """Return the candidate of the highest merit that a bundle can carry; of equals the smaller.

    One whose share of its own images lies above the promise, interval and all, is no candidate.
    """
    fit = {
        candidate: merit(kinds)
        for candidate, kinds in found.items()
        if is_served(candidate) and kinds[OWN].share.low <= promised
    }
    best = sorted(fit, key=lambda candidate: (-round(fit[candidate], 4), len(candidate)))
    return best[0] if best else None


_BATCH = 32

Pixels = NDArray[np.uint8]


Measured = tuple[dict[tuple[str, str], NDArray[np.float64]], dict[str, list[str]]]
"""Scores by (detector, kind of images), and the groups of the images by kind."""


def save_measured(file: Path, measured: Measured) -> None:
    """Write scores and groups, so that they need not be measured again."""
    scores, groups = measured
    arrays = {"|".join(key): part for key, part in scores.items()}
    with atomic_file(file) as temporary, temporary.open("wb") as stream:
        tables: dict[str, Any] = arrays | {kind: np.array(of) for kind, of in groups.items()}
        np.savez(stream, **tables)


def load_measured(file: Path) -> Measured:
    """Read what `save_measured` wrote."""
    with np.load(file) as arrays:
        scores = {
            (detector, kind): arrays[f"{detector}|{kind}"]
            for detector, _, kind in (name.partition("|") for name in arrays)
            if kind
        }
        groups = {name: arrays[name].tolist() for name in arrays if "|" not in name}
    return scores, groups


def measure(bundle: Path, dataset: Path, view: Path, painted: int) -> Measured:
    """Return scores by (detector, kind of images), and the groups of the images by kind.

    `bundle` was trained on `view`, a view of `dataset` without some classes. Raises UserError for
    a dataset without calibration or test images.
    """
    ensemble = open_bundle(bundle).ensemble()
    own = {record.sha256 for record in read_manifest(view)}
    records = read_manifest(dataset)
    inside = [record for record in records if record.sha256 in own]
    outside = [record for record in records if record.sha256 not in own]
    train = split_of(inside, "train")
    of_kind = {OWN: split_of(inside, "test"), LEFT_OUT: outside}
    held = split_of(inside, "calibration")
    if not (held and of_kind[OWN]):
        raise UserError(f"{dataset} needs calibration and test images to compare OOD detectors.")
    features = {kind: measured(ensemble, _read(dataset, of)) for kind, of in of_kind.items()} | {
        "calibration": measured(ensemble, _read(dataset, held))
    }
    groups = {kind: [record.group for record in of] for kind, of in of_kind.items()}
    for kind, images in painted_images(painted):
        features[kind] = measured(ensemble, images)
        groups[kind] = [f"{kind} {n}" for n in range(painted)]
    labels_N = np.array([record.label for record in train])
    learned = TrainingFeatures(
        measured(ensemble, _read(dataset, train)), labels_N, *last_layers(ensemble)
    )
    return _scores(learned, features), groups


def _scores(
    learned: TrainingFeatures, features: dict[str, Features]
) -> dict[tuple[str, str], NDArray[np.float64]]:
    found: dict[tuple[str, str], NDArray[np.float64]] = {}
    for kind, settings in KINDS.items():
        fitted = settings.detector.fit(settings, learned)
        if fitted is None:
            raise UserError(
                f"{len(learned.labels_N)} training images are too few for the detector {kind}; "
                "give a larger dataset."
            )
        found |= {(kind, of): fitted.scores(part) for of, part in features.items()}
    return found


def measured(ensemble: Ensemble, photos: Iterable[Pixels]) -> Features:
    """Return all features of photos, those of hooked layers as well, a batch at a time."""
    parts, of_layers, rest = [], [], iter(photos)
    with hooked(ensemble) as layers:
        while batch := list(itertools.islice(rest, _BATCH)):
            output = ensemble.predict_with_features(batch)
            parts.append(features_of(ensemble, batch, output))
            of_layers.append(taken(layers))
    layers_LNK = tuple(np.concatenate(same) for same in zip(*of_layers, strict=True))
    return LayeredFeatures(**vars(Features.join(parts)), layers_LNK=layers_LNK)


def _read(dataset: Path, records: Sequence[Record]) -> Iterator[Pixels]:
    return (read_image(dataset, record) for record in records)


SCORES = "scores-{painted}.npz"
HEADINGS = ("share", "95 % interval")


SMALLEST = ("painted=1",)


class Config(Settings):
    """Trainings and data; finished trainings and scores in `out` are reused."""

    dataset: Path = Path("runs/isic9/data")
    config: Path = preset("ood")
    """A training as `skindx train` takes it."""
    out: Path = Path("runs/ood")
    left_out: tuple[tuple[str, ...], ...] = ()
    """Classes that each training does without; (): pairs, so that each class is left out once."""
    painted: int = Field(50, ge=1)
    """Images of each painted kind."""


def run(settings: Config) -> Result:
    """Train without classes, score, choose; write nothing but the trainings."""
    end_on_sigterm()
    training = TrainSettings.load(settings.config, [])
    parts = settings.left_out or paired_classes(read_manifest(settings.dataset))
    trainings = []
    for left_out in parts:
        home = settings.out / "-".join(left_out)
        view = class_view(settings.dataset, home / "data", left_out)
        file = home / SCORES.format(painted=settings.painted)
        if _train(home, view, training) or not file.is_file():
            bundle = home / "run" / "bundle"
            save_measured(file, measure(bundle, settings.dataset, view, settings.painted))
        trainings.append(load_measured(file))
    found = {candidate: refusals(candidate, trainings) for candidate in CANDIDATES}
    chosen = choose(found, RATE)
    return Result(
        "ood",
        {
            f"{'+'.join(candidate)} {kind}": _figure(part)
            for candidate, kinds in found.items()
            for kind, part in (("own", kinds[OWN]), ("left_out", kinds[LEFT_OUT]))
        },
        notes=_notes(settings, training, parts, chosen),
        models={"+".join(candidate): _values(kinds) for candidate, kinds in found.items()},
        headings=HEADINGS,
    )


def _train(home: Path, view: Path, training: TrainSettings) -> bool:
    """Train what is missing; return whether anything was missing."""
    run_folder = home / "run"
    training.save(home / "train.yaml")
    missing = bool(unfinished(run_folder, view, training))
    if missing or not (run_folder / "bundle").is_dir():
        missing = True
        run_skindx("train", view, "--config", home / "train.yaml", "--out", run_folder)
    if left := unfinished(run_folder, view, training):
        raise JobError(f"{', '.join(left)} was stopped; run the same command again to go on")
    return missing


def _figure(part: Refusals) -> Figure:
    share = part.share
    return Figure.of(share, "", len(part.out_N))


def _values(kinds: dict[str, Refusals]) -> dict[str, object]:
    """Return plain values for the JSON: share refused, interval, AUROC of every kind of images."""
    return {
        "merit": merit(kinds),
        **{
            kind: {
                "n": len(part.out_N),
                "refused": [part.share.value, part.share.low, part.share.high],
                "auroc": part.area,
            }
            for kind, part in kinds.items()
        },
    }


def _notes(
    settings: Config,
    training: TrainSettings,
    parts: tuple[tuple[str, ...], ...],
    chosen: tuple[str, ...] | None,
) -> tuple[str, ...]:
    default = "+".join(own.kind for own in DEFAULT)
    without = "; ".join(", ".join(left_out) for left_out in parts)
    names = ", ".join(member.name for member in training.members)
    return (
        f"{names} trained without: {without}. `own`: test images of the classes trained on, of "
        f"which at most {RATE:.0%} should be refused; `left_out`: all images of the others.",
        "Chosen by the mean of the shares refused of left-out classes and of painted kinds (with "
        "--json also these, and the AUROC): "
        f"{'+'.join(chosen) if chosen else 'none'}. The default of a bundle: {default}.",
    )
