"""Two images alone: which are copies, which only seem so, and that their order decides nothing."""

from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from copy_pairs import compare_bytes, compare_pair
from numpy.typing import NDArray

from skindx.data.copies import verify
from skindx.data.copies.describe import describe
from skindx.data.copies.verify import ACCEPT, Copy
from skindx.data.synthetic.painter import CLASSES, encode_jpeg, paint
from skindx.imaging.hashes import grey

Pixels = NDArray[np.uint8]


def painted(number: int) -> Pixels:
    return paint(CLASSES[number % len(CLASSES)], number, 77).pixels


def crop(pixels: Pixels) -> Pixels:
    height, width = pixels.shape[:2]
    return pixels[height // 10 : -height // 10, width // 10 : -width // 10]


def turn(pixels: Pixels) -> Pixels:
    height, width = pixels.shape[:2]
    matrix = cv2.getRotationMatrix2D((width / 2, height / 2), 6, 1)
    return np.asarray(cv2.warpAffine(pixels, matrix, (width, height)))


def border(pixels: Pixels) -> Pixels:
    return np.asarray(cv2.copyMakeBorder(pixels, 20, 20, 20, 20, 0, value=(255, 255, 255)))


def words(pixels: Pixels) -> Pixels:
    shown = pixels.copy()
    for row in (40, 90, 140):
        cv2.putText(shown, "www.atlas.example", (10, row), 0, 0.8, (255, 255, 255), 2)
    return shown


def watermark(pixels: Pixels) -> Pixels:
    """Lay the name of a site over the image: half transparent, slanted, in three lines."""
    height, width = pixels.shape[:2]
    ink = np.zeros((height, width), np.uint8)
    for row in (0.25, 0.55, 0.85):
        place = (round(0.06 * width), round(row * height))
        cv2.putText(ink, "www.dermaatlas.example", place, 0, width / 420, 115, 2, cv2.LINE_AA)
    slant = cv2.getRotationMatrix2D((width / 2, height / 2), 20.0, 1.0)
    ink_HW1 = cv2.warpAffine(ink, slant, (width, height))[..., None] / 255
    return (pixels * (1 - ink_HW1) + 255 * ink_HW1).astype(np.uint8)


CHANGES = {
    "crop": crop,
    "turn": turn,
    "border": border,
    "mirrored crop": lambda pixels: crop(pixels)[:, ::-1],
    "quarter turn": np.rot90,
    "brightness": lambda pixels: (pixels * 0.8 + 20).astype(np.uint8),
    "watermark": watermark,
}


def both_ways(first: Pixels, second: Pixels) -> Copy | None:
    one, other = compare_pair(first, second), compare_pair(second, first)
    if one is None or other is None:
        assert one is None
        assert other is None
        return None
    assert one.probability == other.probability
    np.testing.assert_allclose(one.turned().transform_23, other.transform_23, atol=0.05)
    return one


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_image_is_a_copy(change: str) -> None:
    original = painted(2)
    copy = both_ways(original, np.ascontiguousarray(CHANGES[change](original)))
    assert copy is not None
    assert copy.same, copy
    assert copy.probability >= ACCEPT
    assert copy.mirrored == (change == "mirrored crop")
    assert copy.covered > 0.9


def test_what_is_measured_of_a_correlation_is_its_mean_its_low_end_and_how_much_is_high(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ramp(*fields: Pixels) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Correlations from 0 to 0.8, each as often as any other."""
        shape = fields[2].shape
        levels = np.linspace(0, 0.8, fields[2].size, dtype=np.float32)
        return levels.reshape(shape), np.ones(shape, np.float32)

    monkeypatch.setattr(verify, "local_correlation", ramp)
    original = painted(2)
    pair = [describe(grey(pixels)) for pixels in (original, crop(original))]
    evidence = verify.evidence_of(*pair)[0]
    measured = [evidence[name] for name in ("ncc", "low", "agree", "fine")]
    assert measured == pytest.approx([0.4, 0.15 * 0.8, 0.3 / 0.8, 0.4], abs=0.01)


def test_the_transform_says_where_the_first_lies_in_the_second() -> None:
    original = cv2.resize(painted(4), (256, 192))
    framed = np.full((256, 256, 3), 255, np.uint8)
    framed[40:184, 30:222] = cv2.resize(original, (192, 144), interpolation=cv2.INTER_AREA)
    copy = compare_pair(original, framed)
    assert copy is not None
    a, b, x, c, d, y = copy.transform_23
    assert (a, b, c, d) == pytest.approx((0.75, 0, 0, 0.75), abs=0.01)
    assert (x, y) == pytest.approx((30, 40), abs=1)


def test_different_images_are_no_copies_also_under_the_same_words() -> None:
    for number in range(6):
        one, other = painted(number), painted(number + 10)
        for first, second in ((one, other), (words(one), words(other))):
            copy = both_ways(first, second)
            assert copy is None or not copy.same, (number, copy)


@pytest.mark.parametrize("level", [0, 90, 255])
def test_images_without_texture_are_no_copies(level: int) -> None:
    flat = np.full((100, 120, 3), level, np.uint8)
    assert compare_pair(flat, flat) is None
    assert compare_pair(flat, painted(1)) is None


def test_a_dark_image_is_compared_by_what_it_shows() -> None:
    dark = (painted(2) * 0.12).astype(np.uint8)
    copy = compare_pair(dark, np.ascontiguousarray(crop(dark)))
    assert copy is not None
    assert copy.same, copy


def test_encoded_images_are_compared_as_stored_ones_are() -> None:
    original = painted(3)
    copy = compare_bytes(encode_jpeg(original), encode_jpeg(np.ascontiguousarray(crop(original))))
    assert copy is not None
    assert copy.same


DARK = (3, 9)


def test_dark_images_under_one_watermark_are_no_copies() -> None:
    """Words over little light are what varies most: all that correlates is theirs."""
    skin = [(paint(CLASSES[n % len(CLASSES)], n, 41).pixels * 0.35).astype(np.uint8) for n in DARK]
    one, other = (watermark(pixels) for pixels in skin)
    wrong = compare_pair(one, other)
    assert wrong is None or not wrong.same
    right = compare_pair(one, watermark(skin[0])[6:, 8:])
    assert right is not None
    assert right.same


class Shown:
    """Evidence of a model with so many inliers, which the acceptance finds so likely."""

    def __init__(self, inliers: int, probability: float, turn: float = 0.0) -> None:
        self.features_F = probability
        self.model = SimpleNamespace(inliers=inliers, mirrored=False)
        transform_23 = cv2.getRotationMatrix2D((90, 60), turn, 1.4)
        self.aligned = SimpleNamespace(covered=1.0, transform_23=transform_23)

    def __getitem__(self, name: str) -> float:
        return 0.5


def test_a_model_that_another_one_outnumbers_decides_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = (describe(grey(painted(n))) for n in (0, 1))
    said = SimpleNamespace(probability=lambda likely: likely)

    def decided(*shown: Shown) -> tuple[float, int]:
        monkeypatch.setattr(verify, "evidence_of", lambda *_: list(shown))
        copy = verify.verify(one, other, said)
        return copy.probability, copy.inliers

    assert decided(Shown(47, 0.001), Shown(13, 0.95)) == (0.001, 47)
    assert decided(Shown(39, 0.001), Shown(13, 0.95)) == (0.95, 13)
    assert decided(Shown(47, 0.2), Shown(30, 0.4)) == (0.4, 47)  # refused: as most points have it


@pytest.mark.parametrize(
    ("shown", "accepted"),
    [
        (Shown(12, 0.5, 8), True),
        (Shown(12, 0.5, -38), True),
        (Shown(12, 0.5, 184), True),
        (Shown(12, 0.5, 0), False),  # an overlay would lie so
        (Shown(12, 0.5, 91), False),
        (Shown(11, 0.5, 8), False),
        (Shown(12, 0.49, 8), False),
    ],
)
def test_what_lies_turned_is_no_shared_overlay(
    monkeypatch: pytest.MonkeyPatch, shown: Shown, accepted: bool
) -> None:
    one, other = (describe(grey(painted(n))) for n in (0, 1))
    monkeypatch.setattr(verify, "evidence_of", lambda *_: [shown])
    copy = verify.verify(one, other, SimpleNamespace(probability=lambda likely: likely))
    assert copy.same == accepted
    assert copy.probability == (ACCEPT if accepted else shown.features_F)


def test_the_turn_of_a_map_is_that_of_its_nearest_rotation() -> None:
    turn_22 = cv2.getRotationMatrix2D((0, 0), 12, 2.0)[:, :2]
    for other_22 in (np.eye(2), np.diag([-1.0, 1.0]), np.array([[0.0, 1.0], [-1.0, 0.0]])):
        transform_23 = np.column_stack([turn_22 @ other_22, [5.0, 6.0]])
        assert verify.turn_of(transform_23) == pytest.approx(12)
