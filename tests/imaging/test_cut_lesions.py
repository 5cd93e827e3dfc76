"""A lesion that the square or the photo's edge cuts, by its pixels and by its box."""

import numpy as np
import pytest
from skin_photo import TONES, skin_pixels

from skindx.imaging.cut_lesions import Edges, cut_by, lesion_region

SQUARE: Edges = (0.125, 0, 0.875, 1)
"""Of a photo of 4 : 3."""
WHOLE: Edges = (0, 0, 1, 1)


def lesion(
    x: float, y: float, radius: float, *, skin_type: int = 3, shade: float = 0.55
) -> np.ndarray:
    """Return skin of 320 x 240 with one spot, in shares of the height."""
    pixels = skin_pixels(320, 240, seed=8, skin_type=skin_type).astype(float)
    pixels[...] = TONES[skin_type] * (pixels.mean(axis=2, keepdims=True) / pixels.mean())
    down, across = np.mgrid[:240, :320] / 240
    spot = np.hypot(down - y, across - x) < radius
    plain = np.full_like(pixels, TONES[skin_type]) * (1 + (pixels / pixels.mean() - 1) * 0.02)
    return (plain * np.where(spot, shade, 1.0)[..., None]).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("skin_type", TONES)
@pytest.mark.parametrize(
    ("x", "radius", "square", "whole"),
    [(0.667, 0.25, "", ""), (0.4, 0.35, "square", ""), (0.3, 0.35, "edge", "edge")],
)
def test_a_dark_region_beyond_the_frame(
    skin_type: int, x: float, radius: float, square: str, whole: str
) -> None:
    shade = 0.6 if skin_type == 3 else 0.5
    pixels = lesion(x, 0.5, radius, skin_type=skin_type, shade=shade)
    assert cut_by(pixels, SQUARE) == square
    assert cut_by(pixels, WHOLE) == whole


def test_nothing_is_said_of_what_is_no_lesion() -> None:
    assert lesion_region(np.full((240, 320, 3), 120, np.uint8)) is None
    assert lesion_region(np.zeros((240, 320, 3), np.uint8)) is None
    pale = lesion(0.3, 0.5, 0.35, shade=0.9)
    assert lesion_region(pale) is None, "a shadow"
    aside = lesion(0.0, 0.0, 0.3)
    assert lesion_region(aside) is None, "not at the centre"
    lines = lesion(0.667, 0.5, 0.0)
    lines[118:122], lines[:, 158:162] = 30, 30
    assert cut_by(lines, SQUARE) == "", "hair fills little of its hull"
    shadow = lesion(0.667, 0.5, 0.25)
    shadow[120:] = shadow[120:] // 2  # of the lower half: it is at three sides
    assert cut_by(shadow, SQUARE) == ""
    corner = lesion(0.4, 0.3, 0.42)
    assert cut_by(corner, WHOLE) == "edge", "a lesion at two sides, along a part of them"
    down, across = np.mgrid[:240, :320]
    rim = lesion(0.667, 0.5, 0.2)
    rim[np.hypot(down - 120, across - 160) > 130] = 0
    assert cut_by(rim, SQUARE) == "", "the rim of a dermatoscope"


@pytest.mark.parametrize(
    ("box", "square", "whole"),
    [
        ((0.3, 0.2, 0.7, 0.8), "", ""),
        ((0.12, 0.2, 0.7, 0.8), "", ""),  # no more than a hundredth of it
        ((0.1, 0.2, 0.7, 0.8), "square", ""),
        ((0.3, 0.2, 0.95, 0.8), "square", ""),
        ((0.02, 0.2, 0.1, 0.8), "square", ""),  # all of it
        ((0.3, 0.003, 0.7, 0.8), "edge", "edge"),
        ((0.3, 0.2, 0.996, 0.8), "edge", "edge"),
    ],
)
def test_the_best_box_decides(box: Edges, square: str, whole: str) -> None:
    pixels = lesion(0.4, 0.5, 0.35)  # its dark region leaves the square
    assert cut_by(pixels, SQUARE, [box, (0, 0, 1, 1)]) == square
    assert cut_by(pixels, WHOLE, [box]) == whole
