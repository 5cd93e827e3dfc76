"""Lesions of painted bodies that cameras from other sides see again, on skin that has moved."""

import numpy as np
import pytest
from seen_bodies import compared, right

from skindx_bench.scan.scan_compare import Body, Camera, paint_body, seen_again, view_of
from skindx_bench.subjects import run_bench


@pytest.fixture(scope="module")
def body() -> Body:
    return paint_body(np.random.default_rng(5), 36, (720, 540))


@pytest.mark.parametrize(
    ("camera", "least"),
    [
        (Camera(15, 1.2, 0.15, noise=0.015), 0.98),
        (Camera(-15, 1 / 1.2, -0.15, noise=0.015), 0.98),
        (Camera(5, 1.1, 0.05, 0.012, 0.3, 0.03), 0.9),
        (Camera(8, 0.95, warp=0.01), 0.9),
    ],
    ids=["nearer", "farther", "moved skin", "slightly moved skin"],
)
def test_lesions_are_found_again(body: Body, camera: Camera, least: float) -> None:
    again = seen_again(np.random.default_rng(1), body, camera)
    rng = np.random.default_rng(0)
    before, after = view_of(rng, body, 0.04), view_of(rng, again, 0.04)
    matched, found = compared(before, after)
    hits, shared = right(before, after, matched)
    assert shared >= 15
    assert hits >= least * shared
    assert sum(change.kind in ("new", "vanished") for change in found) <= 0.1 * shared
    # Where a lesion should be is within three standard deviations of where it is.
    error = matched.registration.warp.error_px
    moved = matched.registration.warp(body.centres_N2[body.inside() & again.inside()])
    truth = again.centres_N2[body.inside() & again.inside()]
    assert np.median(np.hypot(*(moved - truth).T)) < max(3 * error, 4)


@pytest.mark.lab
def test_the_smallest_bench_runs() -> None:
    figures = run_bench("scan-compare", smallest=True).figures
    assert {"camera_matched", "warped_matched", "others_refused"} <= set(figures)
    assert figures["camera_matched"].value > 90
