"""The gates without a model: what they refuse, what they remark on, what they let pass."""

import numpy as np
import pytest
from foreign_images import FOREIGN
from PIL import Image, ImageFilter
from skin_photo import TONES, skin_pixels

from skindx.imaging.photo_gates import BRIGHT, inspect, sharpness


def gates_of(pixels_HWC: np.ndarray) -> list[tuple[str, bool]]:
    return [(gate, finding.fatal) for gate, finding in inspect(pixels_HWC)]


@pytest.mark.parametrize("skin_type", TONES)
@pytest.mark.parametrize("size", [(90, 70), (240, 180), (1600, 1200)])
def test_skin_of_every_tone_passes_at_every_size(skin_type: int, size: tuple[int, int]) -> None:
    assert gates_of(skin_pixels(*size, skin_type=skin_type)) == []


@pytest.mark.parametrize("skin_type", TONES)
def test_out_of_focus_is_refused_whatever_the_tone(skin_type: int) -> None:
    photo = Image.fromarray(skin_pixels(640, 480, skin_type=skin_type))
    soft = np.asarray(photo.filter(ImageFilter.GaussianBlur(8)))
    assert gates_of(soft) == [("blur", True)]


def test_a_slight_blur_is_a_remark() -> None:
    photo = Image.fromarray(skin_pixels(640, 480)).filter(ImageFilter.GaussianBlur(2.6))
    assert gates_of(np.asarray(photo)) == [("blur", False)]


def test_less_light_is_no_blur() -> None:
    """The floor sinks with the square of the light, as variances do: dark skin is not refused."""
    luma_HW = np.random.default_rng(0).normal(60, 2, (160, 160)).astype(np.float32)
    luma_HW *= BRIGHT / np.percentile(luma_HW, 95)
    for light in (0.5, 0.3):
        assert sharpness(luma_HW * light) == pytest.approx(sharpness(luma_HW), abs=2e-2)


@pytest.mark.parametrize(
    ("pixels", "expected"),
    [
        (np.zeros((200, 200, 3)), ("light", True)),
        (skin_pixels() * 0.05, ("light", True)),
        (np.full((200, 200, 3), 255), ("light", True)),
        (np.full((200, 200, 3), 128), ("no-skin", True)),
        (skin_pixels(skin_type=6) * 0.6, ("light", False)),
    ],
)
def test_light(pixels: np.ndarray, expected: tuple[str, bool]) -> None:
    assert gates_of(pixels.astype(np.uint8))[0] == expected


@pytest.mark.parametrize("kind", ["document", "landscape"])
def test_what_has_no_colour_of_skin_is_refused(kind: str) -> None:
    for seed in range(3):
        assert gates_of(FOREIGN[kind](np.random.default_rng(seed))) == [("no-skin", True)]
