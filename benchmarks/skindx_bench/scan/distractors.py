"""Distractors on a photo: hairs, a ruler, clothes, freckles, creases, glare."""

import cv2
import numpy as np
from numpy.typing import NDArray

from skindx_bench.scan.texture import noise

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
