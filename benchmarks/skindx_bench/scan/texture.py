"""Skin of any size, grown from a small patch or painted, and distractors on it.

Growing is the by-example noise of Heitz and Neyret 2018 ("High-performance by-example noise using
a histogram-preserving blending operator"): the patch's colours are made Gaussian, random pieces
are laid over each other so that the variance stays, and the colours are made the patch's again.
"""

import cv2
import numpy as np
from numpy.typing import NDArray

# H, W = height, width, S = side of the example

_PIECE = 64
"""Pixels of a piece's side."""
_STEPS = 1024
"""Of the table between Gaussian values and colours."""

_TONES = (
    (236, 200, 180),
    (222, 180, 155),
    (200, 150, 120),
    (165, 115, 85),
    (120, 80, 58),
    (85, 55, 42),
)
"""RGB of painted skin, light to dark."""


def grow(
    example_SS3: NDArray[np.uint8],
    height: int,
    width: int,
    rng: np.random.Generator,
    *,
    piece: int = _PIECE,
) -> NDArray[np.float32]:
    """Return H x W x 3 skin, 0..255, that looks like a patch and repeats nothing of it.

    Neighbouring pieces, `piece` pixels wide, share half of it; the patch is at least as wide.
    """
    flat = _even(example_SS3).reshape(-1, 3)
    mean, (axes, _, _) = flat.mean(axis=0), np.linalg.svd(np.cov(flat.T))
    channels = (flat - mean) @ axes
    order = channels.argsort(axis=0).argsort(axis=0)
    gaussian = _quantile((order + 0.5) / len(flat)).reshape(*example_SS3.shape)
    grown_HW3 = _lay(gaussian.astype(np.float32), height, width, rng, piece)
    for channel in range(3):
        known = np.sort(channels[:, channel])
        places = np.linspace(0, len(known) - 1, _STEPS)
        table = np.interp(places, np.arange(len(known)), known)
        values = _quantile((places + 0.5) / len(known))
        grown_HW3[..., channel] = np.interp(grown_HW3[..., channel], values, table)
    result: NDArray[np.float32] = (grown_HW3 @ axes.T.astype(np.float32)) + mean.astype(np.float32)
    return result


