"""Overlays of a synthetic site: caption, watermark, ruler, frame of a screenshot.

An overlay belongs to a site, and looks the same on different images of it: such images share many
key points, and are no copies of each other.
"""

from collections.abc import Callable

import cv2
import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

WORDS = ("derma", "atlas", "skin", "clinic", "photo", "image", "medica", "pathology", "library")
INK, _PAPER = (30, 30, 30), (238, 238, 238)


def site_words(site: int) -> str:
    """Return the name of a site as its overlays show it."""
    rng = np.random.default_rng([site, 7])
    first, second = rng.choice(WORDS, 2, replace=False)
    return f"www.{first}{second}{site}.example"


def caption(pixels_HW3: Pixels, site: int) -> Pixels:
    """Add a bar below the image with the site's name and its terms of use."""
    height, width = pixels_HW3.shape[:2]
    bar = max(14, round(0.09 * height))
    ink, paper = (INK, _PAPER) if site % 2 else (_PAPER, INK)
    bar_BW3 = np.full((bar, width, 3), paper, np.uint8)
    write_words(bar_BW3, f"(c) {site_words(site)} - all rights reserved", (0.03, 0.7), 0.86, ink)
    return np.concatenate([pixels_HW3, bar_BW3])


def watermark(pixels_HW3: Pixels, site: int) -> Pixels:
    """Lay the site's name over the image: half transparent, slanted, in three lines."""
    height, width = pixels_HW3.shape[:2]
    ink_HW3, edge_HW3 = np.zeros_like(pixels_HW3), np.zeros_like(pixels_HW3)
    for row in (0.25, 0.55, 0.85):
        place = (0.06, row)
        write_words(edge_HW3, site_words(site), place, 0.88, (255, 255, 255), bold=3)
        write_words(ink_HW3, site_words(site), place, 0.88, (255, 255, 255))
    slant = cv2.getRotationMatrix2D((width / 2, height / 2), 20.0, 1.0)
    ink_HW1, edge_HW1 = (
        cv2.warpAffine(layer, slant, (width, height))[..., :1].astype(np.float32) / 255
        for layer in (ink_HW3, edge_HW3)
    )
    shown_HW3 = pixels_HW3 * (1 - 0.25 * edge_HW1)
    shown_HW3 = shown_HW3 * (1 - 0.45 * ink_HW1) + 255 * 0.45 * ink_HW1
    marked_HW3: Pixels = shown_HW3.clip(0, 255).astype(np.uint8)
    return marked_HW3


def ruler(pixels_HW3: Pixels, site: int) -> Pixels:
    """Lay a paper scale with marks and numbers along the lower edge of the image."""
    height, width = pixels_HW3.shape[:2]
    shown_HW3 = pixels_HW3.copy()
    scale = max(12, round(0.12 * height))
    top = height - scale - round(0.02 * height)
    shown_HW3[top : top + scale] = (245, 243, 235) if site % 2 else (225, 232, 240)
    marks = 40
    for mark in range(marks + 1):
        column = min(width - 1, round((mark + 0.5) * width / (marks + 1)))
        tall = 0.55 if mark % 10 == 0 else 0.4 if mark % 5 == 0 else 0.25
        shown_HW3[top : top + max(2, round(tall * scale)), column] = 20
        if mark % 10 == 0:
            place = (column / width, (top + 0.93 * scale) / height)
            write_words(shown_HW3, f"{mark // 10 + site % 3}", place, 0.02, INK)
    return shown_HW3


def screenshot(pixels_HW3: Pixels, site: int) -> Pixels:
    """Show the image in the window of a browser: bar of the window, address, lines of text."""
    height, width = pixels_HW3.shape[:2]
    above, beside, below = round(0.22 * height), round(0.12 * width), round(0.26 * height)
    page_HW3 = np.full((above + height + below, width + 2 * beside, 3), 250, np.uint8)
    tall, wide = page_HW3.shape[:2]
    rng = np.random.default_rng([site, 11])
    bar = max(8, round(0.45 * above))
    page_HW3[:bar] = rng.integers(60, 225, 3)
    for button in range(3):
        centre = (round((0.03 + 0.035 * button) * wide), bar // 2)
        colour = tuple(int(value) for value in rng.integers(40, 255, 3))
        cv2.circle(page_HW3, centre, max(2, bar // 5), colour, -1, cv2.LINE_AA)
    left, right = round(0.16 * wide), round(0.9 * wide)
    page_HW3[bar // 4 : bar - bar // 4, left:right] = 255
    write_words(page_HW3, f"https://{site_words(site)}/", (0.18, 0.68 * bar / tall), 0.5, INK)
    write_words(page_HW3, "Home   Atlas   Search", (0.12, 0.85 * above / tall), 0.6, INK)
    page_HW3[above : above + height, beside : beside + width] = pixels_HW3
    for line in range(3):
        row = (above + height + (0.3 + 0.3 * line) * below) / tall
        words = " ".join(rng.choice(WORDS, 5))
        write_words(page_HW3, words, (0.12, row), 0.76, (90, 90, 90))
    return page_HW3


OVERLAYS: dict[str, Callable[[Pixels, int], Pixels]] = {
    "caption": caption,
    "watermark": watermark,
    "ruler": ruler,
    "screenshot": screenshot,
}
"""Overlay -> what lays it on an image H x W x 3 (RGB) for a site; some make the image larger."""


def write_words(
    canvas_HW3: Pixels,
    words: str,
    place: tuple[float, float],
    share: float,
    colour: tuple[int, int, int],
    *,
    bold: int = 1,
) -> None:
    """Write words in place: left end of their base line, and their share of the image's width."""
    height, width = canvas_HW3.shape[:2]
    font = cv2.FONT_HERSHEY_SIMPLEX
    (unit, _), _ = cv2.getTextSize(words, font, 1.0, 1)
    size = share * width / unit
    thick = max(1, round(1.6 * size)) + bold - 1
    at = (round(place[0] * width), round(place[1] * height))
    cv2.putText(canvas_HW3, words, at, font, size, colour, thick, cv2.LINE_AA)
