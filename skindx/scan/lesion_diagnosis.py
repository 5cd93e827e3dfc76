"""A lesion cut out of its photo, its colour against the skin, and the ensemble's answer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from skindx.core.errors import UserError
from skindx.data.box import Box
from skindx.imaging.photo_gates import skin_mask
from skindx.models.ood.feature_extraction import features_of
from skindx.models.urgent_risk import urgent_risks
from skindx.scan.pixel_store import Pixels, PixelStore
from skindx.scan.scanned_lesions import ScannedLesion

if TYPE_CHECKING:
    from skindx.diagnosis.predictor import Predictor


LEAST_SIDE = 32
"""Pixels of a crop: around a smaller lesion more skin is shown."""
_RING = 1.15
"""The skin around a lesion begins at this multiple of its box."""


def lesion_crop(store: PixelStore, box: Box, margin: float, needed: int) -> tuple[Pixels, Box]:
    """Return a square around a box, S x S x 3, and the box in pixels of the square.

    Its side is `margin` times the box's longer side. It comes at the coarsest scale that has
    `needed` pixels, is moved in where it would stand out, and is never wider than the photo.
    """
    width, height = store.size()
    side = max(margin * max(box.x2 - box.x1, box.y2 - box.y1), LEAST_SIDE)
    side = min(side, width, height)
    level = 0
    while level + 1 < len(store.sizes) and side / (2 << level) >= needed:
        level += 1
    factor, dx, dy = store.to_full(level)
    small_width, small_height = store.size(level)
    pixels = max(1, min(round(side / factor), small_width, small_height))
    left = round((((box.x1 + box.x2) / 2 - dx) / factor) - pixels / 2)
    top = round((((box.y1 + box.y2) / 2 - dy) / factor) - pixels / 2)
    left, top = min(max(left, 0), small_width - pixels), min(max(top, 0), small_height - pixels)
    crop_SS3 = store.read(level, left, top, pixels, pixels)
    x1, x2 = ((x - dx) / factor - left for x in (box.x1, box.x2))
    y1, y2 = ((y - dy) / factor - top for y in (box.y1, box.y2))
    return crop_SS3, Box(x1, y1, x2, y2, box.label, box.drawn_by, box.score)


def colour_difference(crop_SS3: Pixels, box: Box) -> tuple[float, float, float]:
    """Return the median CIELAB colour inside a box minus that of the skin around it.

    Inside is the ellipse in the box; around is the rest of the crop that has a colour of skin, or
    all of it where nothing has. Zero where the box fills the crop.
    """
    import cv2

    rows_S1, columns_1S = np.mgrid[: len(crop_SS3), : crop_SS3.shape[1]] + 0.5
    x, y = (box.x1 + box.x2) / 2, (box.y1 + box.y2) / 2
    radius_x, radius_y = (box.x2 - box.x1) / 2, (box.y2 - box.y1) / 2
    across, down = np.abs(columns_1S - x) / radius_x, np.abs(rows_S1 - y) / radius_y
    inside_SS = across**2 + down**2 <= 1
    around_SS = np.maximum(across, down) > _RING
    skin_SS = around_SS & skin_mask(crop_SS3)
    ring_SS = skin_SS if skin_SS.any() else around_SS
    if not (inside_SS.any() and ring_SS.any()):
        return 0.0, 0.0, 0.0
    lab_SS3 = cv2.cvtColor(crop_SS3.astype(np.float32) / 255, cv2.COLOR_RGB2LAB)
    difference = np.median(lab_SS3[inside_SS], axis=0) - np.median(lab_SS3[ring_SS], axis=0)
    lightness, red, yellow = (float(part) for part in difference)
    return lightness, red, yellow


def diagnose_lesions(
    predictor: "Predictor", store: PixelStore, boxes: Sequence[Box], margin: float
) -> list[ScannedLesion]:
    """Return what the ensemble says of each lesion; at least one, all in one batch.

    The detector has looked already, so thresholds are those that were fitted for whole images
    alone. Raises UserError for a bundle that gives no probabilities.
    """
    alone = replace(predictor, detector=None)
    needed = max(member.preprocess.margin_size for member in predictor.ensemble.members)
    cut = [lesion_crop(store, box, margin, needed) for box in boxes]
    crops = [crop_SS3 for crop_SS3, _ in cut]
    output = predictor.ensemble.predict_with_features(crops)
    probabilities_NC = output.probabilities_NC
    if not np.isfinite(probabilities_NC).all():
        raise UserError(
            f"bundle {predictor.bundle.path} gives no probabilities for a lesion; its weights are "
            "damaged, train and pack it again."
        )
    ood = predictor.ood
    p_values_N = (
        ood.p_values(features_of(predictor.ensemble, crops, output, ood.needs)) if ood else None
    )
    sets_NC = alone.conformal.sets(probabilities_NC) if alone.conformal else None
    rule = alone.urgent_risk
    threshold = rule.thresholds(rule.level(alone.miss_rate), [None])[0] if rule else None
    urgent_columns = _urgent_columns(predictor)
    risks_N = urgent_risks(probabilities_NC, urgent_columns)
    keys = predictor.taxonomy.keys
    return [
        ScannedLesion(
            box=box,
            probabilities_C=probabilities_NC[n],
            urgent_risk=float(risks_N[n]) if urgent_columns else None,
            urgent=bool(risks_N[n] >= threshold) if threshold is not None else None,
            possible=tuple(keys[c] for c in np.flatnonzero(sets_NC[n]))
            if sets_NC is not None
            else (),
            ood_p_value=float(p_values_N[n]) if p_values_N is not None else None,
            embedding_D=output.embeddings_ND[n],
            colour_lab=colour_difference(*cut[n]),
        )
        for n, box in enumerate(boxes)
    ]


def _urgent_columns(predictor: "Predictor") -> list[int]:
    """Return which classes are urgent: by the fitted rule where there is one."""
    rule = predictor.urgent_risk
    if rule:
        return list(rule.urgent_columns)
    classes = predictor.taxonomy.classes
    return [n for n, skin_class in enumerate(classes) if skin_class.urgency == "urgent"]
