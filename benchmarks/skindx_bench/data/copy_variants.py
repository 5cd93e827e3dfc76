"""Copies of an image as people and sites make them, and the overlays of a synthetic site.

A copy shows what its original shows. Kinds have names and are made in each of eight orientations;
hashes of the whole image miss most of them, so that original and copy are torn apart by a split.

An overlay (caption, watermark, ruler, frame of a screenshot) belongs to a site, and looks the same
on different images of it: such images share many key points, and are no copies of each other.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import cv2
import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.data.synthetic.painter import encode_jpeg

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


Change = Callable[[Pixels, np.random.Generator], Pixels]

ORIENTATIONS = 8
MIRRORED = (1, 2, 4, 7)
"""Orientations that are mirror images; see `oriented`."""
SITES = 3
"""Watermark, caption and screenshot of copies are those of so many sites."""


@dataclass(frozen=True, slots=True)
class VariantKind:
    """How a kind of copy is made; `quality` is that of its JPEG."""

    change: Change
    quality: int = 88
    mirrored: bool = False
    """Whether only the four mirrored orientations are used."""


def make_copy(kind: str, pixels_HW3: Pixels, number: int, seed: int = 0) -> bytes:
    """Return a copy of an RGB image as JPEG; equal arguments give equal bytes.

    The copies of a kind are numbered: the number picks the orientation, so that eight copies in a
    row have all of them. The image is turned first, so that words stand upright. Raises UserError
    for a kind that does not exist.
    """
    if kind not in KINDS:
        raise UserError(f"no copy is called {kind!r}; choose one of {', '.join(KINDS)}.")
    made = KINDS[kind]
    orientation = MIRRORED[number % len(MIRRORED)] if made.mirrored else number % ORIENTATIONS
    rng = np.random.default_rng([seed, number, zlib.crc32(kind.encode())])
    turned_HW3 = np.ascontiguousarray(oriented(pixels_HW3, orientation))
    return encode_jpeg(np.ascontiguousarray(made.change(turned_HW3, rng)), made.quality)


def oriented(pixels_HW3: Pixels, orientation: int) -> Pixels:
    """Return an orientation 4t + 2v + h: transposed if t, then upside down if v, mirrored if h."""
    turned = pixels_HW3.swapaxes(0, 1) if orientation & 4 else pixels_HW3
    turned = turned[::-1] if orientation & 2 else turned
    return turned[:, ::-1] if orientation & 1 else turned


def crop(share: float, pixels_HW3: Pixels, rng: np.random.Generator) -> Pixels:
    """Cut this share off the width and off the height, at a random place."""
    height, width = pixels_HW3.shape[:2]
    rows, columns = (max(1, round((1 - share) * side)) for side in (height, width))
    top, left = rng.integers(height - rows + 1), rng.integers(width - columns + 1)
    return pixels_HW3[top : top + rows, left : left + columns]


def turn(degrees: float, corners: bool, pixels_HW3: Pixels, rng: np.random.Generator) -> Pixels:
    """Turn to one side; the corners that open stay black or white, or are cut off."""
    height, width = pixels_HW3.shape[:2]
    angle = degrees * rng.choice([-1.0, 1.0])
    middle = ((width - 1) / 2, (height - 1) / 2)
    matrix = cv2.getRotationMatrix2D(middle, angle, 1.0)
    fill = (int(rng.choice([0, 255])),) * 3
    turned_HW3 = cv2.warpAffine(
        pixels_HW3, matrix, (width, height), flags=cv2.INTER_CUBIC, borderValue=fill
    )
    if corners:
        return np.asarray(turned_HW3)
    # The largest upright rectangle of the same shape inside the turned one.
    cosine, sine = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    inner = min(width / (width * cosine + height * sine), height / (width * sine + height * cosine))
    rows, columns = (max(1, int(inner * side) - 2) for side in (height, width))
    top, left = (height - rows) // 2, (width - columns) // 2
    return np.asarray(turned_HW3[top : top + rows, left : left + columns])


def border(level: int, pixels_HW3: Pixels, rng: np.random.Generator) -> Pixels:
    """Add an even border of 6 to 12 % of the shorter side."""
    wide = max(2, round(rng.uniform(0.06, 0.12) * min(pixels_HW3.shape[:2])))
    framed = cv2.copyMakeBorder(
        pixels_HW3, wide, wide, wide, wide, cv2.BORDER_CONSTANT, value=(level,) * 3
    )
    return np.asarray(framed)


def brightness(pixels_HW3: Pixels, rng: np.random.Generator) -> Pixels:
    """Change contrast by a quarter and brightness by up to 25 levels."""
    gain = rng.choice([0.75, 1.25])
    mean = float(pixels_HW3.mean())
    return _bytes((pixels_HW3 - mean) * gain + mean + rng.uniform(-25, 25))


def perspective(pixels_HW3: Pixels, rng: np.random.Generator) -> Pixels:
    """Show the image as from aside: its corners lie up to 8 % inside, the rest is cut off."""
    height, width = pixels_HW3.shape[:2]
    frame = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    inward = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]], np.float32)
    moved = frame + inward * rng.uniform(0, 0.08, (4, 2)) * (width, height)
    matrix = cv2.getPerspectiveTransform(moved.astype(np.float32), frame)
    return np.asarray(
        cv2.warpPerspective(pixels_HW3, matrix, (width, height), flags=cv2.INTER_CUBIC)
    )


def half_size(pixels_HW3: Pixels, rng: np.random.Generator) -> Pixels:
    """Halve width and height."""
    height, width = pixels_HW3.shape[:2]
    size = (max(1, width // 2), max(1, height // 2))
    return np.asarray(cv2.resize(pixels_HW3, size, interpolation=cv2.INTER_AREA))


def colour_cast(pixels_HW3: Pixels, rng: np.random.Generator) -> Pixels:
    """Shift the white balance to warm or to cold light."""
    gain = np.array([1.18, 1.0, 0.78]) if rng.random() < 0.5 else np.array([0.8, 1.0, 1.2])
    return _bytes(pixels_HW3 * gain)


def blur(pixels_HW3: Pixels, rng: np.random.Generator) -> Pixels:
    """Blur by 0.8 % of the shorter side, one pixel at the least."""
    sigma = max(1.0, 0.008 * min(pixels_HW3.shape[:2]))
    return np.asarray(cv2.GaussianBlur(pixels_HW3, (0, 0), sigma))


def _plain(pixels_HW3: Pixels, rng: np.random.Generator) -> Pixels:
    return pixels_HW3


def _of_a_site(
    overlay: Callable[[Pixels, int], Pixels], pixels_HW3: Pixels, rng: np.random.Generator
) -> Pixels:
    return overlay(pixels_HW3, int(rng.integers(SITES)))


def _bytes(values: NDArray[np.float64]) -> Pixels:
    return values.clip(0, 255).astype(np.uint8)


KINDS: dict[str, VariantKind] = {
    "crop_5": VariantKind(partial(crop, 0.05)),
    "crop_10": VariantKind(partial(crop, 0.10)),
    "crop_20": VariantKind(partial(crop, 0.20)),
    "turn_3": VariantKind(partial(turn, 3.0, False)),
    "turn_7": VariantKind(partial(turn, 7.0, False)),
    "turn_3_corners": VariantKind(partial(turn, 3.0, True)),
    "turn_7_corners": VariantKind(partial(turn, 7.0, True)),
    "border_white": VariantKind(partial(border, 255)),
    "border_black": VariantKind(partial(border, 0)),
    "brightness": VariantKind(brightness),
    "perspective": VariantKind(perspective),
    "mirrored_crop": VariantKind(partial(crop, 0.10), mirrored=True),
    "screenshot": VariantKind(partial(_of_a_site, screenshot)),
    "half_jpeg": VariantKind(half_size, quality=70),
    "strong_jpeg": VariantKind(_plain, quality=15),
    "watermark": VariantKind(partial(_of_a_site, watermark)),
    "caption": VariantKind(partial(_of_a_site, caption)),
    "colour_cast": VariantKind(colour_cast),
    "blur": VariantKind(blur),
}
"""Kind -> how it is made: crops of 5, 10 and 20 % of both sides, turns by 3 and 7 degrees without
and with the corners that open, and what else happens to an image on its way through sites."""
