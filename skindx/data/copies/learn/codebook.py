"""Learn the projection and the words of `codebook.npz` from painted images."""

import numpy as np
from numpy.typing import NDArray

from skindx.data.copies.describe import (
    COMPONENTS,
    LEADING,
    Codebook,
    fitted,
    mirror_permutation,
    root_sift,
)
from skindx.data.synthetic.painter import CLASSES, paint
from skindx.imaging.hashes import grey

# D = 128, C = components, K = words, N = descriptors

IMAGES = 400
WORDS = 256
SEED = 14
_STEPS = 25
_DESCRIPTORS = 120_000


def painted_descriptors(images: int) -> NDArray[np.float32]:
    """Return RootSIFT descriptors_ND of painted images and of their mirrored versions."""
    found = []
    for number in range(images):
        pixels_HW3 = paint(CLASSES[number % len(CLASSES)], number, SEED).pixels
        found.append(root_sift(fitted(grey(pixels_HW3)))[1])
    upright_ND = np.concatenate(found)
    rng = np.random.default_rng(SEED)
    upright_ND = upright_ND[rng.permutation(len(upright_ND))[: _DESCRIPTORS // 2]]
    return np.concatenate([upright_ND, upright_ND[:, mirror_permutation()]])


def learn(images: int = IMAGES) -> Codebook:
    """Return the codebook of painted images; the same call gives the same one."""
    every_ND = painted_descriptors(images)
    mean_D = every_ND.mean(axis=0)
    mean_D = (mean_D + mean_D[mirror_permutation()]) / 2
    components_CD, odd_C = _components(every_ND - mean_D)
    empty = Codebook(mean_D, components_CD, odd_C, np.empty((2, 0, 0), np.float32))
    codes_NL = empty.encode(every_ND)[:, :LEADING].astype(np.float32)
    words = [_words(codes_NL[:, half::2], np.random.default_rng(SEED + half)) for half in (0, 1)]
    return Codebook(mean_D, components_CD, odd_C, np.stack(words))


def _components(
    centred_ND: NDArray[np.float32],
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the leading components_CD, all even or odd under the mirror, and which are odd."""
    covariance_DD = (centred_ND.T @ centred_ND).astype(np.float64) / len(centred_ND)
    mirror_DD = np.eye(128)[mirror_permutation()]
    strength, parts = [], []
    for sign in (1, -1):
        projector_DD = (np.eye(128) + sign * mirror_DD) / 2
        values, vectors_DV = np.linalg.eigh(projector_DD @ covariance_DD @ projector_DD)
        inside = np.abs(projector_DD @ vectors_DV - vectors_DV).max(axis=0) < 1e-6
        strength.append(values[inside])
        parts.append(vectors_DV[:, inside].T)
    values = np.concatenate(strength)
    order = np.argsort(-values)[:COMPONENTS]
    odd_C = np.repeat([False, True], [len(part) for part in parts])[order]
    return np.concatenate(parts)[order].astype(np.float32), odd_C


def _words(points_NL: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Return the centres of k-means (Lloyd 1982) that starts from random points."""
    words_KL = points_NL[rng.choice(len(points_NL), WORDS, replace=False)]
    for _ in range(_STEPS):
        distance_NK = (words_KL**2).sum(1) - 2 * points_NL @ words_KL.T
        nearest_N = distance_NK.argmin(axis=1)
        count_K = np.bincount(nearest_N, minlength=WORDS)
        sums_KL = np.zeros_like(words_KL)
        np.add.at(sums_KL, nearest_N, points_NL)
        words_KL = np.where(
            count_K[:, None] > 0, sums_KL / np.maximum(count_K, 1)[:, None], words_KL
        )
    return words_KL.astype(np.float32)
