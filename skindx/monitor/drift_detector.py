"""Sequential tests for drift: cumulative sums of many streams, with one rate of false alarms.

Page's CUSUM (1954) adds, photo by photo, what speaks for a shift, and never falls below 0. Streams
count by their normal scores among the reference, so that no scale and no heavy tail matters. The
share of urgent conditions has a likelihood ratio of its own under label shift (Saerens et al.
2002). Each stream is tested for a rise and for a fall.
"""

import math
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

# N = reference images, S = streams, A = 2 S tests (all rises, then all falls), Q = photos, R = runs

Singles = NDArray[np.float32]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Shift = Literal["camera", "kind", "prevalence", "answer"]
"""What an alarm is about: the camera, another kind of photos, the mix of diseases, the answers."""


@dataclass(frozen=True)
class Stream:
    """One number of every photo, and in words what a rise and a fall of it mean."""

    key: str
    shift: Shift
    rises: str
    falls: str


URGENT = Stream(
    "urgent",
    "prevalence",
    "more photos show an urgent condition",
    "fewer photos show an urgent condition",
)
RUN_LENGTH = 5_000
"""Photos between two false alarms of all tests together, on average, at least."""
ALLOWANCE = 0.5
"""Standard deviations that a stream may move without an alarm; half the shift that is sought.

`skindx bench serve drift` chose it, and the margin, on validation images."""
RATIOS = (2.0, 1 / 3)
"""Factors of the share of urgent conditions that the tests assume: for a rise and for a fall."""
_MARGIN = 3
"""Ratio of the simulated run length to the promised one, since few runs are simulated."""
_MOST = 0.5
"""Lowest cap on the share of urgent conditions that the test for a rise assumes."""


@dataclass(frozen=True)
class DriftDetector:
    """The reference's sorted numbers, and thresholds; `urgent` is the stream of risks, or -1."""

    sorted_SN: Floats
    urgent: int
    thresholds_A: Floats
    allowance: float = ALLOWANCE

    @classmethod
    def fit(
        cls,
        reference_NS: NDArray[np.floating],
        urgent: int,
        *,
        run_length: int = RUN_LENGTH,
        runs: int = 400,
        seed: int = 0,
        allowance: float = ALLOWANCE,
    ) -> Self:
        """Simulate photos like the reference and choose the thresholds for the run length.

        In each run the reference is drawn again, since it is a sample itself: what it misses of
        the truth would otherwise pass for drift. All thresholds are one multiple of the median of
        their test's highest level, so that no test raises most of the false alarms.
        """
        random = np.random.default_rng(seed)
        numbers_NS = np.asarray(reference_NS, dtype=np.float64)
        highest_RA = _highest_levels(numbers_NS, urgent, random, (run_length, runs), allowance)
        sorted_SN = np.sort(numbers_NS.T, axis=1)
        return cls(sorted_SN, urgent, thresholds(highest_RA), allowance)

    def evidence(self, numbers_QS: NDArray[np.floating]) -> Floats:
        """Return what each photo adds to each test, Q x A."""
        return _evidence(
            self.sorted_SN, self.urgent, np.asarray(numbers_QS, np.float64), self.allowance
        )

    def scores(self, numbers_QS: NDArray[np.floating]) -> Floats:
        """Return normal scores Q x S of photos among the reference."""
        return _scores(self.sorted_SN, np.asarray(numbers_QS, dtype=np.float64))


def _scores(sorted_SN: Floats, numbers_QS: Floats) -> Floats:
    from scipy.special import ndtri

    size = sorted_SN.shape[1]
    ranks_QS = np.stack(
        [
            np.searchsorted(known_N, values_Q, "left") + np.searchsorted(known_N, values_Q, "right")
            for known_N, values_Q in zip(sorted_SN, numbers_QS.T, strict=True)
        ],
        axis=1,
    )
    scores_QS: Floats = ndtri((ranks_QS + 1) / (2 * size + 2))
    return scores_QS


def thresholds(highest_RA: Floats) -> Floats:
    """Return the thresholds A by the highest levels R x A of simulated runs."""
    unit_A = np.maximum(np.median(highest_RA, axis=0), 1e-9)
    share = math.exp(-1 / _MARGIN)  # of runs without any alarm
    factor = float(np.quantile((highest_RA / unit_A).max(axis=1), share))
    return np.asarray(factor * unit_A)


def _evidence(sorted_SN: Floats, urgent: int, numbers_QS: Floats, allowance: float) -> Floats:
    scores_QS = _scores(sorted_SN, numbers_QS)
    evidence_QA = np.concatenate([scores_QS, -scores_QS], axis=1) - allowance
    if urgent >= 0:
        risk_Q, share = numbers_QS[:, urgent], float(sorted_SN[urgent].mean())
        share = min(max(share, 1e-3), 1 - 1e-3)
        for direction, ratio in enumerate(RATIOS):
            other = min(ratio * share, max((1 + share) / 2, _MOST)) if ratio > 1 else ratio * share
            likelihood_Q = risk_Q * other / share + (1 - risk_Q) * (1 - other) / (1 - share)
            column = urgent + direction * len(sorted_SN)
            evidence_QA[:, column] = np.log(np.maximum(likelihood_Q, 1e-9))
    return evidence_QA


def _highest_levels(
    numbers_NS: Floats,
    urgent: int,
    random: np.random.Generator,
    shape: tuple[int, int],
    allowance: float,
) -> Floats:
    """Return the highest level R x A of each test; `shape` is photos in a run, and runs."""
    (length, runs), (size, streams) = shape, numbers_NS.shape
    evidence_RNA = np.empty((runs, size, 2 * streams), dtype=np.float32)
    for run in range(runs):
        again_SN = np.sort(numbers_NS[random.integers(size, size=size)].T, axis=1)
        evidence_RNA[run] = _evidence(again_SN, urgent, numbers_NS, allowance)
    level_RA = np.zeros((runs, 2 * streams), dtype=np.float32)
    highest_RA = level_RA.copy()
    every_R = np.arange(runs)
    for drawn_R in random.integers(size, size=(length, runs)):
        level_RA = np.maximum(level_RA + evidence_RNA[every_R, drawn_R], 0)
        np.maximum(highest_RA, level_RA, out=highest_RA)
    return highest_RA.astype(np.float64)


@dataclass(frozen=True)
class DriftLevels:
    """The tests' levels after so many photos, and since which photo each has been above 0."""

    photos: int
    level_A: Floats
    since_A: Ints

    @classmethod
    def start(cls, tests: int) -> Self:
        """Return the levels before the first photo."""
        return cls(0, np.zeros(tests), np.ones(tests, dtype=np.int64))

    def after(
        self, evidence_A: Floats, thresholds_A: Floats
    ) -> tuple["DriftLevels", NDArray[np.intp]]:
        """Return the levels after one more photo, and which tests raise an alarm.

        Since when a test has been above 0 is Page's estimate of the change point. A test that
        raised an alarm starts again.
        """
        photos = self.photos + 1
        level_A = np.maximum(self.level_A + evidence_A, 0.0)
        alarms = np.flatnonzero(level_A > thresholds_A)
        level_A[alarms] = 0.0
        since_A = np.where(level_A > 0, self.since_A, photos + 1)
        return type(self)(photos, level_A, since_A), alarms
