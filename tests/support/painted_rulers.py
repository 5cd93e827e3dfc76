"""Rulers drawn on skin, seen by a camera."""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from skindx.data.synthetic.painter import bare_skin


@dataclass(frozen=True)
class Painted:
    """How a ruler is drawn; lengths of ticks are in distances between them."""

    ticks: int = 60
    period: float = 12.0
    steps: tuple[tuple[int, float], ...] = ((10, 5.0), (5, 4.0), (1, 3.0))
    """From the longest: every so many ticks one of that length."""
    angle: float = 0.0
    """Degrees."""
    tilt: float = 0.0
    """How much nearer one end is than the other, as a share."""
    blur: float = 0.6
    """Pixels, as all below are at the camera's size."""
    noise: float = 3.0
    """Grey levels."""
    dark: bool = True
    numbers: bool = True
    size_wh: tuple[int, int] = (1200, 900)


def paint_skin(size_wh: tuple[int, int], seed: int = 0) -> NDArray[np.float32]:
    skin = bare_skin(np.random.default_rng(seed), size_wh[::-1]) * 255
    return skin.astype(np.float32)


def paint_ruler(how: Painted, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Return the photo and where the ticks meet the ruler's edge, ticks_T2."""
    fine = 24.0  # pixels from tick to tick on the drawing
    length, wide = round((how.ticks + 4) * fine), round(14 * fine)
    body, ink = ((238, 236, 228), (25, 25, 30)) if how.dark else ((40, 42, 48), (235, 235, 235))
    drawn = np.full((wide, length, 3), body, np.uint8)
    for tick in range(how.ticks):
        long = next(size for step, size in how.steps if tick % step == 0)
        x = round((tick + 2.5) * fine)
        cv2.line(drawn, (x, 0), (x, round(long * fine)), ink, 5)
        if how.numbers and tick % how.steps[0][0] == 0:
            number = str(tick // how.steps[0][0])
            cv2.putText(drawn, number, (x - 20, round(8.5 * fine)), 0, 3.0, ink, 8)
    width, height = how.size_wh
    scale, turn = how.period / fine, np.radians(how.angle)
    move = np.array([[1, 0, -length / 2], [0, 1, -wide / 2], [0, 0, 1.0]])
    lean = np.array([[1, 0, 0], [0, 1, 0], [how.tilt / length, 0, 1.0]])
    place = np.array(
        [
            [scale * np.cos(turn), -scale * np.sin(turn), width / 2],
            [scale * np.sin(turn), scale * np.cos(turn), height / 2],
            [0, 0, 1.0],
        ]
    )
    map_33 = place @ lean @ move
    skin = paint_skin(how.size_wh, seed)
    smooth = cv2.GaussianBlur(drawn.astype(np.float32), (0, 0), max(0.3, 0.5 / scale))
    seen = cv2.warpPerspective(smooth, map_33, how.size_wh, flags=cv2.INTER_AREA)
    there = cv2.warpPerspective(np.ones((wide, length), np.float32), map_33, how.size_wh)
    image = skin * (1 - there[..., None]) + seen * there[..., None]
    image = cv2.GaussianBlur(image, (0, 0), max(how.blur, 0.01))
    image += np.random.default_rng(seed).normal(0, how.noise, image.shape)
    edge = np.array([[(tick + 2.5) * fine, 0, 1] for tick in range(how.ticks)]) @ map_33.T
    return np.clip(image, 0, 255).astype(np.uint8), edge[:, :2] / edge[:, 2:]
