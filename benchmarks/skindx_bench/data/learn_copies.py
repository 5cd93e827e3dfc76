"""Learn the package's `codebook.npz` and `acceptance.json` from planted pairs of painted images.

`python -m skindx_bench.data.learn_copies codebook`, then `... acceptance`. Neither reads a real
image. Copies are those of `copy_variants`, and second photos: another light, place, grain.
What only seems a copy are different paintings, also under one caption, watermark, ruler,
screenshot, border or vignette, and round moles of one size.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import write_json
from skindx.data.copies.describe import (
    CODEBOOK_FILE,
    COMPONENTS,
    LEADING,
    Codebook,
    Description,
    describe,
    describe_bytes,
    fitted,
    root_sift,
)
from skindx.data.copies.verify import ACCEPT, ACCEPTANCE_FILE, FEATURES, RANGES, evidence_of, terms
from skindx.data.synthetic.painter import CLASSES, encode_jpeg, paint
from skindx.imaging.hashes import grey
from skindx_bench.data.copy_variants import KINDS, OVERLAYS, make_copy

# N = models of pairs, F = features, T = terms

PAINTINGS = 64
SEED = 41
MARGIN = 3.0
"""Logits between the most doubtful wrong pair and ACCEPT."""
_PULL = 0.002
"""L2 penalty of a weight, for each pair."""
_LEAST = {"void": 0.4}
"""Least weight of a feature; else 0. Few painted pairs have a void, which is evidence in nats."""

_DENIES = {"beneath": 30.0}
"""Weight of a feature that only denies: at the upper end of its range it changes nothing.

It is no part of the fit, so that nothing else leans on it. Its range ends below what all but the
fewest painted copies have, and above what most pairs of dark paintings under one watermark have.
"""

Pixels = NDArray[np.uint8]


def second_photo(pixels_HW3: Pixels, rng: np.random.Generator) -> Pixels:
    """Show the same skin again: moved, turned, nearer, in another light, with other grain."""
    height, width = pixels_HW3.shape[:2]
    middle = ((width - 1) / 2, (height - 1) / 2)
    turn_23 = cv2.getRotationMatrix2D(middle, rng.uniform(-25, 25), rng.uniform(0.9, 1.3))
    turn_23[:, 2] += rng.uniform(-0.08, 0.08, 2) * (width, height)
    turn_23[:, :2] += rng.uniform(-0.04, 0.04, (2, 2))
    moved_HW3 = cv2.warpAffine(
        pixels_HW3, turn_23, (width, height), borderMode=cv2.BORDER_REFLECT_101
    ).astype(np.float32)
    y, x = np.mgrid[0:height, 0:width] / max(height, width) - 0.5
    light_HW = rng.uniform(0.8, 1.2) + rng.uniform(-0.3, 0.3) * x + rng.uniform(-0.3, 0.3) * y
    moved_HW3 = cv2.GaussianBlur(moved_HW3, (0, 0), rng.uniform(0.3, 1.0)) * light_HW[..., None]
    grain_HW3 = rng.normal(0, rng.uniform(1, 4), moved_HW3.shape)
    return np.asarray((moved_HW3 + grain_HW3).clip(0, 255), np.uint8)


def vignette(pixels_HW3: Pixels, size: float) -> Pixels:
    """Darken what lies outside a round aperture."""
    height, width = pixels_HW3.shape[:2]
    y, x = np.mgrid[0:height, 0:width]
    away_HW = np.hypot(x - width / 2, y - height / 2) / (size * max(height, width) / 2)
    shown_HW = (1 / (1 + np.exp((away_HW - 1) * 30)))[..., None]
    return np.asarray((pixels_HW3 * shown_HW).clip(0, 255), np.uint8)


def _paintings(count: int) -> list[Pixels]:
    painted = [paint(CLASSES[n % len(CLASSES)], n, SEED).pixels for n in range(count)]
    return [pale(pixels) if n % 3 == 0 else pixels for n, pixels in enumerate(painted)]


def pale(pixels_HW3: Pixels) -> Pixels:
    """Burn the image out, so that it shows little beside what is laid on it."""
    return np.asarray((pixels_HW3.astype(np.float32) * 0.6 + 120).clip(0, 255), np.uint8)


def copies(paintings: list[Pixels]) -> Iterator[tuple[Description, Description]]:
    """Yield described pairs that show the same."""
    rng = np.random.default_rng(SEED)
    for number, pixels_HW3 in enumerate(paintings):
        original = describe(grey(pixels_HW3))
        for shift, kind in enumerate(KINDS):
            if (number + shift) % 5 == 0:
                yield original, describe_bytes(make_copy(kind, pixels_HW3, number, SEED))
        photo = second_photo(pixels_HW3, rng)
        yield original, describe_bytes(encode_jpeg(photo, 85))
        one, other = rng.choice(sorted(KINDS), 2, replace=False)
        first = make_copy(str(one), pixels_HW3, number, SEED)
        yield describe_bytes(first), describe_bytes(make_copy(str(other), pixels_HW3, 7 * number))


def unrelated(paintings: list[Pixels]) -> Iterator[tuple[Description, Description]]:
    """Yield described pairs that do not show the same."""
    rng = np.random.default_rng(SEED + 1)
    sets = [[describe(grey(pixels)) for pixels in paintings]]
    for name in OVERLAYS:
        some = rng.choice(len(paintings), 18, replace=False)
        sets.append([describe(grey(OVERLAYS[name](paintings[at], 0))) for at in some])
    some = rng.choice(len(paintings), 24, replace=False)
    sets.append([describe(grey(vignette(paintings[at], 0.95))) for at in some])
    moles = [paint("Compound_Nevus", 5000 + n, SEED).pixels for n in range(30)]
    sets.append([describe(grey(vignette(pixels, 0.9))) for pixels in moles])
    for described in sets:
        for i in range(len(described)):
            for j in range(i):
                yield described[j], described[i]


def examples(count: int = PAINTINGS) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return features_NF of models, and which belong to copies: of a copy its best model."""
    paintings = _paintings(count)
    features, same = [], []
    for pair in copies(paintings):
        found = [evidence.features_F for evidence in evidence_of(*pair)]
        if found:
            features.append(
                max(found, key=lambda row: float(row[0] + 4 * row[FEATURES.index("ncc")]))
            )
            same.append(True)
    for pair in unrelated(paintings):
        for evidence in evidence_of(*pair):
            features.append(evidence.features_F)
            same.append(False)
    return np.array(features), np.array(same)


