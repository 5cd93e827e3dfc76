"""Copies of an image as people and sites make them: kinds by name, each in eight orientations.

A copy shows what its original shows. Hashes of the whole image miss most of these kinds, so that
original and copy are torn apart by a split.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import cv2
import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.data.synthetic.overlays import caption, screenshot, watermark
from skindx.data.synthetic.painter import encode_jpeg

Pixels = NDArray[np.uint8]
Change = Callable[[Pixels, np.random.Generator], Pixels]

ORIENTATIONS = 8
MIRRORED = (1, 2, 4, 7)
"""Orientations that are mirror images; see `oriented`."""
SITES = 3
"""Watermark, caption and screenshot of copies are those of so many sites."""


@dataclass(frozen=True, slots=True)
class Kind:
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


KINDS: dict[str, Kind] = {
    "crop_5": Kind(partial(crop, 0.05)),
    "crop_10": Kind(partial(crop, 0.10)),
    "crop_20": Kind(partial(crop, 0.20)),
    "turn_3": Kind(partial(turn, 3.0, False)),
    "turn_7": Kind(partial(turn, 7.0, False)),
    "turn_3_corners": Kind(partial(turn, 3.0, True)),
    "turn_7_corners": Kind(partial(turn, 7.0, True)),
    "border_white": Kind(partial(border, 255)),
    "border_black": Kind(partial(border, 0)),
    "brightness": Kind(brightness),
    "perspective": Kind(perspective),
    "mirrored_crop": Kind(partial(crop, 0.10), mirrored=True),
    "screenshot": Kind(partial(_of_a_site, screenshot)),
    "half_jpeg": Kind(half_size, quality=70),
    "strong_jpeg": Kind(_plain, quality=15),
    "watermark": Kind(partial(_of_a_site, watermark)),
    "caption": Kind(partial(_of_a_site, caption)),
    "colour_cast": Kind(colour_cast),
    "blur": Kind(blur),
}
"""Kind -> how it is made: crops of 5, 10 and 20 % of both sides, turns by 3 and 7 degrees without
and with the corners that open, and what else happens to an image on its way through sites."""
