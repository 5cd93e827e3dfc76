"""What an image shows instead of skin: documents, screens, scenes, noise.

Each measure has a limit; a score of 0.5 stands for the first that is reached. None knows what skin
looks like beyond its colours: wood, sand and fur have them, and pass.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from skindx.imaging.photo_gates import SIDE, skin_mask
from skindx.imaging.resize import shrink

# H, W = pixels, R = rows of pixels, S = strips

Shows = Literal["", "colours", "flat", "text", "noise"]
DESCRIPTIONS: dict[str, str] = {
    "colours": "hardly any colour of skin, as in landscapes, printed pages and grey images",
    "flat": "flat colours, as in screenshots and drawings",
    "text": "lines of writing, as in documents",
    "noise": "noise",
}
LIMIT = 0.5

LEAST_SKIN = 0.04
"""Share of places where all pixels within 2 have a colour of skin and none is flat."""
MOST_FLAT, MOST_BESIDE_FLAT = 0.4, 0.5
"""Shares of pixels that are filled, and of the others that have a colour of skin.

Strong compression makes parts of skin flat and leaves the rest."""
MOST_LINES = 0.5
"""Share of the image's strips with lines of writing, from which it counts as text."""
WRITTEN = 0.12
"""Roughness of brightness that writing has at least; lines of hair and shadow have less."""
MOST_ROUGH, MOST_COLOUR_ROUGH = 0.3, 0.12
"""Roughness of brightness and of colour from which an image counts as noise."""

PEEK = 48
"""Least pixels of the shorter side in the first look."""
PLAIN_SKIN, PLAIN_FLAT, PLAIN_ROUGH, PLAIN_COLOUR_ROUGH = 0.3, 0.05, 0.1, 0.09
"""Least value (first) and largest values (others) of an image that is plainly skin."""

BLACK, WHITE = 12, 243
"""Levels: a pixel with all channels darker, or all brighter, may be a rim or burnt out."""
STRIP = 32
"""Pixels of the 160: wide enough for a word, narrow enough for 4 degrees."""
STROKE = 7
"""Largest width of a stroke in pixels."""
CONTRAST = 12
"""Levels by which a stroke is darker than the ground around it, at the least."""
FEWEST_ROWS, LEAST_INK, LEAST_KEPT = 6, 0.04, 0.2
"""Minimums for a strip of text: rows of ink, share of ink, and how far its ink keeps to rows."""
EVEN = 8.0
"""Levels of spread below which an image is even, and what differs in it too little to matter."""


@dataclass(frozen=True, slots=True)
class Content:
    """How likely an image shows no skin, and what it shows instead."""

    score: float
    """Score 0..1; an image at `LIMIT` or above counts as showing no skin."""
    shows: Shows


SKIN = Content(0.0, "")


def content_of(pixels_HW3: NDArray[np.uint8]) -> Content:
    """Judge an image, RGB; one that is plainly skin is not looked at closely, and scores 0."""
    return SKIN if _plainly_skin(pixels_HW3) else _judge(pixels_HW3)


def not_skin_score(pixels_HW3: NDArray[np.uint8]) -> float:
    """Return how sure it is that an image shows no skin, 0..1, for rankings: always closely."""
    return _judge(pixels_HW3).score


def _judge(pixels_HW3: NDArray[np.uint8]) -> Content:
    import cv2

    small_HW3 = shrink(_halved(pixels_HW3), SIDE)
    grey_HW: Any = cv2.cvtColor(small_HW3, cv2.COLOR_RGB2GRAY)
    flat_HW = flat_mask(small_HW3)
    rough = roughness(grey_HW)
    # Every second pixel each way: a share needs no more.
    skin_HW = skin_mask(np.ascontiguousarray(small_HW3[::2, ::2])) & ~flat_HW[::2, ::2]
    scores: dict[Shows, float] = {
        "colours": 1 - LIMIT * _inside(skin_HW) / LEAST_SKIN,
        "flat": LIMIT * _filled(fill_mask(small_HW3, flat_HW), skin_HW),
        "text": LIMIT * _written(grey_HW, rough),
        "noise": LIMIT * max(rough / MOST_ROUGH, colour_roughness(small_HW3) / MOST_COLOUR_ROUGH),
    }
    shows = max(scores, key=lambda name: scores[name])
    score = min(1.0, max(0.0, scores[shows]))
    return Content(score, shows if score >= LIMIT else "")