def fit(
    features_NF: NDArray[np.float64], same_N: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], float]:
    """Return (weights_T, bias): both classes weigh the same, no weight is below its least.

    The bias puts ACCEPT a MARGIN above the most doubtful wrong pair. Features that only deny are
    added then.
    """
    from scipy.optimize import minimize

    denies_T = np.array([_DENIES.get(name, 0.0) for name in FEATURES])
    terms_NT = np.where(denies_T > 0, 0.0, terms(features_NF))
    mean_T, scale_T = terms_NT.mean(axis=0), terms_NT.std(axis=0) + 1e-9
    scaled_NT = (terms_NT - mean_T) / scale_T
    sign_N = np.where(same_N, 1.0, -1.0)
    weight_N = np.where(same_N, 0.5 / same_N.sum(), 0.5 / (~same_N).sum())

    def loss(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        margin_N = sign_N * (scaled_NT @ values[:-1] + values[-1])
        pull_N = -weight_N * sign_N / (1 + np.exp(np.clip(margin_N, -40, 40)))
        slope = np.append(pull_N @ scaled_NT + _PULL * values[:-1], pull_N.sum())
        value = weight_N @ np.logaddexp(0, -margin_N) + _PULL / 2 * values[:-1] @ values[:-1]
        return float(value), slope

    least_T = scale_T * [_LEAST.get(name, 0.0) for name in FEATURES]
    bounds = [(least, None) for least in least_T.tolist()] + [(None, None)]
    start = np.append(least_T, 0.0)
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds)
    weights_T = found.x[:-1] / scale_T
    worst = float((terms_NT[~same_N] @ weights_T).max())
    bias = float(np.log(ACCEPT / (1 - ACCEPT))) - MARGIN - worst
    ends_T = np.array([RANGES[name][1] for name in FEATURES])
    return np.where(denies_T > 0, denies_T, weights_T), bias - float(denies_T @ ends_T)


def write(found: tuple[NDArray[np.float64], NDArray[np.bool_]] | None = None) -> None:
    """Write the weights, and how they do on the painted pairs, for the package."""
    features_NF, same_N = found or examples()
    weights_T, bias = fit(features_NF, same_N)
    accepted_N = terms(features_NF) @ weights_T + bias >= np.log(ACCEPT / (1 - ACCEPT))
    named = zip(FEATURES, weights_T, strict=True)
    value = {
        "weights": {name: round(float(weight), 5) for name, weight in named},
        "bias": round(bias, 5),
        "painted": {
            "copies": int(same_N.sum()),
            "accepted": int(accepted_N[same_N].sum()),
            "strangers": int((~same_N).sum()),
            "wrongly_accepted": int(accepted_N[~same_N].sum()),
        },
    }
    write_json(ACCEPTANCE_FILE, value)


# D = 128, C = components, K = words, N = descriptors

IMAGES = 400
WORDS = 256
CODEBOOK_SEED = 14
_STEPS = 25
_DESCRIPTORS = 120_000


def mirror_permutation() -> NDArray[np.intp]:
    """Return permutation_D: the descriptor of a mirrored patch is descriptor[permutation].

    OpenCV's SIFT has 4 rows across the point's direction, 4 columns along it, and 8 directions.
    """
    row, column, direction = np.meshgrid(range(4), range(4), range(8), indexing="ij")
    order: NDArray[np.intp] = (((3 - row) * 4 + column) * 8 + (8 - direction) % 8).ravel()
    return order


def write_codebook(path: Path, codebook: Codebook) -> None:
    """Write a codebook for the package."""
    np.savez_compressed(
        path,
        mean_D=codebook.mean_D,
        components_CD=codebook.components_CD,
        odd_C=codebook.odd_C,
        words_HKL=codebook.words_HKL,
    )


def painted_descriptors(images: int) -> NDArray[np.float32]:
    """Return RootSIFT descriptors_ND of painted images and of their mirrored versions."""
    found = []
    for number in range(images):
        pixels_HW3 = paint(CLASSES[number % len(CLASSES)], number, CODEBOOK_SEED).pixels
        found.append(root_sift(fitted(grey(pixels_HW3)))[1])
    upright_ND = np.concatenate(found)
    rng = np.random.default_rng(CODEBOOK_SEED)
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
    words = [
        _words(codes_NL[:, half::2], np.random.default_rng(CODEBOOK_SEED + half)) for half in (0, 1)
    ]
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


if __name__ == "__main__":
    if sys.argv[1:] == ["codebook"]:
        write_codebook(CODEBOOK_FILE, learn())
    elif sys.argv[1:] == ["acceptance"]:
        write()
    else:
        sys.exit(__doc__)
