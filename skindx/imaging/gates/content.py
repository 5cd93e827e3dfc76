"""What an image shows in the place of skin, by its pixels alone: documents, screens, scenes, noise.

Each measure has a limit; a score of 0.5 stands for the first that is reached. None knows what skin
looks like beyond its colours: wood, sand and fur have them, and pass.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from skindx.imaging.gates.flat import flat_mask
from skindx.imaging.gates.gate import Reduced
from skindx.imaging.gates.lines import line_share
from skindx.imaging.gates.noise import colour_roughness, roughness
from skindx.imaging.gates.skin import skin_mask

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
MOST_FLAT = 0.4
"""Share of pixels."""
MOST_LINES = 0.5
"""Share of the strips."""
WRITTEN = 0.12
"""Roughness of brightness that writing has at least; lines of hair and shadow have less."""
MOST_ROUGH, MOST_COLOUR_ROUGH = 0.3, 0.12
"""Of brightness, and of colour."""


@dataclass(frozen=True, slots=True)
class Content:
    """How sure it is that an image shows no skin, and what it shows instead."""

    score: float
    """0..1; from `LIMIT` on it looks like no skin."""
    shows: Shows


SKIN = Content(0.0, "")


def content_of(pixels_HW3: NDArray[np.uint8]) -> Content:
    """Judge an image, RGB."""
    photo = Reduced.of(pixels_HW3)
    scores = {name: score(photo) for name, score in SCORES.items()}
    worst = max(scores, key=lambda name: scores[name])
    score = min(1.0, scores[worst])
    return Content(score, worst if score >= LIMIT else "")


def not_skin_score(pixels_HW3: NDArray[np.uint8]) -> float:
    """Return how sure it is that an image shows no skin, 0..1, for rankings."""
    return content_of(pixels_HW3).score


def _colours(photo: Reduced) -> float:
    import cv2

    # Every second pixel each way: a share needs no more.
    skin_HW = skin_mask(np.ascontiguousarray(photo.pixels_HWC[::2, ::2]))
    skin_HW &= ~flat_mask(photo.pixels_HWC)[::2, ::2]
    # The soft edges of a drawing are no skin.
    inside_HW: Any = cv2.erode(skin_HW.astype(np.uint8), np.ones((3, 3), np.uint8))
    return max(0.0, 1 - LIMIT * float(inside_HW.mean()) / LEAST_SKIN)


def _flat(photo: Reduced) -> float:
    return LIMIT * float(flat_mask(photo.pixels_HWC).mean()) / MOST_FLAT


def _text(photo: Reduced) -> float:
    written = roughness(photo.luma) / WRITTEN
    return LIMIT * min(written, line_share(photo.luma) / MOST_LINES) if written >= 0.5 else 0.0


def _noise(photo: Reduced) -> float:
    rough = roughness(photo.luma) / MOST_ROUGH
    return LIMIT * max(rough, colour_roughness(photo.pixels_HWC) / MOST_COLOUR_ROUGH)


SCORES: dict[Shows, Callable[[Reduced], float]] = {
    "colours": _colours,
    "flat": _flat,
    "text": _text,
    "noise": _noise,
}
