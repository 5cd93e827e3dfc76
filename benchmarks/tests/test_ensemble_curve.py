"""The curve of an ensemble's gain: small cases by hand, and what holds for any predictions."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from skindx.metrics import Statistic, balanced_accuracy, paired_interval
from skindx.models.combination import Combination, pool
from skindx_bench.harness.result import Figure
from skindx_bench.train.ensemble_curve import (
    ambiguity_N,
    averaging_gain_N,
    balanced_log_loss,
    best_single,
    choose_members,
    curve,
    disagreement_N,
    error_correlation,
    error_products_N,
    gain_of,
    limit_weights,
    mistake_correlation,
    of_its_cost,
    single_errors,
    subsets_of,
)
from skindx_bench.train.ensemble_curve_figures import (
    choice_figures,
    curve_figures,
    curve_notes,
    curve_rows,
    write_curve,
)
from skindx_bench.train.ensemble_passes import Floats, FoldPasses, Seen, mean_of_views

RNG = np.random.default_rng(0)


def _says(classes: Sequence[int], sure: float = 0.8) -> Floats:
    """Probabilities of two classes that name these."""
    return np.eye(2)[list(classes)] * (2 * sure - 1) + (1 - sure)


def _seen(members: Sequence[Floats], truth: Sequence[int], fold: int = 0, views: int = 1) -> Seen:
    groups_N = np.array([f"g{fold}-{n}" for n in range(len(truth))])
    return Seen(np.array(truth), groups_N, {v: np.stack(members) for v in (1, views)})


def _random(fold: int, members: int = 4, images: int = 24) -> FoldPasses:
    rng = np.random.default_rng(fold)

    def part() -> Seen:
        truth_N = np.arange(images) % 3
        groups_N = np.array([f"g{fold}-{n // 2}" for n in range(images)])
        scores = rng.normal(size=(8, members, images, 3)) + 1.2 * np.eye(3)[truth_N]
        log_VMNC = scores - np.log(np.exp(scores).sum(axis=3, keepdims=True))
        return Seen(truth_N, groups_N, mean_of_views(log_VMNC, [1.0] * members))

    names = tuple("abcdefgh"[:members])
    return FoldPasses(names, tuple(100 * (m + 1) for m in range(members)), part(), part())


def _predictions(members: int, images: int = 6, classes: int = 3) -> st.SearchStrategy[Floats]:
    raw = arrays(np.float64, (members, images, classes), elements=st.floats(0.001, 1.0))
    return raw.map(lambda raw_MNC: raw_MNC / raw_MNC.sum(axis=2, keepdims=True))


TRUTH = np.arange(6) % 3


def test_three_members_by_hand() -> None:
    # Each is wrong on another image of six, so the three together are wrong on none.
    truth = [0, 0, 0, 1, 1, 1]
    members = [_says([1, 0, 0, 1, 1, 1]), _says([0, 1, 0, 1, 1, 1]), _says([0, 0, 1, 1, 1, 1])]
    # On validation the last member alone is unsure.
    told = [_says(truth), _says(truth), _says(truth, 0.6)]
    fold = FoldPasses(("a", "b", "c"), (1, 1, 1), _seen(told, truth), _seen(members, truth))
    last = curve([fold], most=9)[-1]
    assert last.subsets == ((0, 1, 2),)
    assert last.gains.over_mean_N == pytest.approx([1 / 3] * 3 + [0] * 3)
    assert last.gains.over_better_N == pytest.approx([1, 0, 0, 0, 0, 0])  # a, the first of equals
    # A pair is wrong on both images or right: equal votes go to the first class, the true one.
    assert last.gains.disagreement_N == pytest.approx([2 / 3] * 3 + [0] * 3)
    found = curve_figures([fold], curve([fold], most=9))
    assert found["curve_gain_mean_3"].value == pytest.approx(100 / 6)
    assert found["curve_gain_3"].value == pytest.approx(100 / 6)
    assert found["disagreement"].value == pytest.approx(100 / 3)


def test_the_gain_is_the_paired_difference_of_balanced_accuracy() -> None:
    folds = [_random(0), _random(1)]
    gains = gain_of(folds, [(0, 1, 2, 3)] * 2)
    truth_N = np.concatenate([fold.test.truth_N for fold in folds])
    groups_N = np.concatenate([fold.test.groups_N for fold in folds])
    ensemble_NC = np.concatenate([fold.test.members[1].mean(axis=0) for fold in folds])
    better_NC = np.concatenate(
        [
            fold.test.members[1][
                max(
                    range(4),
                    key=lambda m, fold=fold: balanced_accuracy(
                        fold.validation.members[1][m], fold.validation.truth_N
                    ),
                )
            ]
            for fold in folds
        ]
    )
    expected = paired_interval(
        Statistic.balanced_accuracy(ensemble_NC, truth_N),
        Statistic.balanced_accuracy(better_NC, truth_N),
        groups_N,
    )
    found = choice_figures(folds)["all_minus_better_member_balanced"]
    assert found.value == pytest.approx(100 * expected.value)
    assert found.spread == pytest.approx((100 * expected.low, 100 * expected.high))
    assert gains.hits_N.mean() == pytest.approx((ensemble_NC.argmax(axis=1) == truth_N).mean())


def test_identical_members_gain_nothing_and_their_interval_has_a_width() -> None:
    base = _random(3, members=1)

    def same(seen: Seen) -> Seen:
        members = {views: np.repeat(own, 3, axis=0) for views, own in seen.members.items()}
        return Seen(seen.truth_N, seen.groups_N, members)

    fold = FoldPasses(("a", "b", "c"), (1, 1, 1), same(base.validation), same(base.test))
    found = curve_figures([fold], curve([fold], most=9))
    for key in ("curve_gain_2", "curve_gain_3", "curve_gain_mean_3", "gain_limit"):
        assert found[key].value == pytest.approx(0)
        assert found[key].spread[0] < 0 < found[key].spread[1]
    assert found["error_correlation"].value == pytest.approx(1)
    assert found["mistake_correlation"].value == pytest.approx(1)
    for key in ("disagreement", "ambiguity", "averaging_gain", "brier_gain_limit"):
        assert found[key].value == pytest.approx(0, abs=1e-12)


@given(_predictions(3))
def test_the_ambiguity_identity_is_exact_for_the_geometric_mean(members_MNC: Floats) -> None:
    images_N = np.arange(6)
    geometric_NC = pool(members_MNC, Combination(rule="logit"))
    own_N = -np.log(geometric_NC[images_N, TRUTH])
    mean_N = -np.log(members_MNC[:, images_N, TRUTH]).mean(axis=0)
    assert mean_N - ambiguity_N(members_MNC) == pytest.approx(own_N, abs=1e-9)
    assert ambiguity_N(members_MNC).min() >= -1e-12
    # It is the members' mean divergence from their geometric mean.
    apart_MNC = geometric_NC * (np.log(geometric_NC) - np.log(members_MNC))
    assert apart_MNC.sum(axis=2).mean(axis=0) == pytest.approx(ambiguity_N(members_MNC), abs=1e-9)


@given(_predictions(4))
def test_the_mean_probability_takes_off_the_gap_of_jensen(members_MNC: Floats) -> None:
    images_N = np.arange(6)
    own_N = -np.log(members_MNC.mean(axis=0)[images_N, TRUTH])
    mean_N = -np.log(members_MNC[:, images_N, TRUTH]).mean(axis=0)
    gap_N = averaging_gain_N(members_MNC, TRUTH)
    assert mean_N - gap_N == pytest.approx(own_N, abs=1e-9)
    assert gap_N.min() >= -1e-12


@given(_predictions(4), st.integers(1, 4))
def test_the_brier_score_of_k_members_follows_from_their_correlation(
    members_MNC: Floats, size: int
) -> None:
    own_N, crossed_N = error_products_N(members_MNC, TRUTH)
    briers = [
        Statistic.brier(members_MNC[list(subset)].mean(axis=0), TRUTH).value
        for subset in itertools.combinations(range(4), size)
    ]
    reach = 1 - 1 / size
    assert np.mean(briers) == pytest.approx(own_N.mean() - reach * (own_N - crossed_N).mean())
    rho = error_correlation(own_N, crossed_N, np.ones(6)).value
    assert np.mean(briers) == pytest.approx(own_N.mean() * (1 - (1 - rho) * reach))
    assert -1e-12 <= rho <= 1 + 1e-12


def test_the_correlation_of_mistakes_by_hand() -> None:
    right_MN = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 1, 1]], dtype=bool)
    # The first two are independent; the third makes no mistake, so its pairs do not count.
    assert mistake_correlation(right_MN, np.ones(4)).value == pytest.approx(0)
    assert mistake_correlation(right_MN[[0, 0]], np.ones(4)).value == pytest.approx(1)
    assert mistake_correlation(np.stack([right_MN[0], ~right_MN[0]]), np.ones(4)).value == (
        pytest.approx(-1)
    )
    assert np.isnan(mistake_correlation(right_MN[2:], np.ones(4)).value)
    # Weights count images more than once.
    twice = mistake_correlation(right_MN[:2], np.array([2.0, 1, 1, 1])).value
    assert twice == pytest.approx(
        mistake_correlation(right_MN[:2][:, [0, 0, 1, 2, 3]], np.ones(5)).value
    )


def test_disagreement_by_hand() -> None:
    members_MNC = np.stack([_says([0, 0]), _says([0, 1]), _says([0, 1])])
    assert disagreement_N(members_MNC) == pytest.approx([0, 2 / 3])
    assert disagreement_N(members_MNC[:1]) == pytest.approx([0, 0])


def test_a_curve_that_follows_the_law_gives_its_limit() -> None:
    sizes = (2, 3, 5)
    gains_K = 7.0 * (1 - 1 / np.array(sizes))
    assert limit_weights(sizes) @ gains_K == pytest.approx(7.0)


def test_subsets_are_all_or_a_fixed_draw() -> None:
    assert subsets_of(4, 2, most=6) == list(itertools.combinations(range(4), 2))
    drawn = subsets_of(12, 6, most=20)
    assert len(set(drawn)) == 20
    assert drawn == subsets_of(12, 6, most=20) == sorted(drawn)
    assert all(len(set(subset)) == 6 for subset in drawn)


def test_forward_selection_takes_what_helps_and_leaves_what_does_not() -> None:
    truth = [0, 0, 1, 1]
    good, other = _says([0, 0, 1, 0]), _says([0, 1, 1, 1])
    noise = _says([1, 1, 0, 0], 0.9)
    seen = _seen([noise, good, other], truth)
    assert choose_members(seen) == (1, 2)
    assert choose_members(_seen([noise, good, good], truth)) == (1,)  # of equals the smaller


def test_the_loss_counts_classes_alike() -> None:
    probabilities_NC = np.array([[0.5, 0.5], [0.5, 0.5], [0.75, 0.25]])
    truth_N = np.array([0, 0, 1])
    expected = (-np.log(0.5) - np.log(0.25)) / 2
    assert balanced_log_loss(probabilities_NC, truth_N) == pytest.approx(expected)


def test_a_single_network_of_its_cost_has_at_least_nine_tenths_of_it() -> None:
    flops_M = (100, 200, 300)
    # Two members cost 300: a third of a network is no rival, and no more views than suffice.
    assert of_its_cost(flops_M, (1, 2, 4), (0, 1)) == [(0, 4), (1, 2), (2, 1)]
    assert of_its_cost(flops_M, (1, 2), (0, 1)) == [(1, 2), (2, 1)]
    assert of_its_cost(flops_M, (1,), (0, 1, 2)) == []
    assert of_its_cost((100, 269), (1,), (0, 1)) == []
    assert of_its_cost((100, 1000, 989), (1,), (0, 1)) == [(1, 1)]


def test_the_better_member_is_chosen_by_balanced_accuracy_itself() -> None:
    # The first is surer and wrong more often: less log loss, more errors.
    truth = [0, 0, 1, 1]
    bold, right = _says([0, 0, 1, 0], 0.99), _says(truth, 0.51)
    bold[3] = [0.51, 0.49]
    validation = _seen([bold, right], truth)
    losses = [balanced_log_loss(own_NC, np.array(truth)) for own_NC in (bold, right)]
    assert losses[0] < losses[1]
    errors = single_errors(validation)
    assert best_single(errors, errors) == (1, 1)
    fold = FoldPasses(("bold", "right"), (1, 1), validation, _seen([bold, right], truth))
    assert gain_of([fold], [(0, 1)]).over_better_N.min() <= 0


def test_choices_never_depend_on_test_labels() -> None:
    folds = [_random(0), _random(1)]

    def relabelled(fold: FoldPasses) -> FoldPasses:
        test = Seen(fold.test.truth_N[::-1].copy(), fold.test.groups_N, fold.test.members)
        return FoldPasses(fold.names, fold.flops_M, fold.validation, test)

    points = curve(folds, most=9)
    other = curve([relabelled(fold) for fold in folds], most=9)
    assert curve_notes(folds, points)[2:] == curve_notes(folds, other)[2:]


@given(st.integers(0, 10_000))
def test_views_are_averaged_as_probabilities_and_then_calibrated(seed: int) -> None:
    rng = np.random.default_rng(seed)
    raw = rng.dirichlet(np.ones(3), size=(4, 2, 5))
    found = mean_of_views(np.log(raw), [1.0, 2.0])
    assert sorted(found) == [1, 2, 4]
    assert found[2][0] == pytest.approx(raw[:2, 0].mean(axis=0))
    root = np.sqrt(raw[:, 1].mean(axis=0))
    assert found[4][1] == pytest.approx(root / root.sum(axis=1, keepdims=True))


@given(arrays(np.int64, 12, elements=st.integers(0, 2)))
def test_the_class_mean_of_hits_is_the_balanced_accuracy(said_N: np.ndarray) -> None:
    truth_N = np.arange(12) % 3
    hits_N = (said_N == truth_N).astype(float)
    expected = balanced_accuracy(np.eye(3)[said_N], truth_N)
    assert Statistic.class_mean(hits_N, truth_N, 3).value == pytest.approx(expected)


def test_values_of_other_images_are_refused() -> None:
    with pytest.raises(ValueError, match="one number for each image"):
        Statistic.class_mean(np.ones(3), np.zeros(4, dtype=int), 2)


def test_the_plot_and_the_table_have_every_subset(tmp_path: Path) -> None:
    folds = [_random(0), _random(1)]
    points = curve(folds, most=200)
    figures: dict[str, Figure] = curve_figures(folds, points)
    write_curve(tmp_path, folds, points, figures)
    lines = (tmp_path / "curve.csv").read_text().splitlines()
    assert len(lines) == 1 + 2**4 - 1
    assert lines[5].startswith("a b,2,")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    rows = [row for row in curve_rows(folds, points) if row[1] == 2]
    assert 100 * np.mean([row[4] for row in rows]) == pytest.approx(
        figures["curve_gain_mean_2"].value
    )
    assert figures["gain_limit"].value == pytest.approx(
        figures["gain_limit_mean"].value - figures["better_minus_mean_member"].value
    )
    assert figures["pairs_diverse_minus_alike"].value == pytest.approx(
        figures["pairs_diverse_gain_mean"].value - figures["pairs_alike_gain_mean"].value
    )
