"""Detection-assisted diagnosis: the whole image, and beside it the crop around its best box.

After He et al. 2019 (arXiv 1911.08705), where boxes help some classes. Here the same ensemble
predicts both views, and p = (1 - w) p_whole + w p_crop.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.settings_base import Settings
from skindx.data.box import Box

# N = images, K = images with a crop, C = classes, M = members
# H, W = height, width; S = side of the crop

_WEIGHTS = 101
"""Weights that a fit compares: whole percents; validation splits cannot distinguish finer ones."""


class FusionSpec(Settings):
    """How much the crop around the best box counts, and how wide it is."""

    weight: float = Field(ge=0, le=1)
    margin: float = Field(1.5, ge=1, le=4)
    """Side of the crop over the longer side of the box."""


def best_box(boxes: Sequence[Box], confidence: float) -> Box | None:
    """Return the box with the highest score of at least `confidence`; None when there is none."""
    sure = [box for box in boxes if box.score is not None and box.score >= confidence]
    return max(sure, key=lambda box: box.score or 0.0, default=None)


def box_crop(image_HW3: NDArray[np.uint8], box: Box, margin: float) -> NDArray[np.uint8]:
    """Return a view S x S x 3 around a box: `margin` times its longer side, inside the image.

    A square that would stand out is moved in, and is no larger than the image's shorter side.
    """
    height, width = image_HW3.shape[:2]
    wanted = round(margin * max(box.x2 - box.x1, box.y2 - box.y1))
    side = max(1, min(wanted, height, width))
    left = round((box.x1 + box.x2 - side) / 2)
    top = round((box.y1 + box.y2 - side) / 2)
    left, top = min(max(left, 0), width - side), min(max(top, 0), height - side)
    return image_HW3[top : top + side, left : left + side]


def box_crops(
    images: Sequence[NDArray[np.uint8]],
    boxes_N: Sequence[Sequence[Box]],
    confidence: float,
    margin: float,
) -> dict[int, NDArray[np.uint8]]:
    """Return image number -> crop around its best box, of the images that have one.

    A crop that is the whole image is left out: it would be no second view, and would pass for
    one where views are counted and weighed.
    """
    best = {n: best_box(boxes, confidence) for n, boxes in enumerate(boxes_N)}
    crops = {n: box_crop(images[n], box, margin) for n, box in best.items() if box}
    return {n: crop for n, crop in crops.items() if crop.shape != images[n].shape}


def fuse(
    whole: NDArray[np.float64], crop: NDArray[np.float64], weight: float
) -> NDArray[np.float64]:
    """Return (1 - w) whole + w crop of two arrays of probabilities; w = 0 is `whole` to the bit."""
    if weight == 0:
        return whole
    mixed: NDArray[np.float64] = (1 - weight) * whole + weight * crop
    return mixed


class ProbabilityModel(Protocol):
    """An ensemble, as far as fusion needs it."""

    def probabilities(
        self, images: Sequence[NDArray[np.uint8]]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return its probabilities N x C and each member's M x N x C."""


def assist(
    ensemble: ProbabilityModel,
    crops: Mapping[int, NDArray[np.uint8]],
    whole: tuple[NDArray[np.float64], NDArray[np.float64]],
    weight: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fuse the predictions of whole images with those of crops, where there are any.

    `whole` are probabilities N x C and each member's M x N x C, which are left as they are; so are
    images without a crop. At weight 0 no crop is predicted.
    """
    if not crops or weight == 0:
        return whole
    whole_NC, whole_MNC = whole
    crop_KC, crop_MKC = ensemble.probabilities(list(crops.values()))
    seen = list(crops)
    fused_NC, fused_MNC = whole_NC.copy(), whole_MNC.copy()
    fused_NC[seen] = fuse(whole_NC[seen], crop_KC, weight)
    fused_MNC[:, seen] = fuse(whole_MNC[:, seen], crop_MKC, weight)
    return fused_NC, fused_MNC


def fit_weight(
    whole_NC: NDArray[np.float64], crop_NC: NDArray[np.float64], truth_N: NDArray[np.integer]
) -> float:
    """Return the weight in 0, 0.01, .. 1 with the least negative log-likelihood of the truth.

    The images are those of validation that have a box: to the others no weight matters. Of equal
    weights the smallest is taken, so that an uninformative crop has weight 0.
    """
    images_N = np.arange(len(truth_N))
    own_N, beside_N = whole_NC[images_N, truth_N], crop_NC[images_N, truth_N]
    weights_W = np.linspace(0, 1, _WEIGHTS)
    mixed_WN = own_N + weights_W[:, None] * (beside_N - own_N)
    loss_W = -np.log(np.maximum(mixed_WN, 1e-300)).sum(axis=1)
    return float(weights_W[loss_W.argmin()])
