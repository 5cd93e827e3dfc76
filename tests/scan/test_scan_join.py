"""One box a lesion, wherever the seams run and in whatever order tiles were answered."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spots import SpotDetector, photo_with

from skindx.scan.pixel_store import PixelStore, PixelWriter
from skindx.scan.tile_search import (
    SAME_LESION_IOU,
    ScanSettings,
    TileDetections,
    find_in_tiles,
    grids,
    held,
    iou,
    join,
)


def row(box: tuple[float, ...], score: float, tile: int, *, part: bool = False) -> list[float]:
    return [*box, score, 0, tile, part]


def joined(*rows: list[float]) -> list[list[float]]:
    boxes, _, _ = join(TileDetections.from_rows(np.array(rows)))
    return boxes.round(3).tolist()


def test_whole_boxes_of_two_tiles_are_averaged_by_score() -> None:
    one, other = row((0, 0, 10, 10), 0.9, 1), row((2, 0, 12, 10), 0.3, 2)
    assert joined(one, other) == [[0.5, 0, 10.5, 10]]


def test_a_part_yields_to_a_whole_box_and_parts_alone_are_put_together() -> None:
    whole = row((0, 0, 40, 40), 0.5, 1)
    part = row((0, 0, 22, 40), 0.95, 2, part=True)
    assert joined(part, whole) == [[0, 0, 40, 40]]
    corners = [
        row((0, 0, 30, 30), 0.9, 1, part=True),
        row((20, 0, 60, 30), 0.8, 2, part=True),
        row((0, 20, 30, 60), 0.7, 3, part=True),
        row((20, 20, 60, 60), 0.6, 4, part=True),
    ]
    assert joined(*corners) == [[0, 0, 60, 60]]


def test_what_a_better_box_contains_and_what_is_too_small_is_left_out() -> None:
    lesion, inside = row((0, 0, 60, 60), 0.7, 1), row((10, 10, 40, 40), 0.6, 2)
    assert joined(inside, lesion) == [[0, 0, 60, 60]]
    freckle = row((100, 100, 107, 107), 0.9, 1)
    boxes, _, _ = join(TileDetections.from_rows(np.array([lesion, freckle])), least_side=10)
    assert boxes.round(3).tolist() == [[0, 0, 60, 60]]


@pytest.mark.parametrize("score", [0.4, 0.95])
def test_a_box_around_several_lesions_is_none_itself(score: float) -> None:
    several = [(20, 20, 60, 60), (100, 30, 150, 70), (40, 110, 90, 170)]
    around = row((0, 0, 200, 200), score, 1)
    lesions = [row(box, 0.6, 2) for box in several]
    assert sorted(joined(around, *lesions)) == sorted([list(box) for box in several])
    wider = row((0, 0, 400, 300), 0.97, 3)
    assert len(joined(wider, around, *lesions)) == 3


def test_faint_boxes_inside_a_sure_lesion_are_its_parts() -> None:
    whole, parts = row((0, 0, 200, 200), 0.95, 1), [(20, 20, 60, 60), (100, 30, 150, 70)]
    assert joined(whole, *[row(box, 0.3, 2) for box in parts]) == [[0, 0, 200, 200]]


def test_parts_of_a_lesion_that_are_much_fainter_do_not_replace_it() -> None:
    """By hand, from lesions of 154 and 88 pixels that showed at a high threshold alone."""
    coarse = row((0, 0, 140, 160), 0.79, 1)
    assert joined(coarse, row((70, 95, 126, 150), 0.67, 2), row((85, 18, 130, 65), 0.41, 2)) == [
        [0, 0, 140, 160]
    ]
    whole, left, right = (0, 6, 93, 58), (4, 6, 47, 52), (54, 16, 85, 46)
    assert joined(*(row(b, s, 3) for b, s in ((whole, 0.6), (left, 0.42), (right, 0.59)))) == [
        list(whole)
    ]
    # As sure as the whole, or seen in another tile, they are lesions.
    assert len(joined(row(whole, 0.6, 3), row(left, 0.5, 3), row(right, 0.5, 3))) == 2
    assert len(joined(row(whole, 0.6, 3), row(left, 0.4, 4), row(right, 0.4, 4))) == 2


_INNER = st.builds(
    lambda x, y, side, score, tile: row((x, y, x + side, y + side), score, tile),
    *(st.floats(0, 140), st.floats(0, 140), st.floats(5, 60), st.floats(0.05, 0.53)),
    st.integers(1, 3),
)


@given(st.lists(_INNER, max_size=8))
def test_no_faint_boxes_take_a_sure_lesion_away(faint: list[list[float]]) -> None:
    """Whatever a lower threshold adds inside it."""
    assert joined(row((0, 0, 200, 200), 0.9, 1), *faint) == [[0, 0, 200, 200]]


def test_of_two_boxes_of_which_one_holds_the_other_the_better_stays() -> None:
    for outer, inner in ((0.9, 0.7), (0.7, 0.9)):
        boxes = joined(row((0, 0, 200, 200), outer, 1), row((50, 50, 90, 90), inner, 2))
        assert boxes == ([[0, 0, 200, 200]] if outer > inner else [[50, 50, 90, 90]])


def test_neighbours_of_one_tile_stay_two_lesions() -> None:
    one = row((0, 0, 10, 10), 0.9, 1)
    for tile in (1, 2):
        assert len(joined(one, row((6, 0, 16, 10), 0.8, tile))) == 2
    # A better box around two close ones is neither, and they stay two.
    near = row((12, 0, 22, 10), 0.8, 1)
    for tile in (1, 2):
        around = row((0, 0, 22, 10), 0.95, tile)
        assert sorted(joined(around, one, near)) == [[0, 0, 10, 10], [12, 0, 22, 10]]
    assert joined() == []


@pytest.mark.parametrize("tile", [1, 2])
@pytest.mark.parametrize("other", [(5, 0, 15, 10), (2, 2, 6, 6), (-20, -20, 20, 20), (1, 1, 9, 9)])
@pytest.mark.parametrize("scores", [(0.9, 0.5), (0.5, 0.9), (0.7, 0.7)])
def test_boxes_that_overlap_or_hold_each_other_are_one_lesion(
    other: tuple[float, ...], tile: int, scores: tuple[float, float]
) -> None:
    assert len(joined(row((0, 0, 10, 10), scores[0], 1), row(other, scores[1], tile))) == 1


_SIDES = st.floats(5, 60)
_ROWS = st.builds(
    lambda x, y, width, height, score, tile, part: row(
        (x, y, x + width, y + height), score, tile, part=part
    ),
    *(st.floats(0, 80), st.floats(0, 80), _SIDES, _SIDES, st.floats(0.05, 1)),
    *(st.integers(0, 4), st.booleans()),
)


@given(st.lists(_ROWS, min_size=1, max_size=8), st.randoms(use_true_random=True))
def test_no_lesion_is_listed_twice(rows: list[list[float]], random: Random) -> None:
    """Whatever the boxes: none overlaps another, joined again they are the same, in any order."""
    boxes, scores, _ = join(TileDetections.from_rows(np.array(rows)))
    shuffled = rows.copy()
    random.shuffle(shuffled)
    assert np.array_equal(join(TileDetections.from_rows(np.array(shuffled)))[0], boxes)
    for n, box in enumerate(boxes):
        others = np.delete(boxes, n, axis=0)
        assert not (iou(box, others) >= SAME_LESION_IOU).any()
        inside = (box[:2] <= others[:, :2]).all(axis=1) & (others[:, 2:] <= box[2:]).all(axis=1)
        assert not inside.any()
    again = [row(tuple(box), score, 9) for box, score in zip(boxes, scores, strict=True)]
    random.shuffle(again)
    assert np.allclose(join(TileDetections.from_rows(np.array(again)))[0], boxes)


SMALL, LARGE = (36.0, 0.0, 46.0, 10.0), (0.0, 0.0, 40.0, 40.0)
"""They share 40 square pixels: 40 % of the small one, and 2.5 % of the large one."""


@pytest.mark.parametrize(("first", "second"), [(SMALL, LARGE), (LARGE, SMALL)])
def test_the_smaller_of_two_parts_decides_whether_they_touch(
    first: tuple[float, ...], second: tuple[float, ...]
) -> None:
    rows = row(first, 0.9, 1, part=True), row(second, 0.8, 2, part=True)
    assert joined(*rows) == [[0, 0, 46, 40]]


def test_parts_that_a_worse_one_bridges_have_the_score_of_the_best() -> None:
    best, next_one = row((0, 0, 20, 20), 0.9, 1, part=True), row((30, 0, 50, 20), 0.8, 2, part=True)
    grown = row((0, 10, 20, 30), 0.7, 3, part=True)  # the best group is joined last, so it is last
    bridge = row((10, 0, 40, 20), 0.3, 4, part=True)
    boxes, scores, _ = join(TileDetections.from_rows(np.array([bridge, grown, next_one, best])))
    assert boxes.tolist() == [[0, 0, 50, 30]]
    assert scores.tolist() == [0.9]


@given(st.permutations(range(12)), st.integers(0, 1000))
def test_the_order_of_answers_does_not_matter(order: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    low = rng.uniform(0, 60, (12, 2))
    rows = np.column_stack(
        [
            low,
            low + rng.uniform(5, 40, (12, 2)),
            rng.choice([0.5, 0.9], 12),
            np.zeros(12),
            rng.integers(0, 4, 12),
            rng.random(12) < 0.4,
        ]
    )
    first, other = (
        join(TileDetections.from_rows(rows)),
        join(TileDetections.from_rows(rows[list(order)])),
    )
    for a, b in zip(first, other, strict=True):
        assert np.array_equal(a, b)
    assert not any(held(box, first[0]).any() for box in first[0])


@given(
    st.lists(st.tuples(st.floats(30, 270), st.floats(30, 220)), min_size=1, max_size=6),
    st.floats(4, 26),
)
def test_a_spot_comes_out_once_on_any_seam(
    tmp_path_factory: pytest.TempPathFactory, places: list[tuple[float, float]], radius: float
) -> None:
    """Tiles of 64 that share 16: a spot may be cut by none, two or four of them, or by all."""
    apart = []
    for x, y in places:
        if all(max(abs(x - a), abs(y - b)) > 2 * radius + 6 for a, b, _ in apart):
            apart.append((x, y, radius))
    store = store_of(tmp_path_factory.mktemp("store"), photo_with(apart, 300, 250))
    config = ScanSettings(overlap=0.25)
    rows = []
    for grid in grids(store, 64, config):
        numbers = range(len(grid.patches))
        rows.append(find_in_tiles(SpotDetector(), store, grid, numbers, config).rows_R8)  # type: ignore[arg-type]
    boxes, _, _ = join(TileDetections.from_rows(np.concatenate(rows)))
    (whole,), _ = SpotDetector().detect(store.read(0, 0, 0, 304, 304)[None])
    assert len(boxes) == len(whole.boxes_K4) == len(apart)
    assert all(iou(box, boxes).max() > 0.5 for box in whole.boxes_K4.astype(float))


def store_of(folder: Path, pixels: np.ndarray) -> PixelStore:
    writer = PixelWriter(folder, pixels.shape[1], pixels.shape[0])
    writer.write(pixels)
    writer.close({"name": "photo", "sha256": "0" * 64})
    return PixelStore.open(folder)
