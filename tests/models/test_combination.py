import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from skindx.models.combination import Combination, combine, mutual_information, pool

RULES = ("probability", "logit", "vote")
MEMBERS = np.array([[[0.7, 0.2, 0.1]], [[0.4, 0.5, 0.1]], [[0.3, 0.6, 0.1]]])


@st.composite
def members_and_weights(draw: st.DrawFn) -> tuple[NDArray[np.float64], tuple[float, ...]]:
    members, classes = draw(st.integers(1, 5)), draw(st.integers(2, 5))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    member_MNC = random.dirichlet(np.full(classes, 0.4), size=(members, 4))
    return member_MNC, tuple(random.dirichlet(np.ones(members)).tolist())


def test_by_hand() -> None:
    assert pool(MEMBERS, Combination())[0] == pytest.approx([1.4 / 3, 1.3 / 3, 0.1])
    weighted = Combination(weights=(0.5, 0.25, 0.25))
    assert pool(MEMBERS, weighted)[0] == pytest.approx([0.525, 0.375, 0.1])
    # Geometric means, then normalised.
    roots = np.array([0.7 * 0.4 * 0.3, 0.2 * 0.5 * 0.6, 0.1**3]) ** (1 / 3)
    assert pool(MEMBERS, Combination(rule="logit"))[0] == pytest.approx(roots / roots.sum())
    odds = np.array([0.7**0.5 * 0.4**0.25 * 0.3**0.25, (0.2**0.5) * (0.3**0.25), 0.1])
    logit = Combination(rule="logit", weights=(0.5, 0.25, 0.25))
    assert pool(MEMBERS, logit)[0] == pytest.approx(odds / odds.sum())
    # One vote and two, and one more that the mean probability shares out.
    votes = np.array([1 + 1.4 / 3, 2 + 1.3 / 3, 0.1]) / 4
    assert pool(MEMBERS, Combination(rule="vote"))[0] == pytest.approx(votes)


def test_a_tied_vote_goes_to_the_greater_mean_probability() -> None:
    tied = np.array([[[0.6, 0.4, 0.0]], [[0.1, 0.9, 0.0]]])
    shares_C = pool(tied, Combination(rule="vote"))[0]
    assert shares_C == pytest.approx([(1 + 0.35) / 3, (1 + 0.65) / 3, 0])


@given(members_and_weights())
def test_what_holds_for_every_rule(drawn: tuple[NDArray[np.float64], tuple[float, ...]]) -> None:
    member_MNC, weights = drawn
    members = len(member_MNC)
    order = np.random.default_rng(0).permutation(members)
    for rule in RULES:
        pooled_NC = pool(member_MNC, Combination(rule=rule, weights=weights))
        np.testing.assert_allclose(pooled_NC.sum(axis=1), 1)
        assert (pooled_NC >= 0).all()
        turned = Combination(rule=rule, weights=tuple(weights[index] for index in order))
        np.testing.assert_allclose(pool(member_MNC[order], turned), pooled_NC, atol=1e-12)
        even = Combination(rule=rule, weights=(1 / members,) * members)
        np.testing.assert_allclose(
            pool(member_MNC, even), pool(member_MNC, Combination(rule=rule)), atol=1e-12
        )
    mean_NC, same_MNC = pool(member_MNC, Combination()), np.stack([member_MNC[0]] * 3)
    np.testing.assert_array_equal(mean_NC, member_MNC.mean(axis=0))
    for rule in ("probability", "logit"):
        alone_NC = pool(same_MNC, Combination(rule=rule))
        np.testing.assert_allclose(alone_NC, member_MNC[0], atol=1e-12)
    np.testing.assert_allclose(
        combine(member_MNC[:1], 1.0, Combination(rule="logit")), member_MNC[0], atol=1e-12
    )


@given(members_and_weights())
def test_a_vote_follows_every_clear_majority(
    drawn: tuple[NDArray[np.float64], tuple[float, ...]],
) -> None:
    member_MNC, _ = drawn
    votes_NC = np.eye(member_MNC.shape[2])[member_MNC.argmax(axis=2)].sum(axis=0)
    leading_NC = votes_NC == votes_NC.max(axis=1, keepdims=True)
    first_N = pool(member_MNC, Combination(rule="vote")).argmax(axis=1)
    assert leading_NC[np.arange(len(first_N)), first_N].all()


@pytest.mark.parametrize("weights", [(), (0.5, 0.6), (1.5, -0.5), (float("nan"), 1.0)])
def test_weights_lie_on_the_simplex(weights: tuple[float, ...]) -> None:
    with pytest.raises(ValidationError, match=r"sum to 1|finite number"):
        Combination(weights=weights)


def test_weights_for_other_members_are_refused() -> None:
    with pytest.raises(ValueError, match="2 weights for 3 members"):
        pool(MEMBERS, Combination(weights=(0.5, 0.5)))


def test_disagreement_by_hand() -> None:
    sure = np.array([[[1.0, 0.0]], [[0.0, 1.0]]])
    alike = np.array([[[0.5, 0.5]], [[0.5, 0.5]]])
    assert mutual_information(sure) == pytest.approx([1])
    assert mutual_information(alike) == pytest.approx([0])
    assert mutual_information(sure[:1]) == pytest.approx([0])
    assert mutual_information(sure, (1.0, 0.0)) == pytest.approx([0])
    two = np.array([[[0.9, 0.1]], [[0.3, 0.7]]])

    def entropy(p: float) -> float:
        return -p * np.log(p) - (1 - p) * np.log(1 - p)

    expected = (entropy(0.6) - (entropy(0.9) + entropy(0.3)) / 2) / np.log(2)
    assert mutual_information(two) == pytest.approx([expected])
