"""Sequential tests on simulated streams: false alarms, delays, change points, by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from skindx.monitor.drift_detector import ALLOWANCE, DriftDetector, DriftLevels

STREAMS, URGENT, LENGTH = 5, 4, 600


def photos(count: int, seed: int, *, share: float = 0.2, moved: float = 0.0) -> NDArray[np.float64]:
    """Return numbers with heavy tails, and a risk that tells urgent photos from others."""
    random = np.random.default_rng(seed)
    numbers_QS = random.standard_t(4, (count, STREAMS))
    numbers_QS[:, 1] += 0.6 * numbers_QS[:, 0]
    numbers_QS[:, 0] += moved
    centre_Q = np.where(random.random(count) < share, 1.5, -2.5)
    numbers_QS[:, URGENT] = 1 / (1 + np.exp(-centre_Q - random.standard_normal(count)))
    return numbers_QS


@pytest.fixture(scope="module")
def detector() -> DriftDetector:
    return DriftDetector.fit(photos(400, 0), URGENT, run_length=LENGTH, runs=150)


def first_alarm(detector: DriftDetector, numbers_QS: NDArray[np.float64]) -> tuple[int, int, int]:
    """Return photo, test and estimated change of the first alarm; (0, -1, 0) for none."""
    levels = DriftLevels.start(2 * STREAMS)
    for evidence_A in detector.evidence(numbers_QS):
        before = levels
        levels, alarms = levels.after(evidence_A, detector.thresholds_A)
        if len(alarms):
            return levels.photos, int(alarms[0]), int(before.since_A[alarms[0]])
    return 0, -1, 0


def test_false_alarms_are_as_rare_as_promised(detector: DriftDetector) -> None:
    """Of runs as long as the promised mean, at most 1 - 1/e raise an alarm."""
    alarms = [first_alarm(detector, photos(LENGTH, 100 + run))[0] > 0 for run in range(40)]
    assert np.mean(alarms) < 0.63


@pytest.mark.parametrize(("share", "test"), [(0.5, URGENT), (0.02, URGENT + STREAMS)])
def test_a_planted_prevalence_is_named(detector: DriftDetector, share: float, test: int) -> None:
    found = [first_alarm(detector, photos(400, 200 + run, share=share)) for run in range(15)]
    assert np.median([number or 400 for number, _, _ in found]) < 200
    assert np.mean([named == test for _, named, _ in found]) > 0.7


def test_a_planted_shift_is_found_soon_and_dated(detector: DriftDetector) -> None:
    found = [
        first_alarm(
            detector, np.concatenate([photos(50, 300 + run), photos(100, 400 + run, moved=-1.5)])
        )
        for run in range(15)
    ]
    assert 55 < np.median([number for number, _, _ in found]) < 80
    assert np.mean([test == STREAMS for _, test, _ in found]) > 0.8  # the first stream fell
    assert abs(np.median([since for _, _, since in found]) - 51) < 8


def test_levels_by_hand() -> None:
    levels, thresholds_A = DriftLevels.start(2), np.array([2.0, 9.0])
    for evidence in ([1.0, -1.0], [-3.0, 1.0], [1.5, 1.0]):
        levels, alarms = levels.after(np.array(evidence), thresholds_A)
        assert not len(alarms)
    assert levels.level_A.tolist() == [1.5, 2.0]
    assert levels.since_A.tolist() == [3, 2]
    levels, alarms = levels.after(np.array([1.0, 0.0]), thresholds_A)
    assert alarms.tolist() == [0]
    assert levels.level_A.tolist() == [0.0, 2.0]
    assert levels.since_A.tolist() == [5, 2]


def test_evidence_by_hand() -> None:
    """A photo in the middle of the reference speaks for no change, one at its end for a rise."""
    detector = DriftDetector(np.arange(99.0)[None, :], -1, np.ones(2))
    middle_A, end_A = detector.evidence(np.array([[49.0], [98.0]]))
    np.testing.assert_allclose(middle_A, [-ALLOWANCE, -ALLOWANCE], atol=1e-12)
    assert end_A[0] > 2 - ALLOWANCE
    assert end_A[1] == pytest.approx(-end_A[0] - 2 * ALLOWANCE)


@given(st.integers(1, 400), st.integers(-6, 6))
def test_no_scale_of_a_stream_matters(seed: int, power: int) -> None:
    scale = 2.0**power  # exact, so that no tie is broken
    reference, asked = photos(50, seed)[:, :4], photos(20, seed + 1)[:, :4]
    plain = DriftDetector(np.sort(reference.T, axis=1), -1, np.ones(8))
    moved = DriftDetector(np.sort(scale * reference.T, axis=1), -1, np.ones(8))
    np.testing.assert_array_equal(moved.evidence(scale * asked), plain.evidence(asked))
