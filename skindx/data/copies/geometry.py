"""How one image lies in another one: maps by the points they share, refined by their pixels.

Similarities and affine maps of matched points are tried exhaustively, without chance. Refinement
maximises the enhanced correlation coefficient (Evangelidis, Psarakis 2008). Agreement is the
normalised cross-correlation in a Gaussian window around each pixel, which gain and offset do not
change; a window without texture counts little, because noise alone would decide there.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.core.machine import require_extra
from skindx.data.copies.describe import Description, shipped_codebook

# P, Q = points of the first and the second image, M = matches, I = inliers,
# H, W = sides of the frame: the smaller scale of the two half-size images


FAR = 11000.0
"""Squared distance of two codes beyond which points never match."""
RATIO = 0.85
"""Largest ratio of the squared distances to the nearest and to the next place."""
UNIQUE = 0.6
"""Ratio up to which a match counts as unique."""
APART = 5.0
"""Pixels between two places that count as two."""
STEPS = (14.0, 9.0, 6.0, 4.0)
"""Pixels within which a match agrees, from the first guess to the last fit."""
LARGEST = 6.0
MODELS = 3
_FEW = 64
"""Points up to which BLAS is not asked."""
LEAST_INLIERS = 6
"""Inliers without which a model is not looked at."""


@dataclass(frozen=True)
class AlignmentModel:
    """One way to lay the first image on the second."""

    transform_23: NDArray[np.float64]
    mirrored: bool
    from_I2: NDArray[np.float64]
    """Inliers in the first image, all at different places."""
    to_I2: NDArray[np.float64]
    unique: int
    """How many inliers match much better than any other place."""

    @property
    def inliers(self) -> int:
        return len(self.from_I2)


def models_of(first: Description, second: Description) -> list[AlignmentModel]:
    """Return the ways in which points agree, upright and mirrored, most inliers first."""
    require_extra("data", "numba", purpose="the search for copies")
    models = [model for mirrored in (False, True) for model in _models(first, second, mirrored)]
    return sorted(models, key=lambda model: (-model.inliers, model.mirrored))[:MODELS]


def mirrored_points(points_P4: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """Return the points of an image of this width after it is mirrored left to right."""
    turned_P4 = points_P4.copy()
    turned_P4[:, 0] = width - 1 - points_P4[:, 0]
    turned_P4[:, 3] = (180 - points_P4[:, 3]) % 360
    return turned_P4


def _models(first: Description, second: Description, mirrored: bool) -> list[AlignmentModel]:
    from skindx.data.copies import geometry_kernels as kernels

    codes_PC, points_P4 = first.codes_PC.astype(np.float32), first.points_P4
    if mirrored:
        codes_PC = codes_PC * shipped_codebook().signs
        points_P4 = mirrored_points(points_P4, first.shape_hw[1])
    codes_QC = second.codes_PC.astype(np.float32)
    if min(len(codes_PC), len(codes_QC)) < LEAST_INLIERS:
        return []
    # Whole numbers below 2^24: the same on every machine, whatever multiplies them. Few points are
    # multiplied sooner than the threads of BLAS have met.
    few = len(codes_PC) <= _FEW
    products_PQ = np.einsum("pc,qc->pq", codes_PC, codes_QC) if few else codes_PC @ codes_QC.T
    nearest_P, ratio_P = kernels.match(
        products_PQ,
        (codes_PC**2).sum(1),
        (codes_QC**2).sum(1),
        second.points_P4,
        FAR,
        RATIO,
        2 * APART,
    )
    matched_M = np.flatnonzero(nearest_P >= 0)
    if len(matched_M) < LEAST_INLIERS:
        return []
    matched_M = matched_M[np.argsort(ratio_P[matched_M], kind="stable")]
    from_M4 = points_P4[matched_M].astype(np.float64)
    to_M4 = second.points_P4[nearest_P[matched_M]].astype(np.float64)
    from_M2, to_M2 = np.ascontiguousarray(from_M4[:, :2]), np.ascontiguousarray(to_M4[:, :2])
    free_M = np.ones(len(matched_M), bool)
    models: list[AlignmentModel] = []
    for _ in range(MODELS):
        inside_M = kernels.hypothesis(from_M4, to_M4, free_M, STEPS[0], LARGEST)
        if inside_M.sum() < LEAST_INLIERS:
            break
        model_6 = kernels.fit_similarity(from_M2, to_M2, inside_M)
        for near in STEPS[1:]:
            closer_M = kernels.agreeing(model_6, from_M2, to_M2, free_M, near)
            if closer_M.sum() < LEAST_INLIERS:
                break
            inside_M = closer_M
            model_6 = kernels.fit_similarity(from_M2, to_M2, inside_M)
            if kernels.distinct(from_M2, to_M2, inside_M, APART).sum() >= 8:
                affine_6 = kernels.fit_affine(from_M2, to_M2, inside_M)
                model_6 = affine_6 if sane(affine_6.reshape(2, 3)) else model_6
        inside_M = kernels.agreeing(model_6, from_M2, to_M2, free_M, STEPS[-1])
        chosen_M = kernels.distinct(from_M2, to_M2, inside_M, APART)
        free_M &= ~inside_M
        if chosen_M.sum() < LEAST_INLIERS or not sane(model_6.reshape(2, 3)):
            free_M &= ~kernels.agreeing(model_6, from_M2, to_M2, free_M, STEPS[0])
            if free_M.sum() < LEAST_INLIERS:
                break
            continue
        transform_23, from_I2 = model_6.reshape(2, 3), from_M2[chosen_M]
        if mirrored:
            flip_33 = np.array([[-1.0, 0, first.shape_hw[1] - 1], [0, 1, 0], [0, 0, 1]])
            transform_23 = transform_23 @ flip_33
            from_I2 = np.column_stack([first.shape_hw[1] - 1 - from_I2[:, 0], from_I2[:, 1]])
        unique = int((ratio_P[matched_M][chosen_M] <= UNIQUE).sum())
        models.append(AlignmentModel(transform_23, mirrored, from_I2, to_M2[chosen_M], unique))
    return models


def sane(transform_23: NDArray[np.float64]) -> bool:
    """Return whether a map is what a camera, a crop or a screen would do."""
    large, small = np.linalg.svd(transform_23[:, :2], compute_uv=False)
    return bool(large <= LARGEST and small * LARGEST >= 1 and large <= 1.6 * small)


Field = NDArray[np.float32]

_ECC_STEPS, _ECC_EPSILON, _ECC_BLUR = 30, 1e-4, 5
_BLACK = 6
"""Grey level of what a warp leaves empty, with the noise that JPEG adds."""
WINDOW, FINE_WINDOW, FINE = 6.0, 3.0, 2.0
"""Pixels: sigma of the windows, and of the blur whose rest is fine detail."""
NOISE, FINE_NOISE = 4.0, 2.0
"""Variance of noise in grey levels squared; what has less shows nothing."""
LEAST_PIXELS = 400
LEAST_COVERED = 0.25
"""What overlaps less may be a caption that both share as well as a copy."""


@dataclass(frozen=True)
class Aligned:
    """Two half-size images in one frame."""

    first_HW: Field
    second_HW: Field
    shown_HW: NDArray[np.bool_]
    """Pixels at which both show something."""
    transform_23: NDArray[np.float64]
    """Refined, from first to second, in pixels of the described size."""
    to_frame_23: NDArray[np.float64]
    """Map of the first image's described pixels to those of the frame."""
    covered: float


