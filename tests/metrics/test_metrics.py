import dataclasses
from itertools import pairwise
from math import sqrt
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from plain_measures import brier_score, expected_calibration_error, top_k_accuracy
from scipy import stats
from sklearn import metrics as peer

from skindx.data.box import Box
from skindx.metrics import (
    Statistic,
    balanced_accuracy,
    bootstrap_interval,
    confidence_interval,
    confusion_CC,
    mean_average_precision,
    paired_interval,
    proportion_interval,
    reliability_bins,
    share_interval,
)
from skindx.metrics.share_intervals import effective_size

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


def simulate(n: int, classes: int, seed: int = 0, sharpen: float = 1.0) -> tuple[Floats, Ints]:
    """Return probabilities and labels drawn from them, so that they are calibrated.

    `sharpen` raises the probabilities to that power afterwards, which makes them overconfident.
    """
    random = np.random.default_rng(seed)
    probabilities_NC = random.dirichlet(np.full(classes, 0.4), size=n)
    cumulative_NC = probabilities_NC.cumsum(axis=1)
    truth_N = (cumulative_NC < random.random((n, 1))).sum(axis=1).clip(max=classes - 1)
    sharp_NC = probabilities_NC**sharpen
    return sharp_NC / sharp_NC.sum(axis=1, keepdims=True), truth_N


@st.composite
def predictions(draw: st.DrawFn) -> tuple[Floats, Ints]:
    n, classes = draw(st.integers(1, 40)), draw(st.integers(2, 7))
    return simulate(n, classes, draw(st.integers(0, 2**32)), draw(st.floats(0.5, 3)))


# Four images: the third is wrong, its truth second; the fourth is wrong, its truth last.
HAND_NC = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.5, 0.4, 0.1], [0.6, 0.3, 0.1]])
HAND_TRUTH_N = np.array([0, 1, 1, 2])


def test_hand_computed_case() -> None:
    assert [top_k_accuracy(HAND_NC, HAND_TRUTH_N, k) for k in (1, 2, 3)] == [0.5, 0.75, 1.0]
    np.testing.assert_array_equal(
        confusion_CC(HAND_NC, HAND_TRUTH_N), [[1, 0, 0], [1, 1, 0], [1, 0, 0]]
    )
    assert balanced_accuracy(HAND_NC, HAND_TRUTH_N) == pytest.approx(0.5)
    # Two bins: all four stand in (0.5, 1] but the third, whose 0.5 closes the lower bin.
    assert expected_calibration_error(HAND_NC, HAND_TRUTH_N, bins=2) == pytest.approx(
        (abs(2 - 2.1) + abs(0 - 0.5)) / 4
    )
    assert brier_score(HAND_NC, HAND_TRUTH_N) == pytest.approx((0.14 + 0.06 + 0.62 + 1.26) / 4)


def test_an_absent_class_has_no_say() -> None:
    assert balanced_accuracy(HAND_NC[:3], HAND_TRUTH_N[:3]) == pytest.approx(0.75)


def test_equal_probabilities_count_as_ranked_by_class_number() -> None:
    even_NC = np.full((2, 4), 0.25)
    assert top_k_accuracy(even_NC, np.array([0, 3]), 1) == 0.5
    assert top_k_accuracy(even_NC, np.array([0, 3]), 3) == 0.5


def test_agreement_with_scikit_learn() -> None:
    probabilities_NC, truth_N = simulate(300, 6)
    predicted_N = probabilities_NC.argmax(axis=1)
    labels = range(6)
    for k in (1, 2, 5):
        assert top_k_accuracy(probabilities_NC, truth_N, k) == pytest.approx(
            peer.top_k_accuracy_score(truth_N, probabilities_NC, k=k, labels=labels)
        )
    assert balanced_accuracy(probabilities_NC, truth_N) == pytest.approx(
        peer.balanced_accuracy_score(truth_N, predicted_N)
    )
    np.testing.assert_array_equal(
        confusion_CC(probabilities_NC, truth_N), peer.confusion_matrix(truth_N, predicted_N)
    )
    assert brier_score(probabilities_NC, truth_N) == pytest.approx(
        peer.brier_score_loss(truth_N, probabilities_NC, labels=labels, scale_by_half=False)
    )


