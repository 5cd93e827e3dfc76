"""ROC figures, predictive values and net benefit: by hand, and against scikit-learn."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from skindx.metrics import (
    Interval,
    decision_curve,
    operating_curves,
    predictive_values,
    roc_figures,
)
from skindx.metrics.operating_curves import net_benefit

SCORES = np.array([0.9, 0.8, 0.8, 0.6, 0.4, 0.4, 0.2, 0.1])
POSITIVE = np.array([1, 1, 0, 1, 0, 1, 0, 0], dtype=bool)


def drawn(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    positive_N = random.random(n) < 0.3
    scores_N = np.clip(random.normal(0.3 + 0.25 * positive_N, 0.2), 0, 1).round(2)
    return scores_N, positive_N, np.arange(n) // 2


def partial_auroc(scores_N: np.ndarray, positive_N: np.ndarray, least: float) -> float:
    """Return the area above a sensitivity, which `roc_figures` gives for two of them."""
    curve = operating_curves._curve_of(scores_N, positive_N)
    return operating_curves._area(*curve(np.ones(len(scores_N))), least)


def by_symmetry(scores_N: np.ndarray, positive_N: np.ndarray, least: float) -> float:
    """Return ISIC 2024's area above a sensitivity, over its greatest value.

    Where the kinds are exchanged, specificity is sensitivity: scikit-learn's area up to a share of
    false positives, without its correction of McClish.
    """
    most = 1 - least
    scaled = roc_auc_score(~positive_N, -scores_N, max_fpr=most)
    chance = 0.5 * most**2
    return float(chance + (scaled - 0.5) / 0.5 * (most - chance)) / most


def test_the_partial_area_is_that_of_a_hand_drawn_curve() -> None:
    # Points (over-triage, sensitivity): (0, 1/4), (1/4, 1/2), (1/4, 3/4), (1/2, 1), …
    assert partial_auroc(SCORES, POSITIVE, 0.75) == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert partial_auroc(SCORES, POSITIVE, 0.5) == pytest.approx((0.75 + 0.625) / 2)
    assert partial_auroc(SCORES, POSITIVE, 0) == pytest.approx(roc_auc_score(POSITIVE, SCORES))
    assert partial_auroc(POSITIVE.astype(float), POSITIVE, 0.88) == 1


@given(st.integers(0, 10_000), st.sampled_from([0.5, 0.8, 0.88, 0.97]))
def test_the_partial_area_agrees_with_scikit_learn(seed: int, least: float) -> None:
    scores_N, positive_N, _ = drawn(60, seed)
    if positive_N.all() or not positive_N.any():
        return
    expected = by_symmetry(scores_N, positive_N, least)
    assert partial_auroc(scores_N, positive_N, least) == pytest.approx(expected, abs=1e-12)


def test_the_figures_of_a_curve_are_those_of_its_thresholds() -> None:
    scores_N, positive_N, groups_N = drawn(400)
    over, missed = [0.0, 0.05, 0.2, 1.0], [0.0, 0.05, 0.3]
    figures = roc_figures(
        scores_N, positive_N, groups_N, over_triage=over, missed=missed, draws=200
    )
    assert figures is not None
    false_T, true_T, _ = roc_curve(positive_N, scores_N, drop_intermediate=False)
    assert [f.value for f in figures.sensitivity] == pytest.approx(
        [true_T[false_T <= most + 1e-9].max() for most in over]
    )
    assert [f.value for f in figures.over_triage] == pytest.approx(
        [false_T[1 - true_T <= most + 1e-9].min() for most in missed]
    )
    assert figures.areas[0].value == pytest.approx(roc_auc_score(positive_N, scores_N))
    for figure in (*figures.areas, *figures.sensitivity, *figures.over_triage):
        assert 0 <= figure.low <= figure.value <= figure.high <= 1
        assert figure.high > figure.low  # also where all are found
    perfect = roc_figures(positive_N.astype(float), positive_N, groups_N, draws=50)
    assert perfect is not None
    assert (perfect.areas[0].value, perfect.areas[0].high) == (1, 1)
    assert perfect.areas[0].low < 1
    assert roc_figures(scores_N, np.zeros(400, dtype=bool), groups_N) is None


def test_predictive_values_follow_bayes() -> None:
    exact = Interval(0.9, 0.9, 0.9), Interval(0.6, 0.6, 0.6)
    ppv, npv = predictive_values(*exact, 0.05)
    # Of 1,000 photos 50 are positive: 45 called, beside 380 of the 950 others; 5 are missed.
    assert (ppv.value, npv.value) == pytest.approx((45 / 425, 570 / 575))
    assert (ppv.low, ppv.high) == pytest.approx((ppv.value, ppv.value))
    wide = Interval(1.0, 0.8, 1.0), Interval(0.6, 0.5, 0.7)
    ppv, npv = predictive_values(*wide, 0.01)
    assert npv.value == npv.high == 1
    assert pytest.approx(npv.low) == 0.6 * 0.99 / (0.6 * 0.99 + 0.002)  # one side alone moves it
    assert predictive_values(wide[0], Interval(0.5, 0.5, 0.5), 0.01)[0].low < ppv.low < ppv.value
    nobody = predictive_values(Interval(0, 0, 0.2), Interval(1, 0.9, 1), 0.2)
    assert math.isnan(nobody[0].value)
    assert nobody[1].value == pytest.approx(0.8)


def test_net_benefit_by_hand_and_at_the_defaults() -> None:
    # From 0.5 on 3 true and 1 false of 8: 3/8 - 1/8; from 0.2 on 4 and 3, at odds of 1/4.
    benefit_T = net_benefit(SCORES, POSITIVE, np.array([0.5, 0.2]))
    assert benefit_T == pytest.approx([0.25, 4 / 8 - 3 / 8 / 4])
    points = decision_curve(SCORES, POSITIVE, np.arange(8), [0.05, 0.2, 0.5], draws=100)
    assert points[1].net_benefit.value == pytest.approx(benefit_T[1])
    assert [point.refer_all.value for point in points] == pytest.approx(
        [0.5 - 0.5 * odds for odds in (0.05 / 0.95, 0.25, 1.0)]
    )
    # From 0.05 on all are called: the score gains nothing over referring all.
    assert points[0].gain.value == 0
    assert points[2].gain.value == pytest.approx(0.25)
    for point in points:
        for figure in (point.net_benefit, point.refer_all, point.gain):
            assert figure.low < figure.value < figure.high or figure.value == 0
            assert figure.low < figure.high
