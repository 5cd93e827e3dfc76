"""Fit the weight of the crop around the best box on validation, and put it into the bundle."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.data.loader.source import Files
from skindx.data.manifest import Record, read_manifest, split_of
from skindx.models.bundle.bundle import Bundle, open_bundle
from skindx.models.bundle.change import set_fusion
from skindx.models.bundle.provenance import FOLD_TRAINED_IMAGES, provenance_value
from skindx.models.calibration.conformal_fit import fit_on_records
from skindx.models.calibration.urgent_risk_fit import fit_risk_on_records
from skindx.models.detector.detector import Detector
from skindx.models.ensemble.crop_fusion import FusionSpec, assist, box_crops, fit_weight
from skindx.training.feeding.images import class_numbers

_BATCH = 32

Images = list[NDArray[np.uint8]]
Crops = Mapping[int, NDArray[np.uint8]]


def fit_fusion(path: Path, dataset: Path, margin: float) -> Bundle:
    """Fit the weight on the validation images in which the bundle's detector is sure of a box.

    Conformal sets and thresholds of the urgent risk are fitted again, on calibration alone, since
    they must fit what is served; those of the whole image stay beside them, for answers
    without the detector.
    Raises UserError for an image that cannot be read, and without ultralytics.
    """
    bundle = open_bundle(path)
    if provenance_value(bundle.spec.provenance, FOLD_TRAINED_IMAGES):
        print("no fusion: members learned from validation images, which its weight is fitted on")
        return bundle
    ensemble, detector = bundle.ensemble(), bundle.detector()
    assert detector is not None
    records, classes = read_manifest(dataset), bundle.taxonomy.keys
    val = split_of(records, "val")
    truth_N = class_numbers(val, classes)
    whole, crop, seen = [], [], []
    for first, images, crops in _looked(detector, dataset, val, margin):
        if crops:
            whole.append(ensemble.probabilities([images[index] for index in crops])[0])
            crop.append(ensemble.probabilities(list(crops.values()))[0])
            seen += [first + index for index in crops]
    weight = 0.0
    if seen:
        weight = fit_weight(np.concatenate(whole), np.concatenate(crop), truth_N[seen])
    print(
        f"the crop around the best box counts {weight:.2f}, fitted on {len(seen)} of {len(val)} "
        "validation images; the others have no sure box that shows less than the whole"
    )
    fusion = FusionSpec(weight=weight, margin=margin)
    plain = bundle.spec.whole_conformal or bundle.spec.conformal
    plain_risk = bundle.spec.whole_urgent_risk or bundle.spec.urgent_risk
    if not (plain and weight):
        return set_fusion(path, fusion, plain, urgent_risk=plain_risk)
    held = split_of(records, "calibration")
    looked = _looked(detector, dataset, held, margin)
    fused_NC = np.concatenate(
        [assist(ensemble, crops, ensemble.probabilities(p), weight)[0] for _, p, crops in looked]
    )
    fused = fit_on_records(fused_NC, held, bundle.taxonomy, plain.level)
    fused_risk = fit_risk_on_records(fused_NC, held, bundle.taxonomy) if plain_risk else None
    return set_fusion(
        path, fusion, fused, plain, urgent_risk=fused_risk, whole_urgent_risk=plain_risk
    )


def _looked(
    detector: Detector, dataset: Path, records: Sequence[Record], margin: float
) -> Iterator[tuple[int, Images, Crops]]:
    """Yield batches: the number of the first image, the images, the crops of those with one."""
    files = Files(dataset, records)
    for first in range(0, len(records), _BATCH):
        last = min(first + _BATCH, len(records))
        images = [files.image(number) for number in range(first, last)]
        boxes = detector.detect(images)
        yield first, images, box_crops(images, boxes, detector.spec.confidence, margin)
