"""Calibration by class: a slope alone is a temperature, and known biases come back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from skindx.models.class_calibration import (
    FEWEST,
    ClassCalibration,
    cross_fitted,
    fit_class_calibration,
)
from skindx.models.combination import apply_temperature, fit_temperature

Sample = tuple[NDArray[np.float64], NDArray[np.intp], list[str]]

LOGITS = st.lists(st.lists(st.floats(-30, 30), min_size=3, max_size=3), min_size=1, max_size=5).map(
    np.array
)


def simulate(biases: tuple[float, ...], slope: float = 1.0, n: int = 3000, seed: int = 0) -> Sample:
    """Return logits, labels drawn from softmax(slope * logits + biases), and groups of two."""
    random = np.random.default_rng(seed)
    logits_NC = random.normal(size=(n, len(biases))) * 2
    true = ClassCalibration(slope=slope, biases=biases).apply(logits_NC)
    truth_N = (true.cumsum(axis=1) < random.random((n, 1))).sum(axis=1).clip(max=len(biases) - 1)
    return logits_NC, truth_N, [f"lesion {number // 2}" for number in range(n)]


@pytest.fixture(scope="module")
def biased() -> Sample:
    return simulate((1.0, -1.5, 0.2, 0.3), slope=0.8)


def test_by_hand() -> None:
    calibration = ClassCalibration(slope=2, biases=(np.log(3), -np.log(3)))
    # 2 log(0.5) cancels: 3 to 1/3. And 0.25² * 3 to 0.75² / 3.
    rows_NC = calibration.apply(np.log([[0.5, 0.5], [0.25, 0.75]]))
    np.testing.assert_allclose(rows_NC, [[0.9, 0.1], [0.5, 0.5]])


@given(LOGITS, st.floats(-50, 50))
def test_what_holds_for_all_logits(logits_NC: NDArray[np.float64], shift: float) -> None:
    calibration = ClassCalibration(slope=1.3, biases=(0.5, -1.0, 0.5))
    p_NC = calibration.apply(logits_NC)
    np.testing.assert_allclose(p_NC.sum(axis=1), 1)
    np.testing.assert_allclose(calibration.apply(logits_NC + shift), p_NC, atol=1e-9)
    log_NC = logits_NC - np.logaddexp.reduce(logits_NC, axis=1, keepdims=True)
    np.testing.assert_allclose(calibration.apply(log_NC), p_NC, atol=1e-9)
    # Without biases it is a temperature, and with a slope of 1 it changes nothing.
    slope = ClassCalibration(slope=2.5, biases=(0.0,) * 3)
    np.testing.assert_allclose(slope.apply(logits_NC), apply_temperature(logits_NC, 0.4))
    same = ClassCalibration(slope=1, biases=(0.0,) * 3)
    np.testing.assert_allclose(same.apply(log_NC), np.exp(log_NC), atol=1e-12)


def test_known_biases_and_slope_are_recovered(biased: Sample) -> None:
    fit = fit_class_calibration(*biased)
    assert fit.fitted is not None
    assert fit.fitted.slope == pytest.approx(0.8, abs=0.05)
    assert fit.fitted.biases == pytest.approx((1.0, -1.5, 0.2, 0.3), abs=0.12)
    assert sum(fit.fitted.biases) == pytest.approx(0, abs=1e-9)
    assert fit.kept == fit.fitted
    assert fit.gain is not None
    assert fit.gain.low > 0.1
    assert "kept" in fit.reason
    crossed_NC = cross_fitted(*biased)
    assert crossed_NC is not None
    counts_C = np.bincount(biased[1])
    np.testing.assert_allclose(crossed_NC.sum(axis=0), counts_C, rtol=0.04)


def test_the_order_of_the_classes_does_not_matter(biased: Sample) -> None:
    logits_NC, truth_N, groups = (part[:600] for part in biased)
    order = np.array([2, 0, 3, 1])
    turned = fit_class_calibration(logits_NC[:, order], order.argsort()[truth_N], groups).fitted
    fitted = fit_class_calibration(logits_NC, truth_N, groups).fitted
    assert fitted is not None
    assert turned is not None
    np.testing.assert_allclose(np.array(fitted.biases)[order], turned.biases, atol=1e-4)


def test_no_gain_is_not_kept() -> None:
    logits_NC, truth_N, groups = simulate((0.0, 0.0, 0.0), slope=0.5, n=600, seed=3)
    fit = fit_class_calibration(logits_NC, truth_N, groups)
    assert fit.fitted is not None
    assert fit.gain is not None
    assert fit.kept is None
    assert "left out" in fit.reason


def test_copies_of_one_lesion_are_no_evidence() -> None:
    """Five lesions, each photographed a hundred times, support no calibration by class."""
    logits_NC, truth_N, _ = simulate((1.0, -1.0), n=5, seed=1)
    groups = [f"lesion {number}" for number in range(5)] * 100
    fit = fit_class_calibration(np.tile(logits_NC, (100, 1)), np.tile(truth_N, 100), groups)
    assert fit.gain is None or fit.kept is None


@pytest.mark.parametrize("images", [FEWEST - 1, FEWEST])
def test_a_class_of_nine_images_is_left_at_the_shared_slope(biased: Sample, images: int) -> None:
    logits_NC, truth_N, groups = (part[:1200] for part in biased)
    spare = np.flatnonzero(truth_N == 2)[images:]
    kept_N = np.setdiff1d(np.arange(1200), spare)
    some = [groups[number] for number in kept_N]
    fitted = fit_class_calibration(logits_NC[kept_N], truth_N[kept_N], some).fitted
    assert fitted is not None
    assert (fitted.few, fitted.biases[2] == 0) == (((2,), True) if images < FEWEST else ((), False))
    assert fitted.biases[0] > 0.5
    assert fitted.biases[1] < -0.5


def test_too_little_to_fit_on() -> None:
    logits_NC, truth_N, groups = simulate((1.0, -1.0), n=400)
    for case in (
        (logits_NC[:8], truth_N[:8], groups[:8]),  # four groups
        (logits_NC[truth_N == 0], truth_N[truth_N == 0], groups[: int((truth_N == 0).sum())]),
    ):
        fit = fit_class_calibration(*case)
        assert (fit.fitted, fit.gain, fit.kept, cross_fitted(*case)) == (None,) * 4
        assert "at least 10 images" in fit.reason
    with pytest.raises(ValueError, match="finite"):
        fit_class_calibration(np.where(logits_NC > 3, np.inf, logits_NC), truth_N, groups)


def test_one_image_of_an_absent_fold_keeps_the_fit_finite() -> None:
    """All images of a class may be one lesion, and then four of five folds have none of them."""
    logits_NC, truth_N, groups = simulate((0.5, 0.0, -0.5), n=600)
    groups = ["one" if label == 2 else group for label, group in zip(truth_N, groups, strict=True)]
    fitted = fit_class_calibration(logits_NC, truth_N, groups).fitted
    assert fitted is not None
    assert np.abs(fitted.biases).max() < 5


def test_a_strong_penalty_leaves_the_temperature(
    biased: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skindx.models.class_calibration._STRENGTHS", (1e9,))
    fitted = fit_class_calibration(*biased).fitted
    assert fitted is not None
    assert 1 / fitted.slope == pytest.approx(fit_temperature(biased[0], biased[1]), rel=1e-3)
    assert np.abs(fitted.biases).max() < 1e-6


@pytest.mark.parametrize(
    "damaged",
    [
        {"slope": 0.0},
        {"slope": float("nan")},
        {"biases": (0.1, float("inf"))},
        {"biases": (0.1,)},
        {"few": (2,)},
        {"few": (-1,)},
        {"matrix": ((1.0,),)},
    ],
)
def test_a_damaged_calibration_is_refused(damaged: dict[str, object]) -> None:
    whole = {"slope": 1.0, "biases": (0.1, -0.1), "few": (0,)}
    ClassCalibration.model_validate(whole)
    with pytest.raises(ValidationError):
        ClassCalibration.model_validate({**whole, **damaged})
