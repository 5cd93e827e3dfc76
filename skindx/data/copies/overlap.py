"""Agreement of two images over their overlap, which no shared overlay can fake.

Under a shared caption, watermark or frame the points of the overlay agree and the rest does not, so
the overlap is measured square by square, in its tones, for holes between the points that agree, and
in its gradients.

A gradient is divided by its length where it is clear, and vanishes where it is noise (normalised
gradient field: Haber, Modersitzki 2006, "Intensity gradient based registration and fusion of
multi-modal images"). So a strong edge counts no more than a faint one. In a correlation the words
and frames that different images share outweigh everything else; here they count by their area, and
thin lines not at all.
"""

import numpy as np
from numpy.typing import NDArray

from skindx.data.copies.describe import Description
from skindx.data.copies.geometry import Aligned

# I = inliers, P = points, D = discs, S = squares, H, W = sides of the frame


_SQUARE = 16
"""Half-size pixels."""
_SHOWS = 40.0
"""Variance in grey levels squared from which on a square shows something."""
_MANY = 30
"""Inliers that would lie in every part of a copy."""
_TONES = 20.0
"""Grey levels."""
_STEP = 8
"""Half-size pixels between the middles of discs."""
_NEAR = 3.0
"""Half-size pixels from an inlier within which a point agrees."""
_AWAY = 10.0
"""Half-size pixels from all inliers: what agrees there is no shared caption."""


def away(at_I2: NDArray[np.float64], shape_hw: tuple[int, int]) -> NDArray[np.bool_]:
    import cv2

    free_HW = np.full(shape_hw, 255, np.uint8)
    for x, y in np.rint(at_I2).astype(int).tolist():
        cv2.circle(free_HW, (x, y), round(_AWAY), 0, -1)
    return free_HW > 0


