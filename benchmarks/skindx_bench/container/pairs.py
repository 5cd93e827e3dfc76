"""Rounds of pairs: host beside container, beside a second host, beside a slower host."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from skindx_bench.harness.clock import Figure

# B = resamples, S = starts, R = rounds of a start

ARMS = ("host", "container", "sham", "planted")
"""sham is a second process of the host; planted is the same one with more work planted."""

ORDERS = ((0, 1, 3, 2), (1, 2, 0, 3), (2, 3, 1, 0), (3, 0, 2, 1))
"""Orders of the arms in four rounds: each comes once in each place and once after each other one
(Williams 1949, "Experimental designs balanced for the estimation of residual effects"). What an arm
leaves behind, as threads that still spin, then troubles all others alike."""

Run = Callable[[str], float]
"""Runs a task once in an arm and returns its seconds."""


@dataclass
class Rounds:
    """Seconds of one task by arm; every arm has had the same rounds.

    `starts` says with which processes a round was run: rounds of the same ones are no independent
    measurements, since where a process' memory lies makes it faster or slower for all its life.
    """

    seconds: dict[str, list[float]] = field(default_factory=lambda: {arm: [] for arm in ARMS})
    starts: list[int] = field(default_factory=list)

    def add(self, taken: Mapping[str, float], start: int = 0) -> None:
        """Add a whole round; half a round is no pair."""
        self.starts.append(start)
        for arm in ARMS:
            self.seconds[arm].append(taken[arm])

    def ratios(self, arm: str) -> list[float]:
        """Return how many times faster than the host an arm was, by round."""
        pairs = zip(self.seconds["host"], self.seconds[arm], strict=True)
        return [host / other for host, other in pairs]


def one_round(run: Run, turn: int) -> dict[str, float]:
    """Run all arms, in an order in which none follows another one more often than the rest do."""
    return {ARMS[number]: run(ARMS[number]) for number in ORDERS[turn % len(ORDERS)]}


def bootstrap(
    ratios: Sequence[float],
    starts: Sequence[int],
    resamples: int,
    rng: np.random.Generator,
    tests: int = 1,
) -> Figure:
    """Return the median of the rounds' ratios with a bootstrap interval.

    Draws starts with replacement, then rounds of each (Davison and Hinkley 1997, "Bootstrap Methods
    and their Application", section 3.8). The interval is one of 95 % for `tests` figures together
    (Bonferroni).
    """
    values, groups = np.asarray(ratios), np.asarray(starts)
    rounds = [values[groups == start] for start in np.unique(groups)]
    sizes_S = np.array([len(own) for own in rounds])
    padded_SR = np.full((len(rounds), sizes_S.max()), np.nan)
    for row, own in zip(padded_SR, rounds, strict=True):
        row[: len(own)] = own
    picks_BS1 = rng.integers(len(rounds), size=(resamples, len(rounds), 1))
    shares_BSR = rng.random((resamples, *padded_SR.shape))
    drawn_BSR = padded_SR[picks_BS1, (shares_BSR * sizes_S[picks_BS1]).astype(int)]
    if sizes_S.min() < sizes_S.max():
        drawn_BSR[np.arange(padded_SR.shape[1]) >= sizes_S[picks_BS1]] = np.nan
    drawn = np.nanmedian(drawn_BSR.reshape(resamples, -1), axis=1)
    tail = 0.025 / tests
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Figure(float(np.median(values)), "×", len(values), (float(low), float(high)))


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
