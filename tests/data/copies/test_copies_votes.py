"""Candidates depend on the pair alone; chunks, order and what else is there change nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from skindx.data.copies import copy_candidates as alike
from skindx.data.copies import copy_candidates as recurring
from skindx.data.copies.describe import Description, shipped_codebook
from skindx.data.copies.find import join_chunks
from skindx.data.copies.geometry import mirrored_points

SHAPE = (256, 256)
NONE = np.empty(0, np.uint64)


def described(points: NDArray[np.float32], codes: NDArray[np.int8]) -> Description:
    book = shipped_codebook()
    small = np.zeros((128, 128), np.uint8)
    both = book.nearest(codes), book.nearest(codes * book.signs)
    return Description(SHAPE, small, points.astype(np.float32), codes, *both)


def drawn(rng: np.random.Generator, count: int) -> Description:
    points = np.column_stack(
        [rng.uniform(0, 256, (count, 2)), rng.uniform(2, 20, count), rng.uniform(0, 360, count)]
    )
    return described(points, rng.normal(0, 20, (count, 64)).clip(-127, 127).astype(np.int8))


def turned(image: Description, degrees: float, *, mirror: bool) -> Description:
    points, codes = image.points_P4.copy(), image.codes_PC
    if mirror:
        points, codes = mirrored_points(points, 256), codes * shipped_codebook().signs
    points[:, 3] = (points[:, 3] + degrees) % 360
    points[:, 2] *= 1.5
    return described(points, codes)


def joined(images: list[Description], chunk: int) -> NDArray[np.int64]:
    library = {str(at): image for at, image in enumerate(images)}
    names = list(library)
    count = -(-len(names) // chunk)
    found = [
        join_chunks(library, names, NONE, (a, b, chunk))
        for a in range(count)
        for b in range(a, count)
    ]
    return np.concatenate(found)


def candidates(images: list[Description], chunk: int) -> set[tuple[int, ...]]:
    return {tuple(row[:3]) for row in joined(images, chunk).tolist() if row[2]}


def most_alike(images: list[Description], chunk: int) -> list[list[int]]:
    rows = joined(images, chunk)
    return sorted(alike.leading(rows[rows[:, 3] > 0][:, [0, 1, 3]]).tolist())


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("degrees", [0.0, 91.0, 200.0])
def test_a_turned_copy_is_a_candidate_with_a_vote_from_nearly_every_point(
    degrees: float, mirror: bool
) -> None:
    rng = np.random.default_rng(1)
    one, other = drawn(rng, 60), drawn(rng, 60)
    found = candidates([one, other, turned(one, degrees, mirror=mirror)], 10)
    assert {row[:2] for row in found} == {(0, 2)}
    assert next(iter(found))[2] > 50


def test_points_that_disagree_on_the_turn_do_not_add_up() -> None:
    rng = np.random.default_rng(2)
    one = drawn(rng, 40)
    points = one.points_P4.copy()
    points[:, 3] = rng.uniform(0, 360, 40)
    points[:, 2] = 2 ** rng.uniform(1, 5, 40)
    agreed = {row[:2]: row[2] for row in candidates([one, described(points, one.codes_PC)], 10)}
    assert agreed.get((0, 1), 0) < 12


@given(st.integers(0, 2**32), st.integers(1, 12))
def test_chunks_and_neighbours_change_no_candidate(seed: int, chunk: int) -> None:
    rng = np.random.default_rng(seed)
    images = [drawn(rng, int(rng.integers(0, 40))) for _ in range(6)]
    images += [turned(image, 40, mirror=bool(at % 2)) for at, image in enumerate(images)]
    whole = candidates(images, 100)
    assert candidates(images, chunk) == whole
    for i, j, count in whole:
        assert candidates([images[i], images[j]], 10) == {(0, 1, count)}


def overlaid(rng: np.random.Generator, overlay: Description) -> Description:
    own = drawn(rng, 30)
    points = np.concatenate([own.points_P4, overlay.points_P4])
    return described(points, np.concatenate([own.codes_PC, overlay.codes_PC]))


def test_a_shared_overlay_makes_no_candidates_once_it_recurs() -> None:
    rng = np.random.default_rng(3)
    overlay = drawn(rng, 20)
    library = {str(at): overlaid(rng, overlay) for at in range(recurring.LEAST_FAMILIES + 6)}
    names = list(library)
    everyone = np.arange(len(names))
    few = recurring.recurring_keys(library, names[:20], everyone[:20])
    assert len(few) == 0
    keys = recurring.recurring_keys(library, names, everyone)
    assert set(keys) == set(recurring.point_keys(overlay))
    part = (0, 0, 100)
    voted = join_chunks(library, names, NONE, part)[:, 2] > 0
    assert voted.sum() == len(names) * (len(names) - 1) // 2
    assert len(join_chunks(library, names, keys, part)) == 0


def test_recurring_points_are_counted_in_any_order_and_in_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(4)
    overlay = drawn(rng, 20)
    library = {str(at): overlaid(rng, overlay) for at in range(40)}
    names, families = list(library), np.arange(40)
    keys = recurring.recurring_keys(library, names, families)
    order = rng.permutation(40)
    again = recurring.recurring_keys(library, [names[at] for at in order], families[order])
    np.testing.assert_array_equal(again, keys)
    monkeypatch.setattr(recurring, "_PASS_KEYS", 3000)
    np.testing.assert_array_equal(recurring.recurring_keys(library, names, families), keys)


def test_copies_of_one_image_are_one_family_and_keep_their_points() -> None:
    rng = np.random.default_rng(5)
    image = drawn(rng, 20)
    library = {str(at): image for at in range(100)}
    others = {str(100 + at): drawn(rng, 20) for at in range(100)}
    names = [*library, *others]
    families = np.array([0] * 100 + list(range(1, 101)))
    assert len(recurring.recurring_keys(library | others, names, families)) == 0


def blurred(rng: np.random.Generator, image: Description, keep: int) -> Description:
    """Keep some points, their codes too far away for a vote, and put others beside them."""
    codes = (image.codes_PC[:keep] + rng.normal(0, 9.5, (keep, 64))).clip(-127, 127)
    other = drawn(rng, 40)
    points = np.concatenate([turned(image, 33, mirror=False).points_P4[:keep], other.points_P4])
    # The whole image is turned, not only the directions of its points.
    turn = np.deg2rad(33)
    x, y = image.points_P4[:keep, 0] - 128, image.points_P4[:keep, 1] - 128
    points[:keep, 0] = 128 + 1.5 * (np.cos(turn) * x - np.sin(turn) * y)
    points[:keep, 1] = 128 + 1.5 * (np.sin(turn) * x + np.cos(turn) * y)
    return described(points, np.concatenate([codes.astype(np.int8), other.codes_PC]))


def test_few_and_blurred_points_that_agree_on_the_place_make_the_most_alike() -> None:
    rng = np.random.default_rng(6)
    images = [drawn(rng, 40) for _ in range(8)]
    images.append(blurred(rng, images[3], 12))
    assert (3, 8) not in {row[:2] for row in candidates(images, 100)}
    assert [row[:2] for row in most_alike(images, 100)] == [[3, 8]]
    moved = images[-1].points_P4.copy()
    moved[:, :2] = rng.uniform(0, 256, (len(moved), 2))
    images[-1] = described(moved, images[-1].codes_PC)
    assert most_alike(images, 100) == []


@settings(max_examples=10)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_chunks_change_none_of_the_most_alike(seed: int, chunk: int) -> None:
    rng = np.random.default_rng(seed)
    images = [drawn(rng, 30) for _ in range(3)]
    images += [blurred(rng, images[at % 3], 10 + at) for at in range(9)]
    assert most_alike(images, chunk) == most_alike(images, 100)


def test_each_image_has_its_few_most_alike_and_the_smaller_position_among_equals() -> None:
    star = [[0, other, 1000] for other in range(1, 9)]
    rows = np.array([*star, [7, 8, 500], [1, 2, 900]], np.int64)
    # Of 0 the first five; each of the others has 0 among its few anyway.
    assert alike.leading(rows).tolist() == rows.tolist()
    crowded = np.array([[a, b, 100 - a - b] for a in range(20) for b in range(a + 1, 20)])
    kept = alike.leading(crowded)
    assert len(kept) <= 20 * alike.LEADING_IMAGES
    assert {tuple(row) for row in kept[kept[:, 0] == 0].tolist()} >= {
        (0, b, 100 - b) for b in range(1, 1 + alike.LEADING_IMAGES)
    }
    assert alike.leading(np.empty((0, 3), np.int64)).shape == (0, 3)
