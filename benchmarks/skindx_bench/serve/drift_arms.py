"""Families of sequential tests that a monitor may run, and streams of photos run through them."""

from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from skindx.monitor.drift_detector import DriftDetector, Floats, thresholds

# N = images, S = streams, A = tests, R = runs, T = photos of a run, B = bets


class Arm(Protocol):
    """A family of sequential tests with thresholds; the state is of R runs."""

    @property
    def limits(self) -> Floats:
        """Return the thresholds A."""

    def evidence(self, numbers_NS: NDArray[np.floating]) -> Floats:
        """Return what each photo brings, N x anything."""

    def start(self, runs: int) -> NDArray[np.floating]:
        """Return the state before the first photo."""

    def step(self, state: NDArray[np.floating], brought: Floats) -> NDArray[np.floating]:
        """Return the state after one photo of each run."""

    def levels(self, state: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the level of each test."""


@dataclass(frozen=True)
class CusumArm:
    """What serves: cumulative sums of normal scores."""

    detector: DriftDetector

    @property
    def limits(self) -> Floats:
        """The detector's thresholds."""
        return self.detector.thresholds_A

    def evidence(self, numbers_NS: NDArray[np.floating]) -> Floats:
        """Return N x A."""
        return self.detector.evidence(numbers_NS)

    def start(self, runs: int) -> NDArray[np.floating]:
        """Return R x A zeros."""
        return np.zeros((runs, len(self.limits)))

    def step(self, state: NDArray[np.floating], brought: Floats) -> NDArray[np.floating]:
        """Page's recursion."""
        return np.maximum(state + brought, 0)

    def levels(self, state: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the state itself."""
        return state


_JUMP = 0.01
_BETS_B = np.array([-1.0, 0.0, 1.0])


@dataclass(frozen=True)
class MartingaleArm:
    """Conformal martingales on ranks: Vovk's Simple Jumper (2021), restarted at its lowest value.

    One test a stream bets on low and on high ranks; the log of its capital over the least so far
    is the level (the CUSUM procedure of Volkhonskiy et al. 2017). Capitals grow without their
    scale: only their ratio to the least one is kept.
    """

    sorted_SN: Floats
    limits: Floats

    @classmethod
    def fit(cls, reference_NS: NDArray[np.floating], shape: tuple[int, int], seed: int) -> Self:
        """Choose the thresholds as the monitor does; `shape` is photos in a run, and runs."""
        random = np.random.default_rng(seed)
        (length, runs), (size, streams) = shape, reference_NS.shape
        known_NS = reference_NS.astype(np.float64)
        start = cls(np.sort(known_NS.T, axis=1), np.full(streams, np.inf))
        brought_RNS = np.empty((runs, size, streams), dtype=np.float32)
        for run in range(runs):
            again_NS = known_NS[random.integers(size, size=size)]
            brought_RNS[run] = cls(np.sort(again_NS.T, axis=1), start.limits).evidence(known_NS)
        state, highest_RA = start.start(runs), np.zeros((runs, streams))
        for drawn_R in random.integers(size, size=(length, runs)):
            state = start.step(state, brought_RNS[np.arange(runs), drawn_R])
            highest_RA = np.maximum(highest_RA, start.levels(state))
        return cls(start.sorted_SN, thresholds(highest_RA))

    def evidence(self, numbers_NS: NDArray[np.floating]) -> Floats:
        """Return N x S ranks between 0 and 1."""
        size = self.sorted_SN.shape[1]
        ranks = [
            np.searchsorted(known_N, values_N) + np.searchsorted(known_N, values_N, "right")
            for known_N, values_N in zip(self.sorted_SN, numbers_NS.T, strict=True)
        ]
        return np.asarray((np.stack(ranks, axis=1) + 1) / (2 * size + 2))

    def start(self, runs: int) -> NDArray[np.floating]:
        """Return R x S x 3 equal capitals of 1 in all, the least being 1."""
        return np.full((runs, len(self.limits), 3), 1 / 3)

    def step(self, state: NDArray[np.floating], brought: Floats) -> NDArray[np.floating]:
        """Mix the capitals, bet, and divide by the sum where it falls below 1."""
        total = state.sum(axis=2, keepdims=True)
        mixed = (1 - _JUMP) * state + _JUMP * total / 3
        after = mixed * (1 + _BETS_B * (brought[..., None] - 0.5))
        return np.asarray(np.minimum(after / np.minimum(after.sum(2, keepdims=True), 1), 1e200))

    def levels(self, state: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the log of capital over the least one."""
        return np.asarray(np.log(state.sum(axis=2)))


@dataclass(frozen=True)
class Alarms:
    """The first alarm of each run: its photo (0: none), its test, and the estimated change."""

    photo_R: NDArray[np.intp]
    test_R: NDArray[np.intp]
    since_R: NDArray[np.intp]


def first_alarms(arm: Arm, numbers_NS: Floats, drawn_RT: NDArray[np.integer]) -> Alarms:
    """Run streams of rows of a table until each has raised its first alarm."""
    brought = arm.evidence(numbers_NS)
    runs, length = drawn_RT.shape
    state, last_zero = arm.start(runs), np.zeros((runs, len(arm.limits)), dtype=np.intp)
    photo_R, test_R, since_R = (np.zeros(runs, dtype=np.intp) for _ in range(3))
    for photo in range(1, length + 1):
        state = arm.step(state, brought[drawn_RT[:, photo - 1]])
        levels_RA = arm.levels(state)
        last_zero[levels_RA <= 0] = photo
        share_RA = levels_RA / arm.limits
        new_R = (share_RA.max(axis=1) > 1) & (photo_R == 0)
        if new_R.any():
            photo_R[new_R] = photo
            test_R[new_R] = share_RA[new_R].argmax(axis=1)
            since_R[new_R] = last_zero[new_R, test_R[new_R]] + 1
            if photo_R.all():
                break
    return Alarms(photo_R, test_R, since_R)
