import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.core.errors import UserError
from skindx.data.box import Box
from skindx.data.manifest import read_manifest
from skindx.diagnosis.predictor import Predictor
from skindx.scan.scanned_lesions import ScannedLesion
from skindx_bench.scan.compose import compose, visible
from skindx_bench.scan.lesion_set import write_lesion_set
from skindx_bench.scan.material import CutOut, Material, read_material, shows_one_lesion, side_of
from skindx_bench.scan.photos import Truth
from skindx_bench.scan.scoring import Photo, UrgencyRanking, average_precision, recall_at, shares
from skindx_bench.scan.texture import grow
from skindx_bench.scan.training_set import write_training_set
from skindx_bench.subjects import run_bench


@pytest.mark.lab
def test_the_bench_runs_and_names_its_figures(tiny_bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "scan.json"
    run_bench("scan", file, [f"bundle={tiny_bundle}"], smallest=True)
    figures = json.loads(file.read_text())["figures"]
    assert {"recall", "precision", "ap", "ap_minus_whole_image", "seconds_a_photo"} <= {
        *figures,
        "precision",  # of no box at all there is none
    }
    assert 0 <= figures["recall"]["value"] <= 1


def test_it_says_what_is_missing() -> None:
    with pytest.raises(UserError, match="needs a bundle with a detector"):
        run_bench("scan", smallest=True)


def test_a_composite_is_the_same_for_a_seed_and_lesions_differ_from_the_skin() -> None:
    first, again = (
        compose(500, 400, 12, Material(), np.random.default_rng(3), sizes=(16, 60)) for _ in "ab"
    )
    assert np.array_equal(first.pixels_HW3, again.pixels_HW3)
    assert first.boxes == again.boxes
    assert len(first.boxes) > 3
    for box in first.boxes:
        assert 0 <= box.x1 < box.x2 <= 500
        assert 0 <= box.y1 < box.y2 <= 400
        assert 10 <= max(box.x2 - box.x1, box.y2 - box.y1) <= 90


def test_grown_skin_has_the_colours_of_its_patch() -> None:
    rng = np.random.default_rng(0)
    patch = np.clip(rng.normal((200, 150, 120), (12, 8, 5), (128, 128, 3)), 0, 255).astype(np.uint8)
    grown = grow(patch, 300, 200, rng)
    assert grown.shape == (300, 200, 3)
    np.testing.assert_allclose(grown.mean(axis=(0, 1)), patch.mean(axis=(0, 1)), atol=2)
    np.testing.assert_allclose(grown.std(axis=(0, 1)), patch.std(axis=(0, 1)), rtol=0.2)


def test_a_training_set_keeps_photos_apart(tmp_path: Path) -> None:
    write_training_set(tmp_path, Material(), 48)
    records = read_manifest(tmp_path)
    assert len(records) == 48
    of_group: dict[str, set[str]] = {}
    for record in records:
        of_group.setdefault(record.group, set()).add(record.split)
        for box in record.boxes or ():
            assert 0 <= box.x1 < box.x2 <= record.width
    assert all(len(splits) == 1 for splits in of_group.values())


def _skin_with(*spots: tuple[int, int, int]) -> np.ndarray:
    skin = np.full((120, 120, 3), (205, 160, 140), np.uint8)
    for x, y, radius in spots:
        cv2.circle(skin, (x, y), radius, (110, 70, 60), -1)
    return skin


@pytest.mark.parametrize(
    ("spots", "box", "whole"),
    [
        (((60, 60, 28),), (30, 30, 90, 90), True),
        ((), (30, 30, 90, 90), False),
        (((45, 45, 10), (78, 75, 9)), (30, 30, 90, 90), False),
        (((45, 60, 12),), (30, 30, 90, 90), False),
        (((60, 60, 28), (10, 10, 5)), (30, 30, 90, 90), True),
    ],
    ids=["one lesion", "bare skin", "two lesions", "much skin", "a freckle beside"],
)
def test_a_box_must_fit_one_lesion(
    spots: tuple[tuple[int, int, int], ...], box: tuple[int, int, int, int], whole: bool
) -> None:
    assert shows_one_lesion(_skin_with(*spots), box) is whole


def test_what_has_the_colours_of_the_skin_is_not_visible() -> None:
    rng = np.random.default_rng(0)
    rough = np.clip(_skin_with() + rng.normal(0, 3, (120, 120, 3)), 0, 255).astype(np.uint8)
    faint = np.clip(rough.astype(int) - 2, 0, 255).astype(np.uint8)
    dark = rough.copy()
    cv2.circle(dark, (60, 60), 12, (110, 70, 60), -1)
    box = (48.0, 48.0, 73.0, 73.0)
    assert not visible(rough, rough, 24, box)
    assert not visible(faint, rough, 24, box)
    assert visible(dark, rough, 24, box)
    assert not visible(dark, rough, 100, box)  # a speck of a lesion that claims a hundred pixels
    assert not visible(dark, rough, 24, (40.0, 40.0, 81.0, 81.0))  # it shows in a third of its box


def test_a_lesion_set_keeps_each_lesion_on_one_side(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    cuts = tuple(
        CutOut(rng.integers(90, 180, (80, 80, 3), np.uint8), (16, 16, 64, 64), urgent)
        for urgent in [False, True] * 6
    )
    records = write_lesion_set(tmp_path, Material(lesions=cuts), 60)
    assert len(records) >= 60
    assert {record.label for record in records} == {"benign", "malignant"}
    splits: dict[str, set[str]] = {}
    for record in records:
        splits.setdefault(record.group, set()).add(record.split)
        if record.group.startswith("lesion-"):
            urgent = cuts[int(record.group.removeprefix("lesion-"))].urgent
            assert record.label == ("malignant" if urgent else "benign")
        else:
            assert record.label == "benign"
    assert all(len(sides) == 1 for sides in splits.values())


def _lesion(place: int, risk: float) -> ScannedLesion:
    box = Box(100.0 * place, 0, 100.0 * place + 50, 50, score=0.9)
    return ScannedLesion(box, np.ones(1), risk, None, (), None, np.ones(1, np.float32), (0, 0, 0))


def test_the_area_counts_pairs_of_one_photo_by_hand(tiny_bundle: Path) -> None:
    ranking = UrgencyRanking(Predictor.load(tiny_bundle))
    boxes = np.array([(100.0 * n, 0, 100.0 * n + 50, 50) for n in range(4)])
    malignant = np.array([True, False, False, True])
    truth = Truth(Path("a.jpg"), boxes, malignant)
    # Beside the true ones stands a box of nothing; one malignant lesion is last, one ties.
    risks = (0.2, 0.5, 0.9, 0.9)
    lesions = [_lesion(n, risk) for n, risk in enumerate(risks)] + [_lesion(7, 0.95)]
    ranking.count(truth, lesions)
    area, count, interval = ranking.areas()["rank_auroc_by_risk_alone"]
    assert (area, count) == ((0 + 0 + 1 + 0.5) / 4, 2)
    assert interval.low < area < interval.high
    ranking.count(replace(truth, urgent_K=np.zeros(4, bool)), lesions)  # no pair: nothing changes
    assert ranking.areas()["rank_auroc_by_risk_alone"][:2] == (area, count)


@pytest.mark.long
def test_copies_of_a_picture_are_on_one_side(real: Path) -> None:
    sides = [read_material(real / "boxes", side) for side in ("train", "test")]
    assert all(side.lesions and side.skins for side in sides)
    assert {side_of(name) for name in ("b-1-_jpg", "b2-78_jpg", "m-12_jpg", "m2-3_jpg")} <= {
        "train",
        "test",
    }


@given(st.integers(0, 6), st.integers(0, 2**32 - 1))
def test_recall_and_precision_by_hand(wrong: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    low = np.arange(5)[:, None] * 300.0 + np.zeros((1, 2))
    truth = np.concatenate([low, low + np.array([[12], [30], [60], [120], [200]])], axis=1)
    found = truth[:3]
    other = np.tile([[2000.0, 0, 2010, 10]], (wrong, 1)) + 20 * np.arange(wrong)[:, None]
    scores = rng.uniform(0.3, 1, 3 + wrong)
    photo = Photo(truth, np.concatenate([found, other]), scores)
    counts = shares([photo], 0.25)
    assert counts["recall"] == (3, 5)
    assert counts["precision"] == (3, 3 + wrong)
    assert counts["recall_12_24_px"] == (1, 1)
    assert counts["recall_96_200_px"] == (0, 2)
    if not wrong:
        assert average_precision([photo]) == pytest.approx(100 * 3 / 5, abs=1.5)


@pytest.mark.parametrize(("precision", "recalled"), [(1.0, 1), (0.75, 3), (0.5, 4), (0.1, 4)])
def test_the_recall_at_a_precision_by_hand(precision: float, recalled: int) -> None:
    places = np.arange(8)[:, None] * 100.0 + np.zeros((1, 2))
    boxes = np.concatenate([places, places + 50], axis=1)
    scores = np.array([0.9, 0.8, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3])
    truth = boxes[[0, 2, 3, 6]]  # right, one of two equal scores, right; the seventh is right too
    photos = [Photo(truth[:2], boxes[:3], scores[:3]), Photo(truth[2:], boxes[3:], scores[3:])]
    assert recall_at(photos, precision) == (recalled, 4)
    assert recall_at([Photo(boxes[:0], boxes[:0], scores[:0])], precision) == (0, 0)
