import cv2
import numpy as np
import pytest

from skindx_bench.scan.compose import varied, varied_lesion, varied_skin
from skindx_bench.scan.material import CutOut, Material

_SKIN = (205, 160, 140)
_BOX = (30.0, 40.0, 95.0, 80.0)


def _cut_out() -> CutOut:
    pixels = np.full((120, 130, 3), _SKIN, np.uint8)
    centre = (int(_BOX[0] + _BOX[2]) // 2, int(_BOX[1] + _BOX[3]) // 2)
    half = (int(_BOX[2] - _BOX[0]) // 2, int(_BOX[3] - _BOX[1]) // 2)
    cv2.ellipse(pixels, centre, half, 0, 0, 360, (110, 70, 60), -1)
    return CutOut(pixels, _BOX, urgent=True)


@pytest.mark.parametrize("seed", range(8))
def test_a_varied_lesion_stays_in_its_box_on_the_same_skin(seed: int) -> None:
    cut = _cut_out()
    found = varied_lesion(cut, np.random.default_rng(seed))
    assert found.urgent
    away = np.abs(found.pixels_HW3.astype(int) - _SKIN).max(axis=2)
    assert np.median(away) <= 2
    rows, columns = np.nonzero(away > 15)
    shown = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    np.testing.assert_allclose(shown, found.box, atol=3)
    assert found.pixels_HW3.shape[1] == 130
    assert 120 * 0.74 <= found.pixels_HW3.shape[0] <= 120 * 1.34


def test_varied_skin_keeps_its_side_and_changes_its_tone() -> None:
    rng = np.random.default_rng(0)
    patch = np.clip(rng.normal(_SKIN, 5, (128, 128, 3)), 0, 255).astype(np.uint8)
    tones = [varied_skin(patch, rng).mean(axis=(0, 1)) for _ in range(20)]
    assert varied_skin(patch, rng).shape == patch.shape
    np.testing.assert_allclose(np.mean(tones, axis=0), patch.mean(axis=(0, 1)), atol=20)
    assert np.std(tones, axis=0).min() > 5


def test_a_varied_material_has_at_most_what_was_asked_and_changes_nothing() -> None:
    material = Material((_cut_out(),) * 5, (np.full((128, 128, 3), _SKIN, np.uint8),) * 2)
    first, again = (varied(material, 3, 4, np.random.default_rng(1)) for _ in "ab")
    assert (len(first.lesions), len(first.skins)) == (3, 2)
    for one, other in zip(first.lesions, again.lesions, strict=True):
        assert np.array_equal(one.pixels_HW3, other.pixels_HW3)
    assert np.array_equal(material.lesions[0].pixels_HW3, _cut_out().pixels_HW3)
    assert varied(Material(), 3, 4, np.random.default_rng(1)) == Material()
