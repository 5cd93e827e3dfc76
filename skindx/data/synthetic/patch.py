"""The square patch a lesion is drawn in, and the strokes, noise and outlines to draw with.

The middle square [-1, 1] x [-1, 1] of the patch holds the lesion.
"""

from functools import cache

import cv2
import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.float32]
Point = NDArray[np.float64]
SIDE = 192
"""Width and height of the patch in pixels."""
HALF = 1.35
"""The patch covers [-HALF, HALF]: room for halos around the lesion."""


@cache
def grid() -> tuple[Field, Field, Field, NDArray[np.int32]]:
    """Return x, y, radius, and the angle in whole degrees of every patch pixel."""
    axis = np.linspace(-HALF, HALF, SIDE, dtype=np.float32)
    x, y = np.meshgrid(axis, axis)
    angle = np.degrees(np.arctan2(y, x)).astype(np.int32) % 360
    return x, y, np.hypot(x, y), angle


def noise(rng: np.random.Generator, cells: int, shape: tuple[int, int] = (SIDE, SIDE)) -> Field:
    """Return smooth noise, roughly normal, with about `cells` bumps along the shorter side."""
    height, width = shape
    step = min(height, width) / cells
    coarse = (max(2, round(height / step)), max(2, round(width / step)))
    bumps = rng.standard_normal(coarse, dtype=np.float32)
    field: Field = cv2.resize(bumps, (width, height), interpolation=cv2.INTER_CUBIC)
    return field


def soft(depth: Field, width: float) -> Field:
    """Rise from 0 to 1 while `depth` goes from -width/2 to width/2."""
    ramp: Field = np.clip(depth / width + 0.5, 0, 1)
    return ramp * ramp * (3 - 2 * ramp)


def inside(
    rng: np.random.Generator, rough: float, waves: tuple[int, int], radius: float = 0.9
) -> Field:
    """Return the depth inside a closed outline with `waves` lobes of relative height `rough`."""
    theta = np.radians(np.arange(360, dtype=np.float32))
    outline = np.ones(360, dtype=np.float32)
    for k in range(*waves):
        outline += rough * rng.uniform(0.5, 1) / np.sqrt(k) * np.cos(k * theta + rng.uniform(0, 7))
    _, _, distance, angle = grid()
    depth: Field = (radius * outline / outline.max()).astype(np.float32)[angle] - distance
    return depth


def scatter(rng: np.random.Generator, count: int, gap: float, reach: float) -> list[Point]:
    """Return up to `count` points in the disc of radius `reach`, at least `gap` apart."""
    points: list[Point] = []
    for candidate in rng.uniform(-reach, reach, (count * 12, 2)):
        apart = all(np.hypot(*(candidate - point)) >= gap for point in points)
        if np.hypot(*candidate) <= reach and apart:
            points.append(candidate)
        if len(points) == count:
            break
    return points


def pixels(points: Point) -> NDArray[np.int32]:
    """Turn patch coordinates into OpenCV fixed point with 4 fractional bits."""
    return np.round((points + HALF) / (2 * HALF) * (SIDE - 1) * 16).astype(np.int32)


def disc(canvas: Field, centre: Point, radius: float, value: float) -> None:
    """Fill a disc of the patch with `value`, in place."""
    x, y = (int(value) for value in pixels(centre))
    size = round(radius / (2 * HALF) * SIDE * 16)
    cv2.circle(canvas, (x, y), size, value, -1, cv2.LINE_AA, 4)


def stroke(canvas: Field, points: Point, width: float, value: float = 1.0) -> None:
    """Draw a line of the given width through points of the patch, in place."""
    thick = max(1, round(width / (2 * HALF) * SIDE))
    cv2.polylines(canvas, [pixels(points)], False, value, thick, cv2.LINE_AA, 4)


def blank() -> Field:
    return np.zeros((SIDE, SIDE), np.float32)


def walk(rng: np.random.Generator, start: Point, heading: float, length: float) -> Point:
    """Return a winding line of 16 points that sets out from `start` towards `heading`."""
    swing = rng.normal(0, 0.35, 15).cumsum()
    turns = heading + swing - np.linspace(0, 1, 15) * swing[-1] * 0.7
    steps = length / 15 * np.stack([np.cos(turns), np.sin(turns)], 1)
    return np.vstack([start, start + steps.cumsum(0)])
