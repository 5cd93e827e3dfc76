"""Gate against images that show no skin: documents, screens, scenes, noise.

Each measure has a limit; a score of 0.5 stands for the first that is reached. None knows what skin
looks like beyond its colours: wood, sand and fur have them, and pass.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from skindx.imaging.gates.flat import fill_mask, flat_mask
from skindx.imaging.gates.gate import SIDE
from skindx.imaging.gates.lines import line_share
from skindx.imaging.gates.noise import colour_roughness, roughness
from skindx.imaging.gates.skin import skin_mask
from skindx.imaging.shrink import shrink

Shows = Literal["", "colours", "flat", "text", "noise"]
SAID: dict[str, str] = {
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
"""Share of the strips."""
WRITTEN = 0.12
"""Roughness of brightness that writing has at least; lines of hair and shadow have less."""
MOST_ROUGH, MOST_COLOUR_ROUGH = 0.3, 0.12
"""Of brightness, and of colour."""

PEEK = 48
"""Pixels of the shorter side that the first look leaves, at least."""
PLAIN_SKIN, PLAIN_FLAT, PLAIN_ROUGH, PLAIN_COLOUR_ROUGH = 0.3, 0.05, 0.1, 0.09
"""What an image has more of (the first) and less of (the others) that is plainly skin."""


@dataclass(frozen=True, slots=True)
class Content:
    """How sure it is that an image shows no skin, and what it shows instead."""

    score: float
    """0..1; from `LIMIT` on it looks like no skin."""
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
