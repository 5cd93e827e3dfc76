"""Fit on validation how much the crop around the best box counts, and put it into the bundle."""

from pathlib import Path

import numpy as np

from skindx.data.loader.source import Files
from skindx.data.manifest import read_manifest, split_of
from skindx.models.bundle import Bundle, open_bundle, set_fusion
from skindx.models.fusion import FusionSpec, box_crops, fit_weight

_BATCH = 32


def fit_fusion(path: Path, dataset: Path, margin: float) -> Bundle:
    """Fit the weight on the validation pictures in which the bundle's detector is sure of a box.

    Raises UserError for a picture that cannot be read, and without ultralytics.
    """
    bundle = open_bundle(path)
    ensemble, detector = bundle.ensemble(), bundle.detector()
    assert detector is not None
    records = split_of(read_manifest(dataset), "val")
    files = Files(dataset, records)
    classes = len(bundle.taxonomy.classes)
    whole_NC, crop_NC, truth_N = np.empty((0, classes)), np.empty((0, classes)), []
    for start in range(0, len(records), _BATCH):
        numbers = range(start, min(start + _BATCH, len(records)))
        pictures = [files.picture(number) for number in numbers]
        boxes = detector.detect(pictures)
        crops = box_crops(pictures, boxes, detector.spec.confidence, margin)
        if not crops:
            continue
        whole, _ = ensemble.probabilities([pictures[index] for index in crops])
        crop, _ = ensemble.probabilities(list(crops.values()))
        whole_NC, crop_NC = np.concatenate([whole_NC, whole]), np.concatenate([crop_NC, crop])
        truth_N += [bundle.taxonomy.keys.index(records[start + index].label) for index in crops]
    weight = fit_weight(whole_NC, crop_NC, np.array(truth_N, np.int64)) if truth_N else 0.0
    return set_fusion(path, FusionSpec(weight=weight, margin=margin))
