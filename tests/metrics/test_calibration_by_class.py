"""Observed over expected, the classwise calibration error and the balanced rule."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from skindx.metrics import ClasswiseGaps, Statistic, balanced_rule, confidence_interval
from skindx.metrics.measures import Measure

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

HAND_NC = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.5, 0.4, 0.1], [0.6, 0.3, 0.1]])
HAND_TRUTH_N = np.array([0, 1, 1, 2])


def calibrated(n: int, seed: int, classes: int = 4) -> tuple[Floats, Ints]:
    """Return probabilities, and labels that are drawn from them."""
    random = np.random.default_rng(seed)
    p_NC = random.dirichlet(np.array([6.0, 2.0, 1.0, 0.2])[:classes], size=n)
    truth_N = (p_NC.cumsum(axis=1) < random.random((n, 1))).sum(axis=1).clip(max=classes - 1)
    return p_NC, truth_N


@pytest.mark.parametrize(
    ("classes", "expected"),
    [([0], 1 / 1.9), ([1], 2 / 1.7), ([2], 1 / 0.4), ([1, 2], 3 / 2.1), ([0, 1, 2], 1.0)],
)
def test_observed_over_expected_by_hand(classes: list[int], expected: float) -> None:
    measure = Statistic.observed_over_expected(HAND_NC, HAND_TRUTH_N, classes)
    assert measure.value == pytest.approx(expected)
    interval = confidence_interval(measure, np.arange(4), draws=50)
    assert interval.low <= expected <= interval.high


def test_none_observed_has_a_bound_like_poissons_and_none_expected_no_figure() -> None:
    n = 400
    p_NC, truth_N = np.tile([0.99, 0.01], (n, 1)), np.zeros(n, dtype=np.intp)
    measure = Statistic.observed_over_expected(p_NC, truth_N, [1])
    interval = confidence_interval(measure, np.arange(n), draws=50)
    # Of 4 expected images: exact is 3.69 / 4 for none observed.
    assert (interval.value, interval.low) == (0, 0)
    assert interval.high == pytest.approx(3.69 / 4, rel=0.01)
    pairs = confidence_interval(measure, np.arange(n) // 2, draws=50)
    assert pairs.high == pytest.approx(2 * interval.high, rel=0.02)
    never_NC = np.tile([1.0, 0.0], (n, 1))
    assert np.isnan(Statistic.observed_over_expected(never_NC, truth_N, [1]).value)


def test_calibrated_probabilities_are_observed_as_often_as_expected() -> None:
    """Of 120 intervals of 95 % about six miss; wrong probabilities are missed at once."""
    missed = 0
    for seed in range(30):
        p_NC, truth_N = calibrated(300, seed)
        groups_N = np.arange(300) // 2
        for k in range(4):
            measure = Statistic.observed_over_expected(p_NC, truth_N, [k])
            interval = confidence_interval(measure, groups_N, draws=100)
            missed += not interval.low <= 1 <= interval.high
    assert missed <= 14
    p_NC, truth_N = calibrated(3000, 1)
    weighted_NC = p_NC * [1, 1, 3, 1]
    weighted_NC /= weighted_NC.sum(axis=1, keepdims=True)
    measure = Statistic.observed_over_expected(weighted_NC, truth_N, [2])
    assert confidence_interval(measure, np.arange(3000), draws=200).high < 1


def test_classwise_error_by_hand() -> None:
    """Bins (0, 0.5] and (0.5, 1]: gaps are sums of truth minus probability."""
    # Class 0: bin 1 holds 0.1 and 0.5 (none of it), bin 2 holds 0.7 and 0.6 (one of it).
    # Class 1: 0.2, 0.4, 0.3 (one) and 0.8 (one). Class 2: all four at 0.1 (one).
    gaps = (abs(-0.6) + abs(1 - 1.3)) + (abs(1 - 0.9) + abs(1 - 0.8)) + abs(1 - 0.4)
    measure = ClasswiseGaps.measure(HAND_NC, HAND_TRUTH_N, bins=2)
    assert measure.value == pytest.approx(gaps / 4 / 3)
    interval = confidence_interval(measure, np.arange(4))
    assert interval.value == pytest.approx(measure.value)
    assert interval.low < interval.value < interval.high


def test_classwise_error_of_draws_is_that_of_the_drawn_images() -> None:
    p_NC, truth_N = calibrated(40, 3)
    groups_N = np.arange(40) // 4
    weights_DG = np.random.default_rng(0).integers(3, size=(5, 10)).astype(float)
    drawn_D = ClasswiseGaps.measure(p_NC, truth_N).redraw(groups_N, 10)(weights_DG)
    for weight_G, drawn in zip(weights_DG, drawn_D, strict=True):
        rows = np.repeat(np.arange(40), weight_G[groups_N].astype(int))
        assert drawn == pytest.approx(ClasswiseGaps.measure(p_NC[rows], truth_N[rows]).value)


def test_classwise_error_sees_what_the_likeliest_class_hides() -> None:
    """Classes 2 and 3 have each other's probabilities; their sum, and the rest, is right."""
    p_NC, truth_N = calibrated(4000, 5)
    p_NC = p_NC[:, [0, 1, 3, 2]]
    seldom_N = p_NC[:, :2].max(axis=1) > p_NC[:, 2:].max(axis=1)
    p_NC, truth_N = p_NC[seldom_N], truth_N[seldom_N]
    top, classwise = (
        Statistic.calibration_error(p_NC, truth_N),
        ClasswiseGaps.measure(p_NC, truth_N),
    )
    groups_N = np.arange(len(truth_N))
    assert classwise.value > 1.2 * top.value
    low = confidence_interval(classwise, groups_N).low
    right = ClasswiseGaps.measure(*calibrated(len(truth_N), 5))
    assert low > right.value
    assert confidence_interval(right, groups_N).low == 0


