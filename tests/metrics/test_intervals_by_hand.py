"""Intervals of samples so small that each can be computed by hand."""

from math import hypot, sqrt
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from skindx.metrics import (
    gap_test,
    paired_interval,
    proportion_interval,
    share_interval,
)
from skindx.metrics.bootstrap import _level, bootstrap_intervals
from skindx.metrics.share_intervals import Interval, calibration_interval, difference_of

TAIL = 0.025


def estimated(trials: float, groups: int) -> float:
    """Return trials whose variance was estimated from so many groups (Korn and Graubard)."""
    return trials * (stats.norm.ppf(1 - TAIL) / stats.t.ppf(1 - TAIL, groups - 1)) ** 2


@pytest.mark.parametrize(
    ("hits", "groups", "trials"),
    [
        (
            (1, 1, 0, 0) * 3,
            tuple(n // 2 for n in range(12)),
            6,
        ),  # alike in a group: never fewer than Kish's number
        ((1, 1, 0, 0, 1, 0, 1, 0), (0, 0, 1, 1, 2, 2, 3, 3), 6),  # variance 2 / 64 * 4 / 3
        ((1, 0, 1, 0), (0, 0, 1, 1), 4),  # opposed in a group: never more than the images
    ],
)
def test_the_trials_of_a_share(
    hits: tuple[int, ...], groups: tuple[int, ...], trials: float
) -> None:
    expected = proportion_interval(0.5, estimated(trials, len(set(groups))))
    made = share_interval(hits, groups)
    assert (made.low, made.high) == pytest.approx((expected.low, expected.high))


def test_a_difference_joins_the_facing_ends() -> None:
    made = difference_of(Interval(0.9, 0.8, 0.92), Interval(0.5, 0.4, 0.7))
    assert made.low == pytest.approx(0.4 - hypot(0.1, 0.2))
    assert made.high == pytest.approx(0.4 + hypot(0.02, 0.1))
    biased = [SimpleNamespace(biased=True, at=Interval(*at)) for at in
              ((0.3, 0.2, 0.5), (0.1, 0.05, 0.2))]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "skindx.metrics.bootstrap.confidence_interval", lambda side, *_, **__: side.at
        )
        made = paired_interval(*biased, [0, 1])  # type: ignore[arg-type]
    assert (made.low, made.high) == pytest.approx((0.0, 0.45))


def test_images_of_one_group_widen_the_calibration_error() -> None:
    gaps_N, bins_N, hits_N = np.full(40, 0.3), np.zeros(40, int), np.full(40, 1.0)
    alone = calibration_interval(gaps_N, bins_N, hits_N, np.arange(40))
    pairs = calibration_interval(gaps_N, bins_N, hits_N, np.arange(40) // 2)
    assert pairs.high - pairs.value == pytest.approx(sqrt(2) * (alone.high - alone.value))


def test_of_a_mean_over_classes_each_has_its_unseen_images() -> None:
    """Every draw gives 1: all that may be missed is what no image shows."""
    strata_N = np.array([0, 0, *[1] * 8])
    for strata, unseen in (
        (strata_N, hypot(1 - TAIL ** (1 / 2), 1 - TAIL ** (1 / 8)) / 2),
        (None, 1 - TAIL ** (1 / 10)),
    ):
        (made,) = bootstrap_intervals(
            lambda weights_DG: np.ones((len(weights_DG), 1)),
            np.ones(1), np.arange(10), strata_N=strata, draws=20,
        )  # fmt: skip
        assert (made.low, made.high) == pytest.approx((1 - unseen, 1))


def test_parts_that_differ_by_their_classes_alone_have_no_gap() -> None:
    classes_N = np.array([0, 0, 0, 1, 0, 1, 1, 1])
    parts_N = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    test = gap_test(classes_N == 0, parts_N, classes_N, np.arange(8), permutations=50)
    assert test is not None
    assert (test.gap, test.p) == (pytest.approx(0), pytest.approx(1))


def test_skewed_deviations_ask_for_no_more_than_bonferroni() -> None:
    values_DK = np.zeros((100, 4))
    values_DK[:6, 0] = 9.0
    assert _level(values_DK, [0.0] * 4, 0.95) == pytest.approx(1 - 0.05 / 4)
