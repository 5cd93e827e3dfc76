"""Images of 480 x 640 that show no skin: some by their colours, some by what is drawn in them."""

from collections.abc import Callable

import cv2
import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]


def _bytes(pixels_HW3: NDArray[np.floating]) -> Pixels:
    return pixels_HW3.clip(0, 255).astype(np.uint8)


def _page(rng: np.random.Generator) -> NDArray[np.floating]:
    page_HW = np.full((480, 640), 240.0)
    for top in range(30, 450, 18):
        for left in range(40, 580, 45):
            width = int(rng.integers(15, 40))
            page_HW[top : top + 9, left : left + width] = rng.uniform(20, 140, (9, width))
    return page_HW


def document(rng: np.random.Generator) -> Pixels:
    """Paint a page of dark words on grey paper."""
    return _bytes(np.repeat(_page(rng)[..., None], 3, axis=2))


def letter(rng: np.random.Generator) -> Pixels:
    """Paint a page of dark words on cream paper in warm light, held askew."""
    turn = cv2.getRotationMatrix2D((320, 240), rng.uniform(-4, 4), 1.1)
    page_HW = cv2.warpAffine(_page(rng), turn, (640, 480), borderMode=cv2.BORDER_REPLICATE)
    return _bytes((page_HW + rng.normal(0, 3, page_HW.shape))[..., None] * (1, 0.9, 0.73))


def warm_screenshot(rng: np.random.Generator) -> Pixels:
    """Paint windows of flat beige and brown with lines of dark words."""
    screen_HW3 = np.full((480, 640, 3), (236.0, 208.0, 180.0))
    for _ in range(9):
        top, left = rng.integers(45, 370), rng.integers(0, 450)
        paper_3 = np.array((225, 170, 140)) + rng.uniform(-30, 25)
        screen_HW3[top : top + 100, left : left + 180] = paper_3
        for line in range(top + 12, top + 90, 16):
            screen_HW3[line : line + 5, left + 10 : left + 120] = (80, 50, 40)
    return _bytes(screen_HW3)


def landscape(rng: np.random.Generator) -> Pixels:
    """Paint a blue sky above green hills."""
    scene_HW3 = np.full((480, 640, 3), (150.0, 180.0, 235.0))
    hill_W = 480 * (0.5 + 0.1 * np.sin(np.linspace(0, 9, 640) + rng.uniform(0, 6)))
    below_HW = np.arange(480)[:, None] > hill_W
    green_HW3 = np.array((70, 120, 50)) * rng.uniform(0.6, 1.2, (480, 640, 1))
    return _bytes(np.where(below_HW[..., None], green_HW3, scene_HW3))


def speckle(rng: np.random.Generator) -> Pixels:
    """Paint a colour of skin under noise that no camera leaves."""
    return _bytes(np.array((190, 140, 115)) + rng.normal(0, 60, (480, 640, 3)))


FOREIGN: dict[str, Callable[[np.random.Generator], Pixels]] = {
    "document": document,
    "letter": letter,
    "warm screenshot": warm_screenshot,
    "landscape": landscape,
    "speckle": speckle,
}
