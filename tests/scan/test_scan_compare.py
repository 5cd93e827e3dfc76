"""Two photos of one body: registration, matching, and what is called a change."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control
from seen_bodies import Body, compared, paint_body, right, seen_again, view_of

from skindx.core.errors import UserError
from skindx.scan.compare import warp as plane
from skindx.scan.compare import warp as thin_plate
from skindx.scan.compare.changes import (
    Matched,
    _backwards,
    colour_changes,
    discoveries,
    growth_of,
    match,
)
from skindx.scan.compare.registration import ScanView, register
from skindx.scan.compare.warp import constellation

SIZE = (720, 540)


@pytest.fixture(scope="module")
def body() -> Body:
    return paint_body(np.random.default_rng(5), 36, SIZE)


def views(body: Body, again: Body, seed: int = 0) -> tuple[ScanView, ScanView]:
    rng = np.random.default_rng(seed)
    return view_of(rng, body), view_of(rng, again)


@pytest.mark.parametrize("scale", [1.2, 1 / 1.2], ids=["nearer", "farther"])
def test_lesions_are_found_again(body: Body, scale: float) -> None:
    again = seen_again(np.random.default_rng(1), body, 15, scale, noise=0.015)
    before, after = views(body, again)
    matched, found = compared(before, after)
    hits, shared = right(before, after, matched)
    assert shared >= 15
    assert hits >= 0.98 * shared
    assert sum(change.kind in ("new", "vanished") for change in found) <= 0.1 * shared
    # Where a lesion should be is within three standard deviations of where it is.
    error = matched.registration.warp.error_px
    moved = matched.registration.warp(body.centres_N2[body.inside() & again.inside()])
    truth = again.centres_N2[body.inside() & again.inside()]
    assert np.median(np.hypot(*(moved - truth).T)) < max(3 * error, 4)


def test_another_body_is_refused(body: Body) -> None:
    other = paint_body(np.random.default_rng(99), 40, SIZE)
    with pytest.raises(UserError, match="so they cannot be compared"):
        register(*views(body, other))


def test_a_ruler_on_both_photos_does_not_make_two_people_one(body: Body) -> None:
    other = paint_body(np.random.default_rng(99), 40, SIZE)
    sheet = np.random.default_rng(0).integers(0, 255, (20, 30, 3), np.uint8)
    sheet = cv2.resize(sheet, (340, 220), interpolation=cv2.INTER_NEAREST)
    both = []
    for one in (body, other):
        pixels = one.pixels_HW3.copy()
        pixels[160:380, 190:530] = sheet
        both.append(replace(one, pixels_HW3=pixels))
    with pytest.raises(UserError, match="so they cannot be compared"):
        register(*views(*both))


def test_lesions_alone_are_enough_where_the_skin_has_changed(body: Body) -> None:
    """Years later no pore is where it was: only the constellation of the lesions remains."""
    again = seen_again(np.random.default_rng(1), body, 12, 1.1)
    flat = np.full_like(body.pixels_HW3, 170)
    before, after = views(replace(body, pixels_HW3=flat), replace(again, pixels_HW3=flat))
    matched, _ = compared(before, after)
    assert matched.registration.by_lesions
    hits, shared = right(before, after, matched)
    assert hits >= 0.9 * shared
    other = paint_body(np.random.default_rng(99), 40, SIZE)
    with pytest.raises(UserError):
        register(*views(replace(body, pixels_HW3=flat), replace(other, pixels_HW3=flat)))


def test_skin_on_which_most_lesions_are_out_of_place_is_refused(body: Body) -> None:
    before, after = views(body, body)
    registration = register(before, after)
    stay = len(after.rows) // 3
    shift_14 = np.array([6.0, 0.0, 6.0, 0.0]) * after.sizes.max()
    moved_L4 = after.boxes_L4.copy()
    moved_L4[stay:] = np.roll(moved_L4[stay:], 1, axis=0) + shift_14  # their sizes go along
    with pytest.raises(UserError, match=r"only \d+ of \d+ lesions .* posture"):
        match(before, replace(after, boxes_L4=moved_L4), registration)


def test_chance_makes_no_constellation() -> None:
    rng = np.random.default_rng(0)
    for _ in range(4):
        places = [rng.uniform(0, 1000, (40, 2)) for _ in range(2)]
        sizes = [np.exp(rng.normal(3, 0.4, 40)) for _ in range(2)]
        found = constellation(places[0], sizes[0], places[1], sizes[1], (1000, 1000))
        assert found is None


def test_new_grown_changed_and_vanished_lesions_are_told_apart(body: Body) -> None:
    again = seen_again(np.random.default_rng(1), body, 6, 1.05, noise=0.015)
    whole = np.flatnonzero(body.inside() & again.inside())
    assert len(whole) > 20
    largest = whole[np.argsort(-again.sizes_N[whole])]
    lost, came, grew, shrank, darker = (int(number) for number in largest[:5])
    sizes, colours = again.sizes_N.copy(), again.colours_N3.copy()
    sizes[grew] *= 1.7
    sizes[shrank] *= 0.6
    colours[darker] += (-25, 0, 0)
    before, after = views(body, replace(again, sizes_N=sizes, colours_N3=colours))
    before, after = without(before, came), without(after, lost)
    _, found = compared(before, after)
    kinds = {
        change.before["rank"] if change.before else change.after["rank"]: change  # type: ignore[index]
        for change in found
    }
    assert kinds[lost].kind == "vanished"
    assert kinds[came].kind == "new"
    assert kinds[grew].kind == "grown"
    assert kinds[grew].growth is not None
    assert kinds[grew].growth.low < 1.7 < kinds[grew].growth.high
    assert kinds[grew].growth.low > 1
    assert (kinds[shrank].kind, kinds[shrank].reasons) == ("changed", ("smaller",))
    assert kinds[darker].reasons == ("colour",)
    planted = {lost, came, grew, shrank, darker}
    assert {kinds[rank].kind for rank in kinds if rank not in planted} <= {"same", "not comparable"}
    # What lies out of the other photo has neither come nor gone.
    seen = [{row["rank"] for row in view.rows} for view in (before, after)]
    for rank in seen[0] ^ seen[1]:
        if rank not in planted:
            assert kinds[rank].kind == "not comparable"
    assert [change.kind for change in found][:2] == ["new", "grown"]


def without(view: ScanView, lesion: int) -> ScanView:
    kept = [n for n, row in enumerate(view.rows) if row["rank"] != lesion]
    rows = tuple(view.rows[n] for n in kept)
    return replace(view, boxes_L4=view.boxes_L4[kept], colours_L3=view.colours_L3[kept], rows=rows)


def test_growth_by_hand_of_photos_with_scales() -> None:
    """20 pixels of 0.1 mm are 2 mm; 30 of 0.2 mm are 6: three times as large."""
    before, after = (
        SimpleNamespace(
            sizes=np.full(3, size),
            mm_per_pixel=scale,
            centres=np.zeros((3, 2)),
            size_wh=(720, 540),
            photo=SimpleNamespace(width=720),
        )
        for size, scale in ((20.0, 0.1), (30.0, 0.2))
    )
    matched = SimpleNamespace(
        pairs_N2=np.array([[0, 0], [1, 1], [2, 2]]), registration=SimpleNamespace(warp=None)
    )
    growth_N, _ = growth_of(cast(ScanView, before), cast(ScanView, after), cast(Matched, matched))
    np.testing.assert_allclose(growth_N, np.log(3))


@pytest.mark.parametrize(
    ("others", "change", "clear"),
    [(0.0, 5.0, False), (0.0, 7.0, True), (5.0, 7.0, False), (5.0, 20.0, True)],
    ids=["too small", "large enough", "as much as others", "more than others"],
)
def test_a_clear_colour_is_far_off_and_farther_than_those_of_others(
    others: float, change: float, clear: bool
) -> None:
    """Half of the others become redder, half greener; the last lesion becomes lighter."""
    off_N3 = np.zeros((101, 3))
    off_N3[:50, 1], off_N3[50:100, 1], off_N3[100, 0] = others, -others, change
    before_N3 = np.full_like(off_N3, 50)
    away_N, clear_N = colour_changes(before_N3, before_N3 + off_N3)
    assert away_N[100] == pytest.approx(change)
    assert clear_N[100] == clear
    assert not clear_N[:100].any()


def test_no_lesion_is_matched_twice_and_none_is_lost(body: Body) -> None:
    again = seen_again(np.random.default_rng(2), body, 8, 0.95)
    before, after = views(body, again)
    matched, found = compared(before, after)
    for side in matched.pairs_N2.T:
        assert len(set(side.tolist())) == len(side)
    assert sum(change.before is not None for change in found) == len(before.rows)
    assert sum(change.after is not None for change in found) == len(after.rows)
    # The way back leads to where one came from.
    for centre in before.centres[:5]:
        moved = matched.registration.warp(centre[None])[0]
        back, scale = _backwards(before, matched, moved)
        assert np.hypot(*(np.array(back) - centre)) < 0.5
        assert scale == pytest.approx(matched.registration.warp.scales(centre[None])[0], rel=0.02)


@given(st.integers(0, 1000))
def test_a_spline_through_a_plane_is_the_plane(seed: int) -> None:
    rng = np.random.default_rng(seed)
    map_33 = np.array([[1.1, 0.1, 5], [-0.1, 0.9, 9], [1e-5, -1e-5, 1]])
    places = rng.uniform(0, 1000, (60, 2))
    warp = thin_plate.fit_warp(map_33, places, plane.apply_homography(map_33, places))
    asked = rng.uniform(0, 1000, (20, 2))
    assert warp(asked) == pytest.approx(plane.apply_homography(map_33, asked), abs=1e-3)
    # Of a plane without perspective the scale is the root of the determinant, everywhere.
    flat = map_33.copy()
    flat[2] = [0, 0, 1]
    warp = thin_plate.fit_warp(flat, places, plane.apply_homography(flat, places))
    assert warp.scales(asked) == pytest.approx(np.sqrt(np.linalg.det(flat[:2, :2])), rel=1e-3)
    assert (warp.errors(asked + 3000) > warp.errors(asked)).all()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_discoveries_are_those_of_benjamini_and_hochberg(p_values: list[float]) -> None:
    expected = false_discovery_control(p_values) <= 0.05
    assert discoveries(np.array(p_values)).tolist() == pytest.approx(expected.tolist())


def test_mirrors_and_folds_are_no_camera() -> None:
    places = np.random.default_rng(0).uniform(0, 1000, (30, 2))
    assert plane.plausible_homography(np.eye(3), places)
    assert not plane.plausible_homography(np.diag([-1.0, 1, 1]), places)
    assert not plane.plausible_homography(np.diag([5.0, 5, 1]), places)
    assert not plane.plausible_homography(np.diag([3.0, 1, 1]), places)
    assert not plane.plausible_homography(
        np.array([[1, 0, 0], [0, 1, 0], [-0.002, 0, 1.0]]), places
    )