@given(predictions())
def test_invariants(case: tuple[Floats, Ints]) -> None:
    probabilities_NC, truth_N = case
    classes = probabilities_NC.shape[1]
    top = [top_k_accuracy(probabilities_NC, truth_N, k) for k in range(1, classes + 1)]
    assert all(low <= high for low, high in pairwise(top))
    assert top[-1] == 1.0
    assert 0 <= expected_calibration_error(probabilities_NC, truth_N) <= 1
    assert 0 <= brier_score(probabilities_NC, truth_N) <= 2
    confusion = confusion_CC(probabilities_NC, truth_N)
    np.testing.assert_array_equal(confusion.sum(axis=1), np.bincount(truth_N, minlength=classes))
    assert confusion.trace() / len(truth_N) == pytest.approx(top[0])
    bins = reliability_bins(probabilities_NC, truth_N, np.arange(len(truth_N)))
    assert sum(part.n for part in bins) == len(truth_N)
    gap = sum(part.n * abs(part.accuracy - part.confidence) for part in bins if part.n)
    assert gap / len(truth_N) == pytest.approx(
        expected_calibration_error(probabilities_NC, truth_N)
    )
    assert all(part.low < part.confidence <= part.high for part in bins if part.n)


@given(predictions(), st.integers(0, 2**32))
def test_the_order_of_images_does_not_matter(case: tuple[Floats, Ints], seed: int) -> None:
    probabilities_NC, truth_N = case
    groups_N = np.arange(len(truth_N)) // 2
    order = np.random.default_rng(seed).permutation(len(truth_N))
    for make in (Statistic.balanced_accuracy, Statistic.calibration_error):
        straight = bootstrap_interval(make(probabilities_NC, truth_N), groups_N, draws=30)
        shuffled = bootstrap_interval(
            make(probabilities_NC[order], truth_N[order]), groups_N[order], draws=30
        )
        np.testing.assert_allclose(
            [straight.value, straight.low, straight.high],
            [shuffled.value, shuffled.low, shuffled.high],
            atol=1e-12,
        )


def test_a_calibrated_simulation_has_no_calibration_error() -> None:
    assert expected_calibration_error(*simulate(100_000, 5)) < 0.01
    assert expected_calibration_error(*simulate(100_000, 5, sharpen=3)) > 0.1


@given(predictions())
def test_an_interval_holds_its_value_and_keeps_to_the_scale(case: tuple[Floats, Ints]) -> None:
    probabilities_NC, truth_N = case
    groups_N = np.arange(len(truth_N))
    for statistic in (
        Statistic.top_k(probabilities_NC, truth_N, 1),
        Statistic.balanced_accuracy(probabilities_NC, truth_N),
        Statistic.calibration_error(probabilities_NC, truth_N),
    ):
        found = confidence_interval(statistic, groups_N)
        assert -1e-12 <= found.low <= found.value <= found.high <= 1 + 1e-12
        assert found.high - found.low > 1 / (len(truth_N) + 10)
    for statistic in (
        Statistic.macro_f1(probabilities_NC, truth_N),
        Statistic.brier(probabilities_NC, truth_N),
    ):
        found = confidence_interval(statistic, groups_N, draws=200)
        if len(truth_N) == 1:
            assert np.isnan([found.low, found.high]).all()
        else:
            assert 0 <= found.low <= found.value <= found.high <= statistic.high
            assert found.high - found.low > 1 / (len(truth_N) + 10)


def test_ungrouped_bootstrap_agrees_with_scipy() -> None:
    probabilities_NC, truth_N = simulate(200, 4)
    hits_N = probabilities_NC.argmax(axis=1) == truth_N
    found = bootstrap_interval(Statistic.mean(hits_N), np.arange(200), draws=4000)
    theirs = stats.bootstrap(
        (probabilities_NC.argmax(axis=1) == truth_N,), np.mean, method="percentile",
        n_resamples=4000, rng=np.random.default_rng(1),
    ).confidence_interval  # fmt: skip
    assert found.low == pytest.approx(theirs.low, abs=0.01)
    assert found.high == pytest.approx(theirs.high, abs=0.01)


