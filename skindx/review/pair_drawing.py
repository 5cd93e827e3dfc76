"""Two images drawn side by side, and the second one laid on the first, with their shared points."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.data.copies.describe import LONG_SIDE, describe
from skindx.data.copies.geometry import models_of
from skindx.imaging.hashes import grey

# I = points that agree

_GAP = 8
_DOT = (20, 184, 166)


def draw_pair(
    first_HW3: NDArray[np.uint8],
    second_HW3: NDArray[np.uint8],
    transform: tuple[float, ...],
    side: int,
) -> NDArray[np.uint8]:
    """Return pixels_HW3 of three panels: the first, the second, the second laid on the first.

    `transform` is that of a pair: it maps the first to the second, in described pixels. `side` is
    the longer side of each image in the drawing, in pixels. Dots mark the points that agree.
    """
    import cv2

    first_HW3, second_HW3 = np.ascontiguousarray(first_HW3), np.ascontiguousarray(second_HW3)
    transform_23 = np.array(transform, np.float64).reshape(2, 3)
    left_HW3, right_HW3 = _fitted(first_HW3, side), _fitted(second_HW3, side)
    # From a pixel of the drawing to described pixels of the first, to those of the second image,
    # and to its stored pixels.
    shrink = LONG_SIDE / max(left_HW3.shape[:2])
    enlarge = max(second_HW3.shape[:2]) / LONG_SIDE
    linear_22 = enlarge * transform_23[:, :2] * shrink
    warp_23 = np.column_stack([linear_22, enlarge * transform_23[:, 2]])
    height, width = left_HW3.shape[:2]
    laid_HW3 = cv2.warpAffine(
        second_HW3, warp_23, (width, height), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    )
    for x, y in (
        (_points(first_HW3, second_HW3, transform_23) / shrink).round().astype(int).tolist()
    ):
        for panel_HW3 in (left_HW3, laid_HW3):
            cv2.circle(panel_HW3, (x, y), 3, _DOT, 1, cv2.LINE_AA)
    return _beside([left_HW3, right_HW3, laid_HW3])


def _fitted(image_HW3: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    import cv2

    height, width = image_HW3.shape[:2]
    scale = side / max(height, width)
    size_wh = (max(1, round(width * scale)), max(1, round(height * scale)))
    way = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    fitted_HW3: NDArray[np.uint8] = cv2.resize(image_HW3, size_wh, interpolation=way)
    return fitted_HW3


def _points(
    first_HW3: NDArray[np.uint8], second_HW3: NDArray[np.uint8], transform_23: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the points of the first image that agree, of the model nearest to the transform."""
    first, second = describe(grey(first_HW3)), describe(grey(second_HW3))
    corners_34 = np.array([[0, 1, 0, 1], [0, 0, 1, 1], [1 / LONG_SIDE] * 4]) * LONG_SIDE

    def distance(model: Any) -> float:
        return float(np.abs((model.transform_23 - transform_23) @ corners_34).max())

    models = models_of(first, second)
    if not models:
        return np.empty((0, 2))
    nearest = min(models, key=distance)
    points_I2: NDArray[np.float64] = nearest.from_I2
    return points_I2 if distance(nearest) < LONG_SIDE / 8 else np.empty((0, 2))


def _beside(panels: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    height = max(panel_HW3.shape[0] for panel_HW3 in panels)
    width = sum(panel_HW3.shape[1] for panel_HW3 in panels) + _GAP * (len(panels) - 1)
    drawing_HW3 = np.full((height, width, 3), 255, np.uint8)
    at = 0
    for panel_HW3 in panels:
        drawing_HW3[: panel_HW3.shape[0], at : at + panel_HW3.shape[1]] = panel_HW3
        at += panel_HW3.shape[1] + _GAP
    return drawing_HW3
