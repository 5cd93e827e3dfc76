import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from plain_measures import expected_calibration_error

from skindx.models.combination import (
    COLDEST,
    HOTTEST,
    apply_temperature,
    fit_temperature,
)


def simulate(temperature: float, n: int = 20_000) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return logits, and labels drawn from softmax(logits / temperature)."""
    random = np.random.default_rng(0)
    logits_NC = random.normal(size=(n, 6)) * 3
    cumulative_NC = apply_temperature(logits_NC, temperature).cumsum(axis=1)
    return logits_NC, (cumulative_NC < random.random((n, 1))).sum(axis=1).clip(max=5)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_a_known_temperature_is_recovered(temperature: float) -> None:
    logits_NC, truth_N = simulate(temperature)
    assert fit_temperature(logits_NC, truth_N) == pytest.approx(temperature, rel=0.04)


def test_logits_and_log_probabilities_give_the_same_temperature() -> None:
    logits_NC, truth_N = simulate(2.0, n=500)
    log_NC = np.log(apply_temperature(logits_NC, 1.0))
    assert fit_temperature(log_NC, truth_N) == pytest.approx(fit_temperature(logits_NC, truth_N))


def test_doubt_goes_to_the_rival_in_the_mix_that_is_served() -> None:
    """Platt's smoothing: of few images the rest goes to the strongest other class after the mix."""
    scores_NC = np.log([[0.7, 0.2, 0.1], [0.6, 0.25, 0.15], [0.2, 0.7, 0.1]])
    shift_C, truth_N, doubt = np.log([0.3, 0.1, 4.0]), np.array([0, 0, 1]), 1 / 5
    grid_T = np.geomspace(COLDEST, HOTTEST, 20_000)
    log_TNC = scores_NC / grid_T[:, None, None] + shift_C
    log_TNC -= np.log(np.exp(log_TNC).sum(axis=2, keepdims=True))
    rival = 2  # the last class, which the mix makes likelier than the others
    loss_T = -(((1 - doubt) * log_TNC[:, np.arange(3), truth_N]) + doubt * log_TNC[..., rival])
    best = grid_T[loss_T.mean(axis=1).argmin()]
    assert COLDEST < best < HOTTEST
    assert fit_temperature(scores_NC, truth_N, shift_C) == pytest.approx(best, rel=1e-3)


def test_scaling_closes_the_calibration_gap() -> None:
    logits_NC, truth_N = simulate(3.0)
    before = expected_calibration_error(apply_temperature(logits_NC, 1.0), truth_N)
    scaled_NC = apply_temperature(logits_NC, fit_temperature(logits_NC, truth_N))
    assert before > 0.2
    assert expected_calibration_error(scaled_NC, truth_N) < 0.02


def test_a_faultless_or_hopeless_model_stays_within_the_bounds() -> None:
    scores_NC = np.eye(4)
    assert COLDEST < fit_temperature(scores_NC, np.arange(4)) < 1
    assert fit_temperature(scores_NC, np.roll(np.arange(4), 1)) == pytest.approx(HOTTEST, rel=0.01)


@given(
    st.lists(st.integers(-40, 40), min_size=2, max_size=8, unique=True),
    st.floats(COLDEST, HOTTEST),
)
def test_ranking_never_changes_and_rows_sum_to_one(scores: list[int], temperature: float) -> None:
    scores_NC = np.array([scores], dtype=np.float64)
    probabilities_C = apply_temperature(scores_NC, temperature)[0]
    assert (np.diff(probabilities_C[np.argsort(scores)]) >= 0).all()
    assert probabilities_C.argmax() == np.argmax(scores)
    assert probabilities_C.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("scores", "truth", "said"),
    [
        (np.zeros((0, 2)), np.zeros(0, int), r"must have the shape"),
        (np.zeros((2, 2)), np.zeros(3, int), r"must have the shape"),
        (np.array([[0.0, -np.inf]]), np.zeros(1, int), "log_softmax"),
    ],
)
def test_bad_scores_are_refused(
    scores: NDArray[np.float64], truth: NDArray[np.intp], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        fit_temperature(scores, truth)


def test_a_temperature_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        apply_temperature(np.zeros((1, 2)), 0.0)


@pytest.mark.parametrize("images", [20, 60, 500])
def test_a_perfect_validation_split_does_not_prove_certainty(images: int) -> None:
    truth_N = np.arange(images) % 4
    scores_NC = 3.0 * np.eye(4)[truth_N] + np.random.default_rng(0).normal(0, 0.3, (images, 4))
    assert (scores_NC.argmax(axis=1) == truth_N).all()
    confidence = apply_temperature(scores_NC, fit_temperature(scores_NC, truth_N)).max(axis=1)
    assert confidence.mean() == pytest.approx((images + 1) / (images + 2), abs=0.01)
