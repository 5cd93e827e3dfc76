"""Painted images of what is no skin, to see whether a gate keeps them out."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

HEIGHT, WIDTH = 480, 640


def document(rng: np.random.Generator) -> Pixels:
    """Paint a page of dark words on nearly white paper, in slightly uneven light."""
    page_HW = np.full((HEIGHT, WIDTH), rng.uniform(225, 250))
    for top in range(30, HEIGHT - 30, 18):
        left = 40
        while left < WIDTH - 60:
            width = int(rng.integers(10, 50))
            page_HW[top : top + 9, left : left + width] = rng.uniform(20, 140, (9, width))
            left += width + 8
    return _grey(page_HW * np.linspace(1, rng.uniform(0.8, 1), WIDTH))


def screenshot(rng: np.random.Generator) -> Pixels:
    """Paint windows of flat colours with a blue bar, as programs look."""
    screen_HW3 = np.full((HEIGHT, WIDTH, 3), 245.0)
    screen_HW3[:40] = (40, 90, 170)
    for _ in range(8):
        top, left = rng.integers(50, HEIGHT - 100), rng.integers(0, WIDTH - 150)
        screen_HW3[top : top + 80, left : left + 140] = rng.uniform(200, 255)
        screen_HW3[top + 10 : top + 14, left + 10 : left + 100] = 60
    return screen_HW3.astype(np.uint8)


def landscape(rng: np.random.Generator) -> Pixels:
    """Paint a blue sky above green hills."""
    rows_H1 = np.linspace(0, 1, HEIGHT)[:, None]
    sky_HW3 = (1 - rows_H1[..., None]) * (90, 150, 230) + rows_H1[..., None] * (190, 215, 240)
    hill_W = HEIGHT * (0.5 + 0.1 * np.sin(np.linspace(0, 9, WIDTH) + rng.uniform(0, 6)))
    green_HW3 = np.array((70, 120, 50)) * rng.uniform(0.6, 1.2, (HEIGHT, WIDTH, 1))
    below_HW = np.arange(HEIGHT)[:, None] > hill_W
    scene_HW3 = np.where(below_HW[..., None], green_HW3, sky_HW3)
    return scene_HW3.clip(0, 255).astype(np.uint8)


def foliage(rng: np.random.Generator) -> Pixels:
    """Paint leaves: greens of all brightness in patches of all sizes."""
    return _textured(rng, (60, 130, 45))


def water(rng: np.random.Generator) -> Pixels:
    """Paint blue waves."""
    return _textured(rng, (40, 110, 170))


def wood(rng: np.random.Generator) -> Pixels:
    """Paint brown boards: their colours are those of skin, so no gate of colours rejects them."""
    return _textured(rng, (150, 105, 70))


def grey_noise(rng: np.random.Generator) -> Pixels:
    """Paint grey noise."""
    return _grey(rng.uniform(0, 255, (HEIGHT, WIDTH)))


def colour_noise(rng: np.random.Generator) -> Pixels:
    """Paint noise of all colours, coarse enough to stay coloured when it is reduced."""
    small = rng.integers(0, 256, (HEIGHT // 8, WIDTH // 8, 3), dtype=np.uint8)
    large: Pixels = small.repeat(8, axis=0).repeat(8, axis=1)
    return large


KINDS: dict[str, Callable[[np.random.Generator], Pixels]] = {
    "document": document,
    "screenshot": screenshot,
    "landscape": landscape,
    "foliage": foliage,
    "water": water,
    "wood": wood,
    "grey noise": grey_noise,
    "colour noise": colour_noise,
}


def _grey(luma_HW: NDArray[np.float64]) -> Pixels:
    return np.repeat(luma_HW.clip(0, 255).astype(np.uint8)[..., None], 3, axis=2)


def _textured(rng: np.random.Generator, colour: tuple[int, int, int]) -> Pixels:
    shade_HW = np.ones((HEIGHT, WIDTH))
    for size in (1, 2, 4, 8, 16, 32):
        noise = rng.normal(0, 0.12, (HEIGHT // size, WIDTH // size))
        shade_HW += noise.repeat(size, axis=0).repeat(size, axis=1)
    scene_HW3: NDArray[np.float64] = shade_HW[..., None] * np.array(colour)
    return scene_HW3.clip(0, 255).astype(np.uint8)
