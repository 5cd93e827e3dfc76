"""How the points of one image lie in another one: similarities and affine maps, without chance."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.core.machine import require_extra
from skindx.data.copies.codebook import shipped
from skindx.data.copies.describe import Description

# P, Q = points of the first and the second image, M = matches, I = inliers

FAR = 11000.0
"""Squared distance of two codes beyond which points never match."""
RATIO = 0.85
"""Of the squared distances to the nearest place and to the next one."""
UNIQUE = 0.6
"""From this ratio down a match counts as unique."""
APART = 5.0
"""Pixels between two places that count as two."""
STEPS = (14.0, 9.0, 6.0, 4.0)
"""Pixels within which a match agrees, from the first guess to the last fit."""
LARGEST = 6.0
MODELS = 3
LEAST = 6
"""Inliers without which a model is not looked at."""


@dataclass(frozen=True)
class Model:
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
        """Return how many points agree."""
        return len(self.from_I2)


def models_of(first: Description, second: Description) -> list[Model]:
    """Return the ways in which points agree, upright and mirrored, most inliers first."""
    require_extra("data", "numba", purpose="the search for copies")
    found = [model for mirrored in (False, True) for model in _models(first, second, mirrored)]
    found.sort(key=lambda model: (-model.inliers, model.mirrored))
    return found[:MODELS]


def mirrored_points(points_P4: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """Return the points of an image of this width after it is mirrored left to right."""
    turned_P4 = points_P4.copy()
    turned_P4[:, 0] = width - 1 - points_P4[:, 0]
    turned_P4[:, 3] = (180 - points_P4[:, 3]) % 360
    return turned_P4


def _models(first: Description, second: Description, mirrored: bool) -> list[Model]:
    from skindx.data.copies import geometry_kernels as kernels

    codes_PC, points_P4 = first.codes_PC.astype(np.float32), first.points_P4
    if mirrored:
        codes_PC = codes_PC * shipped().signs
        points_P4 = mirrored_points(points_P4, first.shape_hw[1])
    codes_QC = second.codes_PC.astype(np.float32)
    if min(len(codes_PC), len(codes_QC)) < LEAST:
        return []
    # Whole numbers below 2^24: the same on every machine, whatever multiplies them.
    nearest_P, ratio_P = kernels.match(
        codes_PC @ codes_QC.T,
        (codes_PC**2).sum(1),
        (codes_QC**2).sum(1),
        second.points_P4,
        FAR,
        RATIO,
        2 * APART,
    )
    matched_M = np.flatnonzero(nearest_P >= 0)
    if len(matched_M) < LEAST:
        return []
    matched_M = matched_M[np.argsort(ratio_P[matched_M], kind="stable")]
    from_M4 = points_P4[matched_M].astype(np.float64)
    to_M4 = second.points_P4[nearest_P[matched_M]].astype(np.float64)
    from_M2, to_M2 = np.ascontiguousarray(from_M4[:, :2]), np.ascontiguousarray(to_M4[:, :2])
    free_M = np.ones(len(matched_M), bool)
    found: list[Model] = []
    for _ in range(MODELS):
        inside_M = kernels.hypothesis(from_M4, to_M4, free_M, STEPS[0], LARGEST)
        if inside_M.sum() < LEAST:
            break
        model_6 = kernels.fit_similarity(from_M2, to_M2, inside_M)
        for near in STEPS[1:]:
            closer_M = kernels.agreeing(model_6, from_M2, to_M2, free_M, near)
            if closer_M.sum() < LEAST:
                break
            inside_M = closer_M
            model_6 = kernels.fit_similarity(from_M2, to_M2, inside_M)
            if kernels.distinct(from_M2, to_M2, inside_M, APART).sum() >= 8:
                affine_6 = kernels.fit_affine(from_M2, to_M2, inside_M)
                model_6 = affine_6 if sane(affine_6.reshape(2, 3)) else model_6
        inside_M = kernels.agreeing(model_6, from_M2, to_M2, free_M, STEPS[-1])
        chosen_M = kernels.distinct(from_M2, to_M2, inside_M, APART)
        free_M &= ~inside_M
        if chosen_M.sum() < LEAST or not sane(model_6.reshape(2, 3)):
            free_M &= ~kernels.agreeing(model_6, from_M2, to_M2, free_M, STEPS[0])
            if free_M.sum() < LEAST:
                break
            continue
        transform_23, from_I2 = model_6.reshape(2, 3), from_M2[chosen_M]
        if mirrored:
            flip_33 = np.array([[-1.0, 0, first.shape_hw[1] - 1], [0, 1, 0], [0, 0, 1]])
            transform_23 = transform_23 @ flip_33
            from_I2 = np.column_stack([first.shape_hw[1] - 1 - from_I2[:, 0], from_I2[:, 1]])
        unique = int((ratio_P[matched_M][chosen_M] <= UNIQUE).sum())
        found.append(Model(transform_23, mirrored, from_I2, to_M2[chosen_M], unique))
    return found


def sane(transform_23: NDArray[np.float64]) -> bool:
    """Return whether a map is what a camera, a crop or a screen would do."""
    large, small = np.linalg.svd(transform_23[:, :2], compute_uv=False)
    return bool(large <= LARGEST and small * LARGEST >= 1 and large <= 1.6 * small)