def consent(
    first: Description,
    second: Description,
    aligned: Aligned,
    at_I2: NDArray[np.float64],
    ncc: tuple[NDArray[np.float32], NDArray[np.float32]],
) -> tuple[float, float]:
    """Return the share of squares that agree, and how much of the overlap no block denies.

    A square in which both images have points agrees by an inlier or by its correlation. Under a
    shared overlay the rest of the images, a whole block of squares, agrees in nothing.
    """
    import cv2

    ncc_HW, weight_HW = ncc
    height, width = (-(-side // _SQUARE) for side in ncc_HW.shape)
    shape = (height, width)
    marked = [
        _count(shown_points(image, aligned, to_first=image is first), shape) >= 2
        for image in (first, second)
    ]
    joined_SS = cv2.dilate(
        (_count(np.rint(at_I2).astype(int), shape) > 0).astype(np.uint8), np.ones((3, 3), np.uint8)
    )
    exact_SS = _count(np.rint(at_I2).astype(int), shape) > 0
    pad = ((0, height * _SQUARE - ncc_HW.shape[0]), (0, width * _SQUARE - ncc_HW.shape[1]))
    squares = (height, _SQUARE, width, _SQUARE)
    sum_SS, weight_SS = (
        np.pad(field, pad).reshape(squares).sum(axis=(1, 3))
        for field in (ncc_HW * weight_HW, weight_HW)
    )
    mean_SS = sum_SS / (weight_SS + 8)
    seen_SS = marked[0] & marked[1]
    # What only one of them shows, far from all inliers, denies too.
    shows_SS = np.maximum(*(_variance(aligned, field_HW, pad) for field_HW in both(aligned)))
    alone_SS = (shows_SS > _SHOWS) & (joined_SS == 0) & (mean_SS < 0.4)
    denied_SS = seen_SS & ~exact_SS & (mean_SS < np.where(joined_SS > 0, 0.25, 0.4)) | alone_SS
    agreed_SS = exact_SS | (seen_SS & (mean_SS > 0.6))
    share = agreed_SS.sum() / max(1, agreed_SS.sum() + denied_SS.sum())
    _, _, stats, _ = cv2.connectedComponentsWithStats(denied_SS.astype(np.uint8), connectivity=8)
    block = max((int(row[cv2.CC_STAT_AREA]) for row in stats[1:]), default=0)
    shown = max(1.0, float(aligned.shown_HW.sum()) / _SQUARE**2)
    return float(share), 1 - min(1.0, block / shown)


def both(aligned: Aligned) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the two images in their common frame."""
    return aligned.first_HW, aligned.second_HW


def _variance(
    aligned: Aligned, field_HW: NDArray[np.float32], pad: tuple[tuple[int, int], tuple[int, int]]
) -> NDArray[np.float64]:
    """Return the variance in each square of what is shown; 0 where little is."""
    mask_HW = np.pad(aligned.shown_HW, pad).astype(np.float64)
    value_HW = np.pad(field_HW, pad) * mask_HW
    height, width = mask_HW.shape
    squares = (height // _SQUARE, _SQUARE, width // _SQUARE, _SQUARE)
    count_SS, sum_SS, square_SS = (
        values_HW.reshape(squares).sum(axis=(1, 3))
        for values_HW in (mask_HW, value_HW, value_HW**2)
    )
    mean_SS = sum_SS / np.maximum(count_SS, 1)
    variance_SS = square_SS / np.maximum(count_SS, 1) - mean_SS**2
    return np.where(count_SS > _SQUARE**2 / 2, variance_SS, 0)


def void(
    first: Description, second: Description, aligned: Aligned, at_I2: NDArray[np.float64]
) -> float:
    """Return the evidence, in nats, that some disc of the overlap shows two different images.

    A scan statistic. Of n points in a disc without an inlier none agrees; at the rate at which the
    points outside agree, that has probability (1 - rate)^n. Both images need points in the disc.
    Inliers of a copy lie among all points; those of a shared frame leave its middle empty.
    """
    from scipy.spatial.distance import cdist

    height, width = aligned.shown_HW.shape
    y, x = np.mgrid[_STEP // 2 : height : _STEP, _STEP // 2 : width : _STEP]
    shown = aligned.shown_HW[y, x]
    middle_D2 = np.stack([x[shown], y[shown]], axis=1)
    if not len(middle_D2):
        return 0.0
    radius_D = cdist(middle_D2, at_I2).min(axis=1)
    nats_D = np.full(len(middle_D2), np.inf)
    for image in (first, second):
        # One place counts once, however many points it has.
        place_P2 = np.unique(shown_points(image, aligned, to_first=image is first) // 2, axis=0) * 2
        if not len(place_P2):
            return 0.0
        agree = int((cdist(place_P2, at_I2).min(axis=1) <= _NEAR).sum())
        inside_D = (cdist(middle_D2, place_P2) < radius_D[:, None] - 1).sum(axis=1)
        rate_D = np.minimum(0.95, agree / np.maximum(1, len(place_P2) - inside_D))
        nats_D = np.minimum(nats_D, -inside_D * np.log1p(-rate_D))
    return float(nats_D.max())


def closed(at_I2: NDArray[np.float64], shape_hw: tuple[int, int]) -> float:
    """Return 1 - the share of the inliers' hull in the largest disc inside it without an inlier.

    The frame of a screenshot, or a caption above and one below, surround such a hole.
    """
    import cv2

    place_I2 = np.rint(at_I2).astype(np.int32)
    hull_HW = np.zeros((shape_hw[0] + 2, shape_hw[1] + 2), np.uint8)
    cv2.fillConvexPoly(hull_HW, cv2.convexHull(place_I2 + 1), 255)
    area = max(1.0, float((hull_HW > 0).sum()))
    for x, y in (place_I2 + 1).tolist():
        if 0 < x <= shape_hw[1] and 0 < y <= shape_hw[0]:
            hull_HW[y, x] = 0
    radius = float(cv2.distanceTransform(hull_HW, cv2.DIST_L2, 5).max())
    return 1 - float(np.pi) * radius**2 / area * min(1.0, len(at_I2) / _MANY)


def tone(aligned: Aligned, at_I2: NDArray[np.float64]) -> float:
    """Return in which share of the overlap one gain and one offset explain the brightness.

    They are fitted near the inliers: under a shared overlay they fit the overlay alone.
    """
    import cv2

    first_HW, second_HW = (cv2.GaussianBlur(field, (0, 0), 3.0) for field in both(aligned))
    near_HW = aligned.shown_HW & ~away(at_I2, (first_HW.shape[0], first_HW.shape[1]))
    near_HW = near_HW if near_HW.sum() > 50 else aligned.shown_HW
    x_P, y_P = first_HW[near_HW].astype(np.float64), second_HW[near_HW].astype(np.float64)
    # The line of equal spreads: the same whichever of the two is the first.
    gain = y_P.std() / max(x_P.std(), 1.0)
    rest_HW = np.abs((first_HW - x_P.mean()) * gain - (second_HW - y_P.mean()))
    rest_HW = rest_HW / max(1.0, float(np.sqrt(gain)))
    return float((rest_HW[aligned.shown_HW] < _TONES).mean())


def _count(at_P2: NDArray[np.int_], shape: tuple[int, int]) -> NDArray[np.int_]:
    """Return how many places lie in each square of the frame."""
    height, width = shape
    x_P, y_P = (at_P2 // _SQUARE).T
    inside_P = (x_P >= 0) & (y_P >= 0) & (x_P < width) & (y_P < height)
    flat = np.bincount(y_P[inside_P] * width + x_P[inside_P], minlength=height * width)
    return flat.reshape(height, width)


def shown_points(image: Description, aligned: Aligned, *, to_first: bool) -> NDArray[np.int_]:
    """Return the points of an image that lie in the overlap, in pixels of the frame."""
    at_P2 = image.points_P4[:, :2].astype(np.float64)
    if not to_first:  # from the second image to the first, and on to the frame
        linear_22, move_2 = aligned.transform_23[:, :2], aligned.transform_23[:, 2]
        at_P2 = (at_P2 - move_2) @ np.linalg.inv(linear_22).T
    at_P2 = at_P2 @ aligned.to_frame_23[:, :2].T + aligned.to_frame_23[:, 2]
    pixel_P2 = np.rint(at_P2).astype(int)
    height, width = aligned.shown_HW.shape
    inside_P = ((pixel_P2 >= 0) & (pixel_P2 < (width, height))).all(axis=1)
    pixel_P2 = pixel_P2[inside_P]
    shown_P2: NDArray[np.int_] = pixel_P2[aligned.shown_HW[pixel_P2[:, 1], pixel_P2[:, 0]]]
    return shown_P2


Field = NDArray[np.float32]

_NOISE = 0.5
"""Grey levels a half-size pixel: the length of a gradient that counts by its half."""
_BLUR = 1.5
_THIN = 9
"""Half-size pixels: in a median over such a square lines of less than half its side vanish."""
_LEAST = 30.0
"""Sum of weights from which on the gradients count."""


def beneath(aligned: Aligned) -> float:
    """Return how parallel the gradients are: 1 if all are, about 0 in images of different things.

    Each place counts by how clear its gradients are in both images.
    """
    import cv2

    # Where only one of them shows something there is no gradient of both.
    inside_HW = cv2.erode(aligned.shown_HW.astype(np.uint8), np.ones((5, 5), np.uint8))
    (x_HW, y_HW), (u_HW, v_HW) = (
        _directions(_without_lines(field_HW, aligned.shown_HW))
        for field_HW in (aligned.first_HW, aligned.second_HW)
    )
    agree_HW = inside_HW * (x_HW * u_HW + y_HW * v_HW)
    most_HW = inside_HW * np.hypot(x_HW, y_HW) * np.hypot(u_HW, v_HW)
    return float(agree_HW.sum() / (most_HW.sum() + _LEAST))


def _directions(field_HW: Field) -> tuple[Field, Field]:
    """Return the normalised gradient field: across and along."""
    import cv2

    smooth_HW = cv2.GaussianBlur(field_HW, (0, 0), _BLUR)
    x_HW = cv2.Sobel(smooth_HW, cv2.CV_32F, 1, 0, scale=1 / 8)
    y_HW = cv2.Sobel(smooth_HW, cv2.CV_32F, 0, 1, scale=1 / 8)
    length_HW = np.sqrt(x_HW**2 + y_HW**2 + _NOISE**2)
    return x_HW / length_HW, y_HW / length_HW


def _without_lines(field_HW: Field, shown_HW: NDArray[np.bool_]) -> Field:
    import cv2

    # What is not shown must not reach into what is.
    middle = float(field_HW[shown_HW].mean())
    filled_HW = np.where(shown_HW, field_HW, middle).clip(0, 255).astype(np.uint8)
    return np.asarray(cv2.medianBlur(filled_HW, _THIN), np.float32)
