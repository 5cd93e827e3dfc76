"""Features and scores of images by one training without some of its dataset's classes."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import atomic_file
from skindx.core.errors import UserError
from skindx.data.manifest import Record, read_manifest, split_of
from skindx.data.stored_image import read_image
from skindx.evaluation.ood import painted_images
from skindx.models.bundle.bundle import open_bundle
from skindx.models.ensemble import Ensemble
from skindx.models.ood.detectors import DETECTORS, detector_class
from skindx.models.ood.extraction import features_of, hooked, last_layers, taken
from skindx.models.ood.ood_features import Features, Learned
from skindx_bench.ood.candidates import LEFT_OUT, OWN, settings_of

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
    learned = Learned(measured(ensemble, _read(dataset, train)), labels_N, *last_layers(ensemble))
    return _scores(learned, features), groups


def _scores(
    learned: Learned, features: dict[str, Features]
) -> dict[tuple[str, str], NDArray[np.float64]]:
    found: dict[tuple[str, str], NDArray[np.float64]] = {}
    for kind in DETECTORS:
        fitted = detector_class(kind).fit(settings_of(kind), learned)
        if fitted is None:
            raise UserError(
                f"{len(learned.labels_N)} training images are too few for the detector {kind}; "
                "give a larger dataset."
            )
        found |= {(kind, of): fitted.scores(part) for of, part in features.items()}
    return found


def measured(ensemble: Ensemble, photos: Iterable[Pixels]) -> Features:
    """Return all features of photos, those of hooked layers as well, a batch at a time."""
    parts, rest = [], iter(photos)
    with hooked(ensemble) as layers:
        while batch := list(itertools.islice(rest, _BATCH)):
            output = ensemble.predict_with_features(batch)
            found = features_of(ensemble, batch, output)
            parts.append(dataclasses.replace(found, layers_LNK=taken(layers)))
    return Features.join(parts)


def _read(dataset: Path, records: Sequence[Record]) -> Iterator[Pixels]:
    return (read_image(dataset, record) for record in records)
