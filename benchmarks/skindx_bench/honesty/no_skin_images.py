"""Painted images of what is no skin, to see whether anything keeps them out.

`KINDS` are those that a check of colours is meant for, with two that it cannot find; `WARM` have
the colours of skin: what they show else must tell them.
"""

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


def letter(rng: np.random.Generator) -> Pixels:
    """Paint a photo of a typed page on cream paper under warm light, held a little askew."""
    import cv2

    page_HW = document(rng)[..., 0].astype(np.float64)
    turn = cv2.getRotationMatrix2D((WIDTH / 2, HEIGHT / 2), rng.uniform(-4, 4), 1.1)
    page_HW = cv2.warpAffine(page_HW, turn, (WIDTH, HEIGHT), borderMode=cv2.BORDER_REPLICATE)
    page_HW += rng.normal(0, 3, page_HW.shape)
    warm_3 = np.array((1.0, rng.uniform(0.86, 0.94), rng.uniform(0.66, 0.8)))
    lit_HW3: NDArray[np.float64] = page_HW[..., None] * warm_3
    return lit_HW3.clip(0, 255).astype(np.uint8)


def warm_screenshot(rng: np.random.Generator) -> Pixels:
    """Paint windows of flat beige and brown with dark words in them."""
    screen_HW3 = np.full((HEIGHT, WIDTH, 3), (236.0, 208.0, 180.0))
    screen_HW3[:36] = (150, 85, 60)
    for _ in range(9):
        top, left = rng.integers(45, HEIGHT - 110), rng.integers(0, WIDTH - 190)
        screen_HW3[top : top + 100, left : left + 180] = np.array((225, 170, 140)) + rng.uniform(
            -30, 25
        )
        for line in range(top + 12, top + 90, 16):
            width = int(rng.integers(60, 160))
            screen_HW3[line : line + 5, left + 10 : left + 10 + width] = (80, 50, 40)
    return screen_HW3.clip(0, 255).astype(np.uint8)


def drawing(rng: np.random.Generator) -> Pixels:
    """Paint outlines and filled shapes in crayon colours, skin's among them, on white paper."""
    import cv2

    paper_HW3 = np.full((HEIGHT, WIDTH, 3), rng.uniform(244, 255), np.uint8)
    inks = ((225, 150, 110), (150, 75, 45), (200, 60, 50), (60, 110, 190), (30, 30, 30))
    for _ in range(14):
        ink = inks[int(rng.integers(len(inks)))]
        centre = int(rng.integers(40, WIDTH - 40)), int(rng.integers(40, HEIGHT - 40))
        axes = int(rng.integers(20, 90)), int(rng.integers(20, 90))
        filled = -1 if rng.random() < 0.5 else 4
        cv2.ellipse(paper_HW3, centre, axes, float(rng.uniform(0, 180)), 0, 360, ink, filled)
        other = int(rng.integers(WIDTH)), int(rng.integers(HEIGHT))
        cv2.line(paper_HW3, centre, other, ink, 3)
    return paper_HW3


def desert(rng: np.random.Generator) -> Pixels:
    """Paint red sand under a blue sky: half of it has the colours of skin."""
    scene_HW3 = landscape(rng)
    sand_HW3 = _textured(rng, (190, 130, 85))
    sky_HW = scene_HW3[..., 2] > scene_HW3[..., 1]
    both_HW3: Pixels = np.where(sky_HW[..., None], scene_HW3, sand_HW3)
    return both_HW3


def speckle(rng: np.random.Generator) -> Pixels:
    """Paint a colour of skin under noise that no camera leaves."""
    noisy_HW3 = np.array((190.0, 140.0, 115.0)) + rng.normal(0, 60, (HEIGHT, WIDTH, 3))
    return noisy_HW3.clip(0, 255).astype(np.uint8)


WARM: dict[str, Callable[[np.random.Generator], Pixels]] = {
    "letter": letter,
    "warm screenshot": warm_screenshot,
    "drawing": drawing,
    "desert": desert,
    "speckle": speckle,
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
