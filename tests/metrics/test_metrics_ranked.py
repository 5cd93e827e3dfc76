"""Measures of order, of sets and of pairs, against scikit-learn, SciPy and hand computation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from plain_measures import auroc, macro_f1
from scipy import stats
from sklearn import metrics as peer

from skindx.metrics import (
    Measure,
    Ranked,
    Statistic,
    bootstrap_interval,
    mcnemar,
    paired_interval,
    risk_curve,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

HAND_NC = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.5, 0.4, 0.1], [0.6, 0.3, 0.1]])
HAND_TRUTH_N = np.array([0, 1, 1, 2])


def simulate(n: int, classes: int, seed: int = 0, coarse: bool = False) -> tuple[Floats, Ints]:
    """Return probabilities and labels; coarse ones are tenths, so that many are equal."""
    random = np.random.default_rng(seed)
    truth_N = random.integers(classes, size=n)
    weights_NC = random.gamma(0.7, size=(n, classes)) + np.eye(classes)[truth_N]
    if coarse:
        weights_NC = np.ceil(3 * weights_NC)
    return weights_NC / weights_NC.sum(axis=1, keepdims=True), truth_N


@st.composite
def cases(draw: st.DrawFn) -> tuple[Floats, Ints]:
    n, classes = draw(st.integers(2, 30)), draw(st.integers(2, 5))
    return simulate(n, classes, draw(st.integers(0, 2**32)), draw(st.booleans()))


@pytest.mark.parametrize("coarse", [False, True])
def test_agreement_with_scikit_learn(coarse: bool) -> None:
    probabilities_NC, truth_N = simulate(200, 5, coarse=coarse)
    one_against_rest = [peer.roc_auc_score(truth_N == c, probabilities_NC[:, c]) for c in range(5)]
    assert auroc(probabilities_NC, truth_N) == pytest.approx(np.mean(one_against_rest))
    assert auroc(probabilities_NC, truth_N) == pytest.approx(
        peer.roc_auc_score(truth_N, probabilities_NC, multi_class="ovr", average="macro")
    )
    predicted_N = probabilities_NC.argmax(axis=1)
    assert macro_f1(probabilities_NC, truth_N) == pytest.approx(
        peer.f1_score(truth_N, predicted_N, average="macro")
    )


def test_absent_classes_have_no_say() -> None:
    probabilities_NC, truth_N = simulate(100, 3)
    wider_NC = np.hstack([0.8 * probabilities_NC, np.full((100, 1), 0.2)])
    assert auroc(wider_NC, truth_N) == pytest.approx(auroc(probabilities_NC, truth_N))
    predicted_N = wider_NC.argmax(axis=1)
    assert macro_f1(wider_NC, truth_N) == pytest.approx(
        peer.f1_score(truth_N, predicted_N, average="macro", labels=np.unique(truth_N))
    )
    only = np.zeros(4, dtype=np.intp)
    assert np.isnan(auroc(HAND_NC, only))
    found = bootstrap_interval(Ranked.auroc(HAND_NC, only), np.arange(4), draws=20)
    assert np.isnan([found.value, found.low, found.high]).all()


def test_hand_computed_areas() -> None:
    # Class 0: .7 beats .1, .5, .6: 3 of 3. Class 1: .8 and .4 against .2, .3: 4 of 4.
    # Class 2: .1 ties with all three: a half.
    assert auroc(HAND_NC, HAND_TRUTH_N) == pytest.approx((1 + 1 + 0.5) / 3)
    # By confidence: .8 right, .7 right, .6 wrong, .5 wrong: risks 0, 0, 1/3, 2/4.
    area = Ranked.selective_risk_area(HAND_NC, HAND_TRUTH_N).value
    assert area == pytest.approx((0 + 0 + 1 / 3 + 1 / 2) / 4)
    points = risk_curve(HAND_NC, HAND_TRUTH_N, np.arange(4), steps=4)
    assert [point.coverage for point in points] == [0.25, 0.5, 0.75, 1.0]
    assert [point.risk for point in points] == pytest.approx([0, 0, 1 / 3, 1 / 2])
    assert [point.confidence for point in points] == [0.8, 0.7, 0.6, 0.5]


def test_equal_confidence_is_answered_together() -> None:
    even_NC = np.array([[0.9, 0.1], [0.8, 0.2], [0.8, 0.2]])
    truth_N = np.array([0, 1, 0])
    # The first is right; the other two come as one, of whose three one is wrong.
    assert Ranked.selective_risk_area(even_NC, truth_N).value == pytest.approx((0 + 2 / 3) / 3)
    order = [0, 2, 1]
    one = risk_curve(even_NC, truth_N, np.arange(3))
    assert one == risk_curve(even_NC[order], truth_N[order], np.arange(3)[order])
    assert one[0].wrong.high > 0.9  # of one image


@given(cases(), st.integers(0, 2**32))
def test_a_weight_is_worth_as_many_copies(case: tuple[Floats, Ints], seed: int) -> None:
    probabilities_NC, truth_N = case
    weights_N = np.random.default_rng(seed).integers(0, 4, size=len(truth_N))
    weights_N[0] += 1
    copied_NC = np.repeat(probabilities_NC, weights_N, axis=0)
    copied_N = np.repeat(truth_N, weights_N)
    makes = (Ranked.auroc, Ranked.selective_risk_area, Statistic.macro_f1, Statistic.brier)
    for make in makes:
        redraw = make(probabilities_NC, truth_N).redraw(np.arange(len(truth_N)), len(truth_N))
        weighted = redraw(weights_N[None].astype(float))[0]
        assert weighted == pytest.approx(make(copied_NC, copied_N).value, nan_ok=True)


@given(cases(), st.integers(0, 2**32))
def test_invariants(case: tuple[Floats, Ints], seed: int) -> None:
    probabilities_NC, truth_N = case
    order = np.random.default_rng(seed).permutation(len(truth_N))
    groups_N = np.arange(len(truth_N)) // 2
    for make in (Ranked.auroc, Ranked.selective_risk_area, Statistic.macro_f1):
        measure = make(probabilities_NC, truth_N)
        if np.isnan(measure.value):
            continue
        assert measure.low <= measure.value <= measure.high
        moved = make(probabilities_NC[order], truth_N[order])
        found, again = (
            bootstrap_interval(statistic, groups, draws=30)
            for statistic, groups in ((measure, groups_N), (moved, groups_N[order]))
        )
        np.testing.assert_allclose(
            [found.value, found.low, found.high], [again.value, again.low, again.high], atol=1e-12
        )
        same = paired_interval(measure, make(probabilities_NC, truth_N), groups_N, draws=30)
        assert same.value == 0
        assert np.isnan(same.low) or same.low <= 0 <= same.high
    # Probabilities that only rank the classes of an image alike change no area of the risk.
    last = risk_curve(probabilities_NC, truth_N, np.arange(len(truth_N)))[-1]
    assert last.coverage == 1
    assert last.risk == pytest.approx(1 - Statistic.top_k(probabilities_NC, truth_N, 1).value)


def test_the_interval_of_an_area_resamples_groups() -> None:
    probabilities_NC, truth_N = simulate(80, 3)
    groups_N = np.arange(80)
    once = bootstrap_interval(Ranked.auroc(probabilities_NC, truth_N), groups_N, draws=200)
    thrice = bootstrap_interval(
        Ranked.auroc(np.repeat(probabilities_NC, 3, axis=0), np.repeat(truth_N, 3)),
        np.repeat(groups_N, 3),
        draws=200,
    )
    assert (thrice.value, thrice.low, thrice.high) == pytest.approx(
        (once.value, once.low, once.high)
    )
    assert once.low < once.value < once.high


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    measure: Measure = Ranked.auroc(*simulate(64, 3))
    whole = bootstrap_interval(measure, np.arange(64), draws=50)
    monkeypatch.setattr("skindx.metrics.bootstrap._CHUNK", 640)
    assert bootstrap_interval(measure, np.arange(64), draws=50) == whole


def test_sets_are_counted() -> None:
    sets_NC = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 0], [1, 1, 1]], dtype=bool)
    assert Statistic.set_coverage(sets_NC, HAND_TRUTH_N).value == 0.75
    assert Statistic.set_size(sets_NC).value == pytest.approx(7 / 4)


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 5))
def test_mcnemar_agrees_with_the_binomial_test(only: int, other: int, both: int) -> None:
    first_N = np.array([True] * only + [False] * other + [True] * both + [False])
    second_N = np.array([False] * only + [True] * other + [True] * both + [False])
    found = mcnemar(first_N, second_N)
    assert (found.only_first, found.only_second) == (only, other)
    theirs = stats.binomtest(only, only + other).pvalue if only + other else 1.0
    assert found.p == pytest.approx(theirs)
    assert mcnemar(second_N, first_N).p == found.p


def test_mcnemar_of_thousands_does_not_underflow() -> None:
    first_N = np.arange(6000) < 3300
    found = mcnemar(first_N, ~first_N)
    assert 0 < found.p < 1e-10
    with pytest.raises(ValueError, match="the same images"):
        mcnemar(first_N, first_N[1:])