def test_copies_of_an_image_in_one_group_add_no_certainty() -> None:
    probabilities_NC, truth_N = simulate(60, 3)
    groups_N = np.arange(60)
    once = bootstrap_interval(Statistic.top_k(probabilities_NC, truth_N, 1), groups_N)
    statistic = Statistic.top_k(np.repeat(probabilities_NC, 3, axis=0), np.repeat(truth_N, 3), 1)
    thrice = bootstrap_interval(statistic, np.repeat(groups_N, 3))
    exact = confidence_interval(statistic, np.repeat(groups_N, 3))
    assert (exact.value, exact.low, exact.high) == pytest.approx(
        dataclasses.astuple(
            confidence_interval(Statistic.top_k(probabilities_NC, truth_N, 1), groups_N)
        )
    )
    assert (thrice.value, thrice.low, thrice.high) == pytest.approx(
        (once.value, once.low, once.high)
    )


def test_groups_may_be_words_and_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    probabilities_NC, truth_N = simulate(64, 3)
    statistic = Statistic.balanced_accuracy(probabilities_NC, truth_N)
    words = [f"lesion {number:02}" for number in range(64)]
    whole = bootstrap_interval(statistic, words)
    monkeypatch.setattr("skindx.metrics.bootstrap._CHUNK", 640)
    assert bootstrap_interval(statistic, words) == whole


@pytest.mark.parametrize(("sharpen", "size"), [(1, 81), (1, 409), (1.5, 300), (3, 81)])
def test_the_calibration_interval_covers_the_true_error(sharpen: float, size: int) -> None:
    """A reflected percentile interval covers a true error of zero in 54 to 60 of 100 samples."""
    true = expected_calibration_error(*simulate(400_000, 5, sharpen=sharpen)) * (sharpen > 1)
    covered = 0
    for seed in range(100):
        statistic = Statistic.calibration_error(*simulate(size, 5, seed, sharpen=sharpen))
        found = confidence_interval(statistic, np.arange(size))
        covered += found.low <= true <= found.high
    assert covered >= 93


def test_an_obvious_calibration_error_is_bounded_away_from_zero() -> None:
    statistic = Statistic.calibration_error(*simulate(2000, 5, sharpen=3))
    found = confidence_interval(statistic, np.arange(2000))
    assert found.low > 0.05
    assert found.high - found.low < 0.15


def test_paired_difference_of_a_predictor_with_itself_is_nothing() -> None:
    statistic = Statistic.top_k(*simulate(50, 3), 1)
    found = paired_interval(statistic, statistic, np.arange(50))
    # What was not seen in 50 images may be a difference in 1 - 0.025^(1/50) of all images.
    assert (found.value, found.low, found.high) == pytest.approx((0, -0.0711, 0.0711), abs=1e-4)


def test_pairing_makes_the_interval_of_a_difference_narrower() -> None:
    probabilities_NC, truth_N = simulate(300, 4)
    noise_NC = np.random.default_rng(5).dirichlet(np.ones(4), size=300)
    first = Statistic.top_k(probabilities_NC, truth_N, 1)
    second = Statistic.top_k(0.8 * probabilities_NC + 0.2 * noise_NC, truth_N, 1)
    groups_N = np.arange(300)
    paired = paired_interval(first, second, groups_N)
    apart = [bootstrap_interval(statistic, groups_N) for statistic in (first, second)]
    assert paired.value == pytest.approx(first.value - second.value)
    assert paired.high - paired.low < sqrt(
        sum((interval.high - interval.low) ** 2 for interval in apart)
    )


def test_a_pair_of_different_lengths_is_refused() -> None:
    with pytest.raises(ValueError, match="the same number of images, but there are 5 and 6"):
        Statistic.top_k(*simulate(5, 3), 1) - Statistic.top_k(*simulate(6, 3), 1)