def _plainly_skin(pixels_HW3: NDArray[np.uint8]) -> bool:
    """Tell by few single pixels whether an image is far from every limit, as most are.

    Pixels that are left out and not averaged look rougher than the image is, never smoother.
    """
    import cv2

    step = max(1, min(pixels_HW3.shape[:2]) // PEEK)
    few_HW3 = np.ascontiguousarray(pixels_HW3[::step, ::step])
    grey_HW: Any = cv2.cvtColor(few_HW3, cv2.COLOR_RGB2GRAY)
    return (
        roughness(grey_HW) < PLAIN_ROUGH
        and colour_roughness(few_HW3) < PLAIN_COLOUR_ROUGH
        and float(flat_mask(few_HW3).mean()) < PLAIN_FLAT
        and float(skin_mask(np.ascontiguousarray(few_HW3[::2, ::2])).mean()) > PLAIN_SKIN
    )


def _filled(fill_HW: NDArray[np.bool_], skin_HW: NDArray[np.bool_]) -> float:
    beside = max(float(skin_HW.mean()), 0.01)
    return min(float(fill_HW.mean()) / MOST_FLAT, MOST_BESIDE_FLAT / beside)


def _inside(skin_HW: NDArray[np.bool_]) -> float:
    import cv2

    # The soft edges of a drawing are no skin.
    inside_HW: Any = cv2.erode(skin_HW.astype(np.uint8), np.ones((3, 3), np.uint8))
    return float(inside_HW.mean())


def _written(grey_HW: NDArray[np.uint8], rough: float) -> float:
    # Most images are not rough enough, and need not be looked at for lines.
    return min(rough / WRITTEN, line_share(grey_HW) / MOST_LINES) if rough >= WRITTEN / 2 else 0.0


def _halved(pixels_HW3: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return an image at a half of its size while it is large: quicker than all at once."""
    import cv2

    while min(pixels_HW3.shape[:2]) >= 2 * SIDE:
        height, width = pixels_HW3.shape[0] // 2, pixels_HW3.shape[1] // 2
        even: Any = pixels_HW3[: 2 * height, : 2 * width]
        pixels_HW3 = cv2.resize(even, (width, height), interpolation=cv2.INTER_AREA)
    return pixels_HW3


def flat_mask(pixels_HW3: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return H x W: the pixel and its eight neighbours are equal; beyond the edge all are.

    Programs fill areas with one colour. Light on a surface changes from pixel to pixel and a sensor
    adds noise; a fill does neither, and stays exact when it is averaged or compressed as JPEG.
    """
    import cv2

    # One number a pixel: three channels compared at once.
    whole_HW: Any = cv2.cvtColor(pixels_HW3, cv2.COLOR_RGB2RGBA).view(np.uint32)[..., 0]
    across_HW = np.ones((whole_HW.shape[0], whole_HW.shape[1] + 1), bool)
    np.equal(whole_HW[:, 1:], whole_HW[:, :-1], out=across_HW[:, 1:-1])
    row_HW = across_HW[:, 1:] & across_HW[:, :-1]
    down_HW = np.ones((whole_HW.shape[0] + 1, whole_HW.shape[1]), bool)
    np.equal(whole_HW[1:], whole_HW[:-1], out=down_HW[1:-1])
    flat_HW = row_HW & down_HW[1:] & down_HW[:-1]
    flat_HW[1:] &= row_HW[:-1]
    flat_HW[:-1] &= row_HW[1:]
    return flat_HW


def fill_mask(pixels_HW3: NDArray[np.uint8], flat_HW: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return H x W: the pixel is flat, and neither black nor white.

    Rims of dermoscopes, borders, and light that burnt out are as flat, and no fills.
    """
    import cv2

    black_HW: Any = cv2.inRange(pixels_HW3, (0, 0, 0), (BLACK - 1,) * 3)
    white_HW: Any = cv2.inRange(pixels_HW3, (WHITE + 1,) * 3, (255, 255, 255))
    filled_HW: NDArray[np.bool_] = flat_HW & (cv2.bitwise_or(black_HW, white_HW) == 0)
    return filled_HW


def line_share(luma_HW: NDArray[np.uint8]) -> float:
    """Return the share of the image's strips, upright or lying, that hold lines of writing.

    These are dark strokes in rows over the whole image, with gaps between. Hair, vessels and
    pigment networks are as thin and as dark, but do not keep to rows; a ruler does, in one row.
    Strips are upright, so that a page may be held askew.
    """
    import cv2

    square = np.ones((STROKE, STROKE), np.uint8)
    ground_HW: Any = cv2.morphologyEx(luma_HW, cv2.MORPH_CLOSE, square)
    ink_HW = (cv2.subtract(ground_HW, luma_HW) > CONTRAST).astype(np.float32)
    return max(_upright(ink_HW), _upright(ink_HW.T))


def _upright(ink_RW: NDArray[np.float32]) -> float:
    rows, width = ink_RW.shape
    strips = max(1, width // STRIP)
    cut_RS = ink_RW[:, : strips * STRIP].reshape(rows, strips, -1).mean(axis=2)
    ink_S = cut_RS.mean(axis=0)
    # 1 where each row of pixels is all ink or none, 0 where ink does not keep to rows.
    kept_S = cut_RS.var(axis=0) / np.maximum(ink_S * (1 - ink_S), 1e-6)
    above_RS = cut_RS > ink_S
    rows_S = (above_RS[1:] & ~above_RS[:-1]).sum(axis=0)
    lines_S = (kept_S > LEAST_KEPT) & (rows_S >= FEWEST_ROWS) & (ink_S > LEAST_INK)
    return float(lines_S.mean())


def roughness(plane_HW: NDArray[np.uint8] | NDArray[np.float32]) -> float:
    """Return which share of a plane's variance differs from the mean of 3 x 3 pixels.

    8/9 for independent pixels, less where the plane is even. The spectrum of scenes falls with
    frequency, about as its inverse square (Field 1987, "Relations between the statistics of natural
    images and the response properties of cortical cells"), that of noise does not; and colours
    change slowly in scenes, so that JPEG keeps a quarter of them.
    """
    import cv2

    plane: Any = plane_HW if plane_HW.dtype == np.float32 else plane_HW.astype(np.float32)
    fine = cv2.subtract(plane, cv2.blur(plane, (3, 3)))
    _, spread = cv2.meanStdDev(plane)
    _, rest = cv2.meanStdDev(fine)
    return float(rest[0, 0] ** 2 / (spread[0, 0] ** 2 + EVEN**2))


def colour_roughness(pixels_HW3: NDArray[np.uint8]) -> float:
    """Return the higher one of red - green and blue - green."""
    import cv2

    red, green, blue = cv2.split(pixels_HW3)
    planes: list[Any] = [cv2.subtract(other, green, dtype=cv2.CV_32F) for other in (red, blue)]
    return max(map(roughness, planes))
