"""Tiles in batches get the boxes that single images get."""

from pathlib import Path

import numpy as np
import pytest

from skindx.models.bundle.bundle import open_bundle
from skindx.models.detector import BatchDetector, Detector


@pytest.fixture(scope="module")
def detector(tiny_bundle: Path) -> Detector:
    found = open_bundle(tiny_bundle).detector()
    assert found is not None
    return found


@pytest.mark.parametrize("side", [64, 96])
def test_a_batch_finds_what_single_images_show(detector: Detector, side: int) -> None:
    tiles = np.random.default_rng(0).integers(0, 256, (3, side, side, 3), dtype=np.uint8)
    spec = detector.spec.model_copy(update={"size": side})
    single = Detector(detector.net, spec).detect(list(tiles))
    found, maps = BatchDetector(Detector(detector.net, spec)).detect(tiles)
    assert maps.shape == (3, side // 8, side // 8)
    for boxes, tile, map_ in zip(single, found, maps, strict=True):
        assert len(boxes) == len(tile.boxes_K4) > 0
        known = [(box.x1, box.y1, box.x2, box.y2) for box in boxes]
        np.testing.assert_allclose(tile.boxes_K4, known, atol=0.02)
        np.testing.assert_allclose(tile.scores_K, [box.score for box in boxes], rtol=1e-3)
        assert map_.max() == pytest.approx(tile.scores_K.max(), rel=1e-3)


def test_a_fused_detector_answers_alike_and_leaves_the_other_as_it_is(detector: Detector) -> None:
    names = set(detector.net.state_dict())
    fused = detector.fused()
    images = list(np.random.default_rng(2).integers(0, 256, (2, 90, 70, 3), dtype=np.uint8))
    for own, others in zip(detector.detect(images), fused.detect(images), strict=True):
        assert len(own) == len(others) > 0
        for box, same in zip(own, others, strict=True):
            known = (same.x1, same.y1, same.x2, same.y2, same.score)
            assert (box.x1, box.y1, box.x2, box.y2, box.score) == pytest.approx(known, abs=0.02)
    assert set(detector.net.state_dict()) == names
    assert any(".bn." in name for name in names)
    assert not any(".bn." in name for name in fused.net.state_dict())


def test_bf16_moves_boxes_by_less_than_a_pixel(detector: Detector) -> None:
    tiles = np.random.default_rng(1).integers(0, 256, (2, 64, 64, 3), dtype=np.uint8)
    exact, _ = BatchDetector(detector).detect(tiles, 0.0)
    rough, _ = BatchDetector(detector, precision="bf16").detect(tiles, 0.0)
    for a, b in zip(exact, rough, strict=True):
        distance = np.abs(a.boxes_K4[:, None] - b.boxes_K4[None]).max(axis=2).min(axis=1)
        assert np.median(distance) < 1
