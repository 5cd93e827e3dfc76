"""Whether a lesion goes on beyond what the networks see of a photo: by its box, or by its pixels.

Without a detector the lesion is the dark region around the centre: what Otsu's threshold (1979, "A
threshold selection method from gray-level histograms") divides from the skin in blue, the channel
in which melanin and blood are darkest. A region that is pale, ragged or not at the centre is a
shadow, a rim or hair, and nothing is said of it.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from skindx.imaging.resize import shrink

Cut = Literal["", "square", "edge"]
"""What cuts the lesion off: "square", the part that the networks see; "edge", the photo's own edge;
"", neither, as far as the photo shows."""

Edges = tuple[float, float, float, float]
"""Left, top, right and bottom."""

SIDE = 96
"""Pixels of the shorter side: an outline needs no more, and hairs are gone."""
LEAST_OUTSIDE = 0.01
"""Share of a region outside the square from which the region counts as cut."""
LEAST_OUTSIDE_BOX = 0.02
"""The same share for a detector's box, which is wider than its lesion."""
LEAST_SOLID = 0.6
"""Share of its convex hull that a region fills; shadows and hair fill less."""
LEAST_CONTRAST = 0.18
"""Share of the rest's blue by which a region is darker, in the middle of both: a share, so that
dark skin is treated as light skin is."""
LEAST_CENTRAL = 0.05
"""Share of the central third of the shorter side that it covers."""
LEAST_TOUCHING = 0.25
"""Length along the photo's edge, in sides of a square of the region's area."""
MOST_TOUCHING = 1.5
"""The same length from which a region at several sides is shade, hair or the background."""
AT_EDGE = 0.005
"""Share of the longer side within which a box lies at the photo's edge."""
_CORNER = 0.05
"""Share of a side that a region may touch and still be at no more than its corner."""
_RIM, _RIM_SHARE = 20, 0.2
"""Levels of all channels, and share of the light of the brightest skin, below which a corner is a
dermatoscope's rim and no skin."""

# H, W = height, width of the reduced photo


def cut_by(pixels_HW3: NDArray[np.uint8], seen: Edges, boxes: Sequence[Edges] = ()) -> Cut:
    """Return what cuts off a photo's lesion; its best box decides, where there is one.

    `seen` is the part that the networks see; it and the boxes, best first, are in shares of the
    photo's width and height.
    """
    if boxes:
        return _box_cut_by(boxes[0], seen, pixels_HW3.shape[1] / pixels_HW3.shape[0])
    region_HW = lesion_region(pixels_HW3)
    if region_HW is None:
        return ""
    if (along := touching(region_HW)) >= MOST_TOUCHING and _sides(region_HW) > 1:
        return ""
    if along >= LEAST_TOUCHING:
        return "edge"
    return "square" if outside(region_HW, seen) > LEAST_OUTSIDE else ""


def _box_cut_by(box: Edges, seen: Edges, aspect: float) -> Cut:
    across, down = (AT_EDGE * max(1, 1 / aspect), AT_EDGE * max(1, aspect))
    left, top, right, bottom = box
    if left <= across or top <= down or right >= 1 - across or bottom >= 1 - down:
        return "edge"
    inside = max(min(right, seen[2]) - max(left, seen[0]), 0) * max(
        min(bottom, seen[3]) - max(top, seen[1]), 0
    )
    area = max((right - left) * (bottom - top), 1e-12)
    return "square" if 1 - inside / area > LEAST_OUTSIDE_BOX else ""