@given(st.integers(0, 50), st.integers(0, 50))
def test_a_proportion_agrees_with_scipy(hits: int, more: int) -> None:
    n = max(1, hits + more)
    found = proportion_interval(hits / n, n)
    theirs = stats.binomtest(hits, n).proportion_ci(method="exact")
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    assert found.low <= found.value <= found.high
    assert found.high - found.low > 1 / (n + 10)


def test_a_share_without_images_is_unknown() -> None:
    assert np.isnan(proportion_interval(0.5, 0).value)
    assert np.isnan(share_interval(np.array([], dtype=bool), []).low)


def test_a_perfect_share_counts_groups_and_not_images() -> None:
    """120 of 120 right: the bound of no error among 120, or among 40 groups of three."""
    alone = share_interval(np.ones(120, dtype=bool), np.arange(120))
    grouped = share_interval(np.ones(120, dtype=bool), np.repeat(np.arange(40), 3))
    assert (alone.value, alone.high) == (grouped.value, grouped.high) == (1, 1)
    # The variance of 120 (or 40) groups is itself estimated: Student's t for the normal quantile.
    trials = 120 * (stats.norm.ppf(0.975) / stats.t.ppf(0.975, 119)) ** 2
    assert alone.low == pytest.approx(0.025 ** (1 / trials))
    assert grouped.low < 0.92 < alone.low


def test_a_share_of_unlike_images_in_groups_is_worth_all_of_them() -> None:
    """Hits that alternate inside groups say as much as independent images."""
    hits_N = np.tile([True, False], 60)
    alone = share_interval(hits_N, np.arange(120))
    grouped = share_interval(hits_N, np.repeat(np.arange(60), 2))
    assert grouped.high - grouped.low == pytest.approx(alone.high - alone.low, abs=0.01)
    same = share_interval(np.repeat([True, False], 60), np.repeat(np.arange(60), 2))
    assert same.high - same.low > 1.3 * (alone.high - alone.low)


def test_a_rare_class_keeps_a_perfect_mean_over_classes_uncertain() -> None:
    truth_N = np.repeat([0, 1], [300, 3])
    found = confidence_interval(
        Statistic.balanced_accuracy(np.eye(2)[truth_N], truth_N), np.arange(303)
    )
    assert (found.value, found.high) == (1, 1)
    assert found.low < 0.65  # three images bound their class by 0.29 and the mean by its half


def test_effective_size_counts_a_group_once() -> None:
    assert effective_size([1, 2, 3]) == 3
    assert effective_size(["a"] * 9) == 1
    assert effective_size(["a", "a", "b"]) == pytest.approx(9 / 5)
    assert effective_size([]) == 0