def test_the_interval_of_groups_is_wider() -> None:
    measure: Measure = ClasswiseGaps.measure(*calibrated(200, 2))
    alone, pairs = (
        confidence_interval(measure, groups) for groups in (np.arange(200), np.arange(200) // 2)
    )
    assert pairs.high - pairs.value > 1.3 * (alone.high - alone.value)


@given(st.integers(0, 2**32), st.floats(0.01, 100))
@settings(max_examples=40)
def test_the_balanced_rule_does_not_depend_on_the_sum_of_the_mix(seed: int, by: float) -> None:
    random = np.random.default_rng(seed)
    p_NC, mix_C = random.dirichlet(np.ones(4), size=9), random.dirichlet(np.ones(4)) + 1e-3
    once_NC, scaled_NC = balanced_rule(p_NC, mix_C), balanced_rule(p_NC, by * mix_C)
    np.testing.assert_allclose(once_NC, scaled_NC)
    np.testing.assert_allclose(once_NC.sum(axis=1), 1)
    np.testing.assert_array_equal(once_NC.argmax(axis=1), (p_NC / mix_C).argmax(axis=1))
    np.testing.assert_allclose(balanced_rule(p_NC, np.full(4, by)), p_NC)


def test_the_balanced_rule_is_best_for_equal_class_costs() -> None:
    """On calibrated probabilities: more classes found on average, fewer images named rightly."""
    p_NC, truth_N = calibrated(20_000, 7)
    mix_C = np.array([6.0, 2.0, 1.0, 0.2])
    rules = [p_NC, balanced_rule(p_NC, mix_C), balanced_rule(p_NC, mix_C**0.5)]
    balanced = [Statistic.balanced_accuracy(rule_NC, truth_N).value for rule_NC in rules]
    top1 = [Statistic.top_k(rule_NC, truth_N, 1).value for rule_NC in rules]
    assert balanced[1] > balanced[2] > balanced[0]
    assert top1[0] > top1[2] > top1[1]


def test_a_class_that_the_mix_lacks_is_never_chosen() -> None:
    p_NC, mix_C = np.array([[0.2, 0.1, 0.7], [0.0, 0.0, 1.0]]), np.array([2.0, 0.5, 0.0])
    np.testing.assert_allclose(balanced_rule(p_NC, mix_C), [[1 / 3, 2 / 3, 0], [0, 0, 1]])
    for wrong in (np.zeros(3), np.array([0.5, 0.5]), np.array([1.0, 1.0, -0.1])):
        with pytest.raises(ValueError, match="share for each of 3 classes"):
            balanced_rule(p_NC, wrong)


def test_log_loss_by_hand() -> None:
    expected = -np.log([0.7, 0.8, 0.4, 0.1]).mean()
    measure = Statistic.log_loss(HAND_NC, HAND_TRUTH_N)
    assert (measure.value, measure.high) == pytest.approx((expected, -np.log(0.1)))