def lesion_region(pixels_HW3: NDArray[np.uint8]) -> NDArray[np.bool_] | None:
    """Return the dark region around the centre, H x W reduced; None where none stands out."""
    import cv2

    small_HW3: Any = cv2.GaussianBlur(shrink(pixels_HW3, SIDE), (0, 0), 1.5)
    blue_HW, skin_HW = small_HW3[..., 2], _inside_rim(small_HW3.max(axis=2))
    if not skin_HW.any():
        return None
    threshold, _ = cv2.threshold(blue_HW[skin_HW][:, None], 0, 255, cv2.THRESH_OTSU)
    dark_HW = skin_HW & (blue_HW <= threshold)
    rest_HW = skin_HW & ~dark_HW
    if not (dark_HW.any() and rest_HW.any()):
        return None
    middle, rest = float(np.median(blue_HW[dark_HW])), float(np.median(blue_HW[rest_HW]))
    if middle > (1 - LEAST_CONTRAST) * rest:
        return None
    whole: Any = dark_HW.astype(np.uint8)
    whole = cv2.morphologyEx(whole, cv2.MORPH_OPEN, np.ones((3, 3), np.uint8))
    whole = cv2.morphologyEx(whole, cv2.MORPH_CLOSE, np.ones((5, 5), np.uint8))
    _, parts_HW = cv2.connectedComponents(whole)
    weights_P = np.bincount(parts_HW.ravel(), _nearness(*parts_HW.shape).ravel())
    weights_P[0] = 0
    region_HW: NDArray[np.bool_] = parts_HW == weights_P.argmax()
    if not weights_P.any() or _central(region_HW) < LEAST_CENTRAL:
        return None
    hull = cv2.convexHull(np.argwhere(region_HW)[:, ::-1].astype(np.int32))
    solid = region_HW.sum() / max(cv2.contourArea(hull), 1)
    return region_HW if solid >= LEAST_SOLID else None


def _inside_rim(brightest_HW: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return what is not a black rim, which begins at the photo's edge."""
    import cv2

    limit = min(_RIM, _RIM_SHARE * float(np.percentile(brightest_HW, 95)))
    black: Any = cv2.dilate((brightest_HW < limit).astype(np.uint8), np.ones((7, 7), np.uint8))
    _, parts_HW = cv2.connectedComponents(black)
    return ~np.isin(parts_HW, np.setdiff1d(_edge(parts_HW), [0]))


def _edge(plane_HW: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([plane_HW[0], plane_HW[-1], plane_HW[:, 0], plane_HW[:, -1]])


def _sides(region_HW: NDArray[np.bool_]) -> int:
    """Return at how many sides of the photo a region is, but for corners."""
    sides = (region_HW[0], region_HW[-1], region_HW[:, 0], region_HW[:, -1])
    return sum(bool(side.mean() > _CORNER) for side in sides)


def _nearness(height: int, width: int) -> NDArray[np.float64]:
    """Return weights H x W, a Gaussian of the distance from the centre."""
    down_H, across_W = (np.arange(extent) - (extent - 1) / 2 for extent in (height, width))
    squares_HW = (down_H[:, None] ** 2 + across_W**2) / (min(height, width) / 4) ** 2
    return np.asarray(np.exp(-squares_HW / 2))


def _central(region_HW: NDArray[np.bool_]) -> float:
    height, width = region_HW.shape
    third = min(height, width) // 3
    top, left = (height - third) // 2, (width - third) // 2
    return float(region_HW[top : top + third, left : left + third].mean())


def touching(region_HW: NDArray[np.bool_]) -> float:
    """Return how far a region lies along the photo's edge, in sides of a square of its area."""
    return float(_edge(region_HW).sum() / max(region_HW.sum(), 1) ** 0.5)


def outside(region_HW: NDArray[np.bool_], seen: Edges) -> float:
    """Return the share of a region outside of the part that the networks see."""
    height, width = region_HW.shape
    down_H, across_W = ((np.arange(extent) + 0.5) / extent for extent in (height, width))
    rows_H = (down_H > seen[1]) & (down_H < seen[3])
    columns_W = (across_W > seen[0]) & (across_W < seen[2])
    inside_HW = region_HW & rows_H[:, None] & columns_W
    return 1 - float(inside_HW.sum() / max(region_HW.sum(), 1))