@pytest.mark.parametrize(
    ("probabilities", "truth", "said"),
    [
        (np.zeros((0, 3)), [], "must have the shape"),
        (np.full((2, 2), 0.5), [0], "2 predictions"),
        (np.full((1, 2), 0.5), [2], r"0\.\.1"),
        (np.array([[0.5, np.nan]]), [0], "finite"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(
    probabilities: Floats, truth: list[int], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        top_k_accuracy(probabilities, np.array(truth, dtype=np.intp))
    with pytest.raises(ValueError, match="groups have the shape"):
        bootstrap_interval(Statistic.top_k(*simulate(4, 3), 1), [1, 2])


def found(x1: float, x2: float, score: float | None, label: str = "lesion") -> Box:
    return Box(x1, 0, x2, 10, label=label, score=score)


def test_perfect_boxes_score_one_and_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    truth = [[Box(0, 0, 10, 10)], [], [Box(0, 0, 5, 10), Box(20, 0, 40, 10)]]
    score = mean_average_precision(
        truth, [[found(0, 10, 0.9)], [], [found(0, 5, 0.8), found(20, 40, 0.7)]]
    )
    assert score is not None
    assert (score.map50, score.map50_95) == pytest.approx((1, 1))
    assert (score.pictures, score.boxes) == (3, 3)
    assert capsys.readouterr().out == ""


def test_overlap_decides_the_strict_thresholds() -> None:
    # IoU 0.72 passes 0.50, 0.55, 0.60, 0.65, 0.70: five of ten thresholds.
    score = mean_average_precision([[Box(0, 0, 10, 10)]], [[found(0, 7.2, 0.9)]])
    assert score is not None
    assert (score.map50, score.map50_95) == pytest.approx((1.0, 0.5))


def test_a_better_scored_false_alarm_halves_the_precision() -> None:
    truth = [[Box(0, 0, 10, 10)], []]
    score = mean_average_precision(truth, [[found(0, 10, 0.5)], [found(50, 60, 0.9)]])
    assert score is not None
    assert score.map50 == pytest.approx(0.5)


def test_an_image_of_weight_two_counts_as_two_images() -> None:
    """A draw of the bootstrap is pycocotools' own figure of the images that it holds."""
    random = np.random.default_rng(3)

    def boxes(many: int, *, scored: bool) -> list[Box]:
        return [
            found(x, x + 9, random.random() if scored else None, "ab"[i % 2])
            for i, x in enumerate(random.integers(60, size=many).tolist())
        ]

    truth = [boxes(n, scored=False) for n in (3, 0, 2, 4, 1)]
    right = [
        [dataclasses.replace(box, score=random.random()) for box in some[1:]] for some in truth
    ]
    detected = [boxes(6, scored=True) + some for some in right]
    weights_P = np.array([2, 1, 0, 3, 1])
    rows = np.repeat(np.arange(5), weights_P)
    wanted = mean_average_precision([truth[i] for i in rows], [detected[i] for i in rows])
    score = mean_average_precision(truth, detected, np.arange(5), draws=40)
    assert wanted
    assert score
    assert score.map50_interval
    with patch("skindx.metrics.classification.bootstrap_intervals") as asked:
        asked.return_value = [score.map50_interval] * 2
        mean_average_precision(truth, detected, np.arange(5))
    redraw = asked.call_args.args[0]
    both = redraw(np.array([weights_P, np.ones(5)], dtype=float))
    np.testing.assert_allclose(both[0], [wanted.map50, wanted.map50_95], atol=1e-12)
    np.testing.assert_allclose(both[1], [score.map50, score.map50_95], atol=1e-12)
    assert score.map50_interval.low < score.map50 < score.map50_interval.high
    alone = mean_average_precision(truth, detected, np.zeros(5))
    assert alone
    assert alone.map50_interval
    assert np.isnan(alone.map50_interval.low)


def test_perfect_boxes_have_an_interval_with_a_width() -> None:
    truth = [[Box(0, 0, 10, 10)] for _ in range(8)]
    score = mean_average_precision(truth, [[found(0, 10, 0.9)]] * 8, np.arange(8) // 2, draws=40)
    assert score
    assert score.map50_interval
    assert score.map50_interval.low < 0.7
    assert score.map50_interval.high == 1


def test_classes_are_averaged_and_a_strange_label_finds_nothing() -> None:
    truth = [[Box(0, 0, 10, 10, "nevus"), Box(20, 0, 30, 10, "wart")]]
    score = mean_average_precision(truth, [[found(0, 10, 0.9, "nevus"), found(20, 30, 0.9, "x")]])
    assert score is not None
    assert score.map50 == pytest.approx(0.5)


def test_nothing_found_scores_zero_and_nothing_to_find_scores_none() -> None:
    nothing = mean_average_precision([[Box(0, 0, 10, 10)]], [[]])
    assert nothing is not None
    assert (nothing.map50, nothing.map50_95) == (0, 0)
    assert mean_average_precision([[]], [[found(0, 10, 0.9)]]) is None


def test_bad_boxes_are_refused() -> None:
    with pytest.raises(ValueError, match="needs a score"):
        mean_average_precision([[Box(0, 0, 1, 1)]], [[found(0, 1, None)]])
    with pytest.raises(ValueError, match="1 images have true boxes, but 2"):
        mean_average_precision([[]], [[], []])
