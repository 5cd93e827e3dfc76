"""Rounds of pairs: host beside container, beside a second host, beside a slower host."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from skindx.bench.harness.clock import Figure

ARMS = ("host", "container", "sham", "planted")
"""sham is a second process of the host; planted is the same one with more work planted."""

Run = Callable[[str], float]
"""Runs a task once in an arm and returns its seconds."""


@dataclass
class Rounds:
    """Seconds of one task by arm; every arm has had the same rounds."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {arm: [] for arm in ARMS})

    def add(self, taken: Mapping[str, float]) -> None:
        """Add a whole round; half a round is no pair."""
        for arm in ARMS:
            self.seconds[arm].append(taken[arm])

    def ratios(self, arm: str) -> list[float]:
        """Return how many times faster than the host an arm was, by round."""
        pairs = zip(self.seconds["host"], self.seconds[arm], strict=True)
        return [host / other for host, other in pairs]


def one_round(run: Run, turn: int) -> dict[str, float]:
    """Run all arms; the order turns by one each round, so that none always follows another."""
    first = turn % len(ARMS)
    return {arm: run(arm) for arm in (*ARMS[first:], *ARMS[:first])}


def bootstrap(
    ratios: Sequence[float], resamples: int, rng: np.random.Generator, unit: str = "×"
) -> Figure:
    """Return the median of the rounds' ratios with its 95 % bootstrap interval."""
    values = np.asarray(ratios)
    drawn = np.median(values[rng.integers(0, len(values), (resamples, len(values)))], axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Figure(float(np.median(values)), unit, len(values), (float(low), float(high)))


@dataclass(frozen=True)
class Verdict:
    """Whether the method may be believed for a task.

    It must see nothing where nothing is, and a slowdown where one is planted.
    """

    sham_holds_one: bool
    planted_found: bool

    @property
    def sound(self) -> bool:
        """Whether both are so."""
        return self.sham_holds_one and self.planted_found


def judge(sham: Figure, planted: Figure) -> Verdict:
    """Return the verdict: the sham's interval holds 1, the planted one's lies below 1."""
    low, high = sham.spread
    return Verdict(low <= 1.0 <= high, planted.spread[1] < 1.0)