_UP = np.array([[2.0, 0, 0.5], [0, 2.0, 0.5], [0, 0, 1]])
"""Map of half-size pixels to described pixels."""


def whole(transform_23: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the map as a 3 x 3 matrix."""
    return np.vstack([transform_23, [0, 0, 1.0]])


def align(
    first: Description, second: Description, transform_23: NDArray[np.float64]
) -> Aligned | None:
    """Lay the first image on the second one; None if almost nothing overlaps."""
    import cv2

    half_33 = np.linalg.inv(_UP) @ whole(transform_23) @ _UP
    scale = float(np.sqrt(abs(np.linalg.det(half_33[:2, :2]))))
    # The frame is the one with fewer pixels for the same content.
    to_first = scale > 1
    frame, moved = (first, second) if to_first else (second, first)
    warp_33 = np.linalg.inv(half_33) if not to_first else half_33
    shrink = max(scale, 1 / scale)
    still_HW = frame.small_HW.astype(np.float32)
    loose_HW = moved.small_HW.astype(np.float32)
    sight_HW = (moved.small_HW > _BLACK).astype(np.uint8)
    blurred_HW = loose_HW
    if shrink > 1.1:
        blurred_HW = cv2.GaussianBlur(loose_HW, (0, 0), 0.5 * float(np.sqrt(shrink**2 - 1)))
    warp_33 = _refined(still_HW, blurred_HW, sight_HW, warp_33)
    size_wh = (still_HW.shape[1], still_HW.shape[0])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    laid_HW = cv2.warpAffine(blurred_HW, warp_33[:2], size_wh, flags=flags)
    seen_HW = cv2.warpAffine(sight_HW * 255, warp_33[:2], size_wh, flags=flags)
    inside_HW = cv2.warpAffine(np.full_like(sight_HW, 255), warp_33[:2], size_wh, flags=flags) > 250
    shown_HW = (seen_HW > 250) & (frame.small_HW > _BLACK)
    shown_HW = cv2.erode(shown_HW.astype(np.uint8), np.ones((3, 3), np.uint8)) > 0
    # The frame's share, and the moved image's share, of which the larger is the smaller image's.
    area = float(inside_HW.sum())
    moved_area = moved.small_HW.size / shrink**2
    covered = min(1.0, max(area / still_HW.size, area / moved_area))
    if shown_HW.sum() < LEAST_PIXELS or covered < LEAST_COVERED:
        return None
    frame_to_moved_33 = _UP @ warp_33 @ np.linalg.inv(_UP)
    back_33 = np.linalg.inv(frame_to_moved_33)
    first_to_second_33 = np.asarray(frame_to_moved_33 if to_first else back_33, np.float64)
    start_33 = np.eye(3) if to_first else first_to_second_33
    to_frame_33 = np.asarray(np.linalg.inv(_UP) @ start_33, np.float64)
    first_HW, second_HW = (still_HW, laid_HW) if to_first else (laid_HW, still_HW)
    to_second_23, to_frame_23 = first_to_second_33[:2], to_frame_33[:2]
    return Aligned(first_HW, second_HW, shown_HW, to_second_23, to_frame_23, covered)


def laid_on(
    moved: Description, shape_hw: tuple[int, int], to_moved_23: NDArray[np.float64]
) -> NDArray[np.uint8]:
    """Return an image as it lies on one of this described shape, at half size.

    `to_moved_23` maps described pixels of that one to those of `moved`, whose edge goes on where
    it shows nothing.
    """
    import cv2

    half_33 = np.linalg.inv(_UP) @ whole(to_moved_23) @ _UP
    size_wh = ((shape_hw[1] + 1) // 2, (shape_hw[0] + 1) // 2)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    edge = cv2.BORDER_REPLICATE
    laid_HW: NDArray[np.uint8] = cv2.warpAffine(
        moved.small_HW, half_33[:2], size_wh, flags=flags, borderMode=edge
    )
    return laid_HW


def _refined(
    still_HW: Field, moved_HW: Field, sight_HW: NDArray[np.uint8], warp_33: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the map from `still` to `moved` that correlates best, near the given one."""
    import cv2

    start_23 = warp_33[:2].astype(np.float32)
    criteria = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, _ECC_STEPS, _ECC_EPSILON)
    try:
        _, better_23 = cv2.findTransformECC(
            still_HW, moved_HW, start_23.copy(), cv2.MOTION_AFFINE, criteria, sight_HW, _ECC_BLUR
        )
    except cv2.error:  # it does not converge
        return warp_33
    better_33 = whole(better_23.astype(np.float64))
    corners_33 = np.array([[0, still_HW.shape[1], 0], [0, 0, still_HW.shape[0]], [1, 1, 1.0]])
    moved = np.abs((better_33 - warp_33) @ corners_33)[:2].max()
    return better_33 if np.isfinite(moved) and moved < 12 else warp_33


def local_correlation(
    first_HW: Field, second_HW: Field, shown_HW: NDArray[np.bool_], sigma: float, noise: float
) -> tuple[Field, Field]:
    """Return ncc_HW in Gaussian windows, and weight_HW 0..1: how much texture both have there."""
    import cv2

    mask_HW = shown_HW.astype(np.float32)

    def mean(field_HW: Field) -> Field:
        blurred_HW: Field = cv2.GaussianBlur(field_HW * mask_HW, (0, 0), sigma)
        return blurred_HW / weight_HW

    weight_HW: Field = np.maximum(cv2.GaussianBlur(mask_HW, (0, 0), sigma), 1e-3)
    x_HW, y_HW = mean(first_HW), mean(second_HW)
    xx_HW = np.maximum(mean(first_HW**2) - x_HW**2, 0)
    yy_HW = np.maximum(mean(second_HW**2) - y_HW**2, 0)
    xy_HW = mean(first_HW * second_HW) - x_HW * y_HW
    ncc_HW = xy_HW / np.sqrt((xx_HW + noise) * (yy_HW + noise))
    both_HW = np.minimum(xx_HW, yy_HW)
    return ncc_HW, mask_HW * both_HW / (both_HW + 4 * noise)
