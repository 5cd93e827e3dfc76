"""Kernel regression that leaves groups out: equal to fits without them, for any labels."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.review.label_doubts import PENALTIES, GroupedKernel, as_probabilities


def _images(count: int, seed: int) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(seed)
    labels_N = np.arange(count) % 3
    vectors = random.normal(0, 1, (3, 6))[labels_N] + random.normal(0, 1, (count, 6))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    groups_N = np.array([f"g{n}" for n in random.integers(0, count // 2, count)])
    return vectors.astype(np.float32), labels_N, groups_N


def _refitted(vectors_ND: Any, labels_N: Any, groups_N: Any, penalty: float) -> Any:
    """Return the predictions by a fit a group, without that group."""
    distance_NN = ((vectors_ND[:, None].astype(float) - vectors_ND[None]) ** 2).sum(-1)
    kernel_NN = np.exp(-distance_NN / distance_NN.mean()) + 1
    found_NC = np.zeros((len(labels_N), 3))
    for group in set(groups_N):
        out_N = groups_N == group
        rest_NN = kernel_NN[np.ix_(~out_N, ~out_N)] + penalty * np.eye((~out_N).sum())
        weights = np.linalg.solve(rest_NN, np.eye(3)[labels_N[~out_N]])
        found_NC[out_N] = kernel_NN[np.ix_(out_N, ~out_N)] @ weights
    return found_NC


@given(seed=st.integers(0, 999), penalty=st.sampled_from(PENALTIES))
def test_it_equals_a_fit_without_each_group(seed: int, penalty: float) -> None:
    vectors_ND, labels_N, groups_N = _images(30, seed)
    expected = _refitted(vectors_ND, labels_N, groups_N, penalty)
    found = GroupedKernel(vectors_ND, groups_N).predict(labels_N, penalty)
    assert np.allclose(found, expected, atol=1e-4)


def test_a_label_does_not_speak_for_itself_or_its_group() -> None:
    vectors_ND, labels_N, groups_N = _images(40, 5)
    kernel = GroupedKernel(vectors_ND, groups_N)
    before = kernel.predict(labels_N, 0.2)
    own_N = groups_N == groups_N[7]
    swapped_N = labels_N.copy()
    swapped_N[own_N] = (swapped_N[own_N] + 1) % 3
    after = kernel.predict(swapped_N, 0.2)
    assert np.allclose(after[own_N], before[own_N], atol=1e-8)
    assert not np.allclose(after[~own_N], before[~own_N], atol=1e-3)


def test_landmarks_come_close_and_copies_do_no_harm() -> None:
    vectors_ND, labels_N, groups_N = _images(120, 1)
    vectors_ND[60:] = vectors_ND[:60]  # a kernel of half the rank
    labels_N[60:] = labels_N[:60]
    exact = GroupedKernel(vectors_ND, groups_N).predict(labels_N, 0.4)
    fewer = GroupedKernel(vectors_ND, groups_N, landmarks=80).predict(labels_N, 0.4)
    assert np.isfinite(exact).all()
    assert np.abs(exact - fewer).mean() < 0.05


def test_the_penalty_is_the_one_that_misses_least() -> None:
    vectors_ND, labels_N, groups_N = _images(60, 2)
    kernel = GroupedKernel(vectors_ND, groups_N)
    given_NC = np.eye(3)[labels_N]
    missed = {
        at: ((_refitted(vectors_ND, labels_N, groups_N, at) - given_NC) ** 2).sum()
        for at in PENALTIES
    }
    assert kernel.best_penalty(labels_N) == min(missed, key=missed.__getitem__)


def test_probabilities_by_hand() -> None:
    shares = as_probabilities(np.array([[0.999, -0.4, 0.0]]))
    assert shares[0] == pytest.approx(np.array([0.999, 0.001, 0.001]) / 1.001)
