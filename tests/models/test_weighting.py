import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import log_softmax

from skindx.models.combination import Combination, fit_weights, log, pool, select_greedily

SPACES = ("probability", "logit")


def _drawn(seed: int, members: int, images: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return members of which the first says most about the truth."""
    random = np.random.default_rng(seed)
    truth_N = random.integers(0, 3, images)
    knows_M = np.linspace(2.5, 0, members)
    scores_MNC = knows_M[:, None, None] * np.eye(3)[truth_N] + random.normal(
        size=(members, images, 3)
    )
    exp_MNC = np.exp(scores_MNC)
    return exp_MNC / exp_MNC.sum(axis=2, keepdims=True), truth_N


def _objective(
    member_MNC: NDArray[np.float64], truth_N: NDArray[np.int64], space: str, weights_M, prior: float
) -> float:
    """Return the likelihood at the best of many temperatures, with the prior."""
    scores_NC = log(pool(member_MNC, Combination(rule=space, weights=tuple(weights_M))))
    rows_N = np.arange(len(truth_N))
    shrink = prior * np.log(weights_M).mean() if prior else 0.0
    likelihood = max(
        log_softmax(scores_NC / temperature, axis=1)[rows_N, truth_N].sum()
        for temperature in np.linspace(0.3, 1.5, 41)
    )
    return float(likelihood + shrink)


@pytest.mark.parametrize("space", SPACES)
def test_no_point_of_a_grid_is_better(space: str) -> None:
    member_MNC, truth_N = _drawn(0, 3, 60)
    best = _objective(member_MNC, truth_N, space, fit_weights(member_MNC, truth_N, space, 5.0), 5.0)
    steps = np.linspace(0.04, 0.96, 14)
    grid = [(a, b, 1 - a - b) for a in steps for b in steps if 1 - a - b > 0.01]
    assert (
        max(_objective(member_MNC, truth_N, space, w, 5.0) for w in np.array(grid)) <= best + 0.01
    )


@example_settings(max_examples=15)
@given(st.integers(0, 1000), st.sampled_from(SPACES))
def test_weights_are_on_the_simplex_and_follow_their_members(seed: int, space: str) -> None:
    member_MNC, truth_N = _drawn(seed, 4, 40)
    weights_M = fit_weights(member_MNC, truth_N, space, 3.0)
    assert (weights_M > 0).all()
    assert weights_M.sum() == pytest.approx(1)
    order = np.random.default_rng(seed).permutation(4)
    turned_M = fit_weights(member_MNC[order], truth_N, space, 3.0)
    np.testing.assert_allclose(turned_M, weights_M[order], atol=1e-4)


@pytest.mark.parametrize("space", SPACES)
def test_few_images_leave_the_weights_nearly_equal(space: str) -> None:
    few_MNC, few_N = _drawn(1, 3, 4)
    many_MNC, many_N = _drawn(1, 3, 4000)
    few_M = fit_weights(few_MNC, few_N, space, 20.0)
    many_M = fit_weights(many_MNC, many_N, space, 20.0)
    np.testing.assert_allclose(few_M, 1 / 3, atol=0.15)
    assert many_M[0] > 0.6
    assert many_M[0] > many_M[2]


@pytest.mark.parametrize("space", SPACES)
def test_equal_members_weigh_the_same_and_one_weighs_all(space: str) -> None:
    member_MNC, truth_N = _drawn(2, 1, 30)
    np.testing.assert_array_equal(fit_weights(member_MNC, truth_N, space, 20.0), [1])
    twins = np.concatenate([member_MNC, member_MNC])
    np.testing.assert_allclose(fit_weights(twins, truth_N, space, 20.0), 0.5, atol=1e-9)


def test_greedy_selection_by_hand() -> None:
    # What each member gives the truth of two images: the first two complement each other.
    truth_N = np.array([0, 0])
    own_MN = np.array([[0.9, 0.32], [0.3, 0.9], [0.2, 0.2]])
    member_MNC = np.stack([own_MN, 1 - own_MN], axis=2)

    def chosen(rounds: int) -> list[float]:
        return select_greedily(member_MNC, truth_N, "probability", rounds).tolist()

    assert chosen(1) == [1, 0, 0]  # 0.9 * 0.32 = 0.288, against 0.27 and 0.04
    assert chosen(2) == [0.5, 0.5, 0]  # 0.6 * 0.61, and more once it is sharpened
    assert chosen(3) == [0.5, 0.5, 0]  # a third gives 0.7 * 0.513 at most, and less of sharpening


@example_settings(max_examples=15)
@given(st.integers(0, 1000), st.sampled_from(SPACES))
def test_greedy_selection_is_never_worse_than_its_best_member(seed: int, space: str) -> None:
    member_MNC, truth_N = _drawn(seed, 4, 30)
    weights_M = select_greedily(member_MNC, truth_N, space, 12)
    assert weights_M.sum() == pytest.approx(1)
    rows_N = np.arange(len(truth_N))
    alone_M = [log(member_NC)[rows_N, truth_N].mean() for member_NC in member_MNC]
    assert _objective(member_MNC, truth_N, space, weights_M, 0.0) / 30 >= max(alone_M) - 0.01
    order = np.random.default_rng(seed).permutation(4)
    np.testing.assert_allclose(
        select_greedily(member_MNC[order], truth_N, space, 12), weights_M[order]
    )