def _even(example_SS3: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Take the shading off a patch."""
    pixels = example_SS3.astype(np.float64)
    even: NDArray[np.float64] = pixels - cv2.GaussianBlur(pixels, (0, 0), 24)
    even += pixels.mean(axis=(0, 1))
    return even


def _quantile(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.special import ndtri

    values: NDArray[np.float64] = ndtri(np.clip(shares, 1e-6, 1 - 1e-6))
    return values


def _lay(
    gaussian_SS3: NDArray[np.float32],
    height: int,
    width: int,
    rng: np.random.Generator,
    wide: int,
) -> NDArray[np.float32]:
    """Cover a plane with random pieces, weighted so that the variance stays 1."""
    half, side = wide // 2, gaussian_SS3.shape[0]
    window: NDArray[np.float32] = np.hanning(wide + 2)[1:-1].astype(np.float32)
    window_PP1: NDArray[np.float32] = np.outer(window, window)[..., None]
    sum_HW3 = np.zeros((height + 2 * wide, width + 2 * wide, 3), np.float32)
    squares_HW1 = np.zeros((*sum_HW3.shape[:2], 1), np.float32)
    for top in range(0, height + wide, half):
        for left in range(0, width + wide, half):
            y, x = rng.integers(0, side - wide + 1, 2)
            piece = np.rot90(gaussian_SS3[y : y + wide, x : x + wide], int(rng.integers(4)))
            place = np.s_[top : top + wide, left : left + wide]
            sum_HW3[place] += window_PP1 * piece
            squares_HW1[place] += window_PP1**2
    inside = np.s_[wide : wide + height, wide : wide + width]
    grown_HW3 = sum_HW3[inside] / np.sqrt(squares_HW1[inside])
    return grown_HW3.astype(np.float32, copy=False)


def paint_skin(height: int, width: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Return H x W x 3 painted skin, 0..255: a tone, mottling of several sizes, fine lines."""
    light = rng.uniform(0, len(_TONES) - 1)
    low, part = int(light), light - int(light)
    high = min(low + 1, len(_TONES) - 1)
    tone = (1 - part) * np.array(_TONES[low]) + part * np.array(_TONES[high])
    skin_HW3 = np.empty((height, width, 3), np.float32)
    skin_HW3[:] = tone
    for size, strength in ((160, 5.0), (40, 3.0), (9, 2.0), (3, 2.5), (1, 2.0)):
        plane_HW = noise(height, width, size, rng)
        colour = rng.normal(1, 0.25, 3).astype(np.float32)
        skin_HW3 += (strength * rng.uniform(0.4, 1.4)) * plane_HW[..., None] * colour
    return skin_HW3


def noise(height: int, width: int, size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Return H x W smooth noise of mean 0 and deviation about 1, whose spots are `size` pixels."""
    small = rng.normal(0, 1, (height // size + 3, width // size + 3)).astype(np.float32)
    if size == 1:
        return np.ascontiguousarray(small[:height, :width])
    wide_wh = ((small.shape[1] - 1) * size, (small.shape[0] - 1) * size)
    large = cv2.resize(small, wide_wh, interpolation=cv2.INTER_CUBIC)
    plane: NDArray[np.float32] = np.ascontiguousarray(large[:height, :width]) * np.float32(1.4)
    return plane


def shade(pixels_HW3: NDArray[np.float32], rng: np.random.Generator) -> None:
    """Light a photo unevenly, in place, as a lamp or window does."""
    height, width = pixels_HW3.shape[:2]
    small = rng.uniform(0.75, 1.12, (3, 3)).astype(np.float32)
    light_HW = cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)
    pixels_HW3 *= light_HW[..., None] * rng.uniform(0.85, 1.1)


# H, W = photo


def hairs(photo_HW3: NDArray[np.uint8], count: int, rng: np.random.Generator) -> None:
    """Draw hairs, in place: thin curves, darker or lighter than the skin."""
    height, width = photo_HW3.shape[:2]
    for _ in range(count):
        start = rng.uniform(0, (width, height))
        direction, bend = rng.uniform(0, 2 * np.pi), rng.normal(0, 0.012)
        length = int(rng.uniform(25, 160))
        angles = direction + bend * np.arange(length)
        points = start + np.stack([np.cos(angles), np.sin(angles)], axis=1).cumsum(axis=0)
        colour = np.array([rng.uniform(20, 90)] * 3) * [1, 0.85, 0.7]
        line = (points * 8).round().astype(np.int32)[:, None]
        thick = 1 if rng.random() < 0.8 else 2
        cv2.polylines(photo_HW3, [line], False, colour.tolist(), thick, cv2.LINE_AA, 3)


def freckles(photo_HW3: NDArray[np.uint8], count: int, rng: np.random.Generator) -> None:
    """Draw faint spots of 2 to 6 pixels, in place: below the size of a lesion."""
    height, width = photo_HW3.shape[:2]
    for _ in range(count):
        radius = int(rng.uniform(1, 3.4))
        x, y = int(rng.uniform(8, width - 8)), int(rng.uniform(8, height - 8))
        place = np.s_[y - 6 : y + 7, x - 6 : x + 7]
        spot = np.zeros((13, 13), np.float32)
        cv2.circle(spot, (6, 6), radius, 1.0, -1, cv2.LINE_AA)
        spot = cv2.GaussianBlur(spot, (0, 0), 0.8)
        darker = 1 - spot[..., None] * rng.uniform(0.08, 0.35) * np.array([0.7, 1, 1.1])
        photo_HW3[place] = np.clip(photo_HW3[place] * darker, 0, 255).astype(np.uint8)


def creases(photo_HW3: NDArray[np.uint8], count: int, rng: np.random.Generator) -> None:
    """Draw folds of the skin, in place: long soft dark lines."""
    height, width = photo_HW3.shape[:2]
    for _ in range(count):
        side = int(rng.uniform(120, 380))
        if side >= min(height, width):
            continue
        left, top = int(rng.uniform(0, width - side)), int(rng.uniform(0, height - side))
        plane = np.zeros((side, side), np.float32)
        angles = rng.uniform(0, 2 * np.pi) + rng.normal(0, 0.006) * np.arange(side)
        points = side / 2 + np.stack([np.cos(angles), np.sin(angles)], 1).cumsum(0) - side / 3
        cv2.polylines(plane, [points.round().astype(np.int32)[:, None]], False, 1.0, 2, cv2.LINE_AA)
        plane = cv2.GaussianBlur(plane, (0, 0), rng.uniform(1.5, 4)) * rng.uniform(0.5, 1.2)
        ground = photo_HW3[top : top + side, left : left + side]
        darker = 1 - np.clip(plane, 0, 0.5)[..., None] * np.array([0.7, 1, 1])
        ground[:] = np.clip(ground * darker, 0, 255).astype(np.uint8)


def ruler(photo_HW3: NDArray[np.uint8], rng: np.random.Generator) -> tuple[float, ...]:
    """Lay a ruler with numbers along the lower or upper side, in place; return its rectangle."""
    height, width = photo_HW3.shape[:2]
    thick, step = int(rng.uniform(40, 80)), rng.uniform(6, 14)
    length = min(width - 20, int(step * 100))
    left = int(rng.uniform(5, width - length - 5))
    top = 5 if rng.random() < 0.5 else height - thick - 5
    strip = photo_HW3[top : top + thick, left : left + length]
    strip[:] = np.array([238, 236, 226]) - rng.integers(0, 25)
    for tick in range(int(length / step)):
        x = int(tick * step)
        long_ = 0.55 if tick % 10 == 0 else 0.4 if tick % 5 == 0 else 0.25
        cv2.line(strip, (x, 0), (x, int(long_ * thick)), (25, 25, 25), 1)
        if tick % 10 == 0:
            place = (x + 2, thick - 4)
            cv2.putText(strip, str(tick // 10), place, 0, thick / 110, (20, 20, 20), 1, cv2.LINE_AA)
    return left, top, left + length, top + thick


def clothes(photo_HW3: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.bool_]:
    """Cover one side with cloth or wall, in place; return H x W where skin is left."""
    height, width = photo_HW3.shape[:2]
    upright = rng.random() < 0.6
    length, depth = (height, width) if upright else (width, height)
    edge = (
        depth
        * rng.uniform(0.06, 0.28)
        * (1 + 0.18 * np.sin(np.arange(length) / length * rng.uniform(2, 7) + rng.uniform(0, 6)))
    )
    covered = np.arange(depth)[None] < edge[:, None]
    if rng.random() < 0.5:
        covered = covered[:, ::-1]
    covered_HW = np.ascontiguousarray(covered if upright else covered.T)
    colour = rng.choice(
        [[40, 60, 120], [60, 110, 90], [90, 95, 100], [35, 38, 45], [130, 170, 200]]
    )
    weave = 8 * noise(height, width, 2, rng) + 10 * noise(height, width, 60, rng)
    cloth = np.clip(colour + weave[..., None], 0, 255).astype(np.uint8)
    photo_HW3[covered_HW] = cloth[covered_HW]
    near = cv2.GaussianBlur(covered_HW.astype(np.float32), (0, 0), 6)
    shadow = 1 - 0.35 * np.where(covered_HW, 0, near)[..., None]
    photo_HW3[:] = np.clip(photo_HW3 * shadow, 0, 255).astype(np.uint8)
    return ~covered_HW
