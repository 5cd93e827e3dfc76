"""Joules of this machine while something runs: summed counters, or why there are none."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Self

from skindx.bench.meters.counters import Counter, find_counters
from skindx.bench.meters.reading import Energy

_EVERY_S = 10.0
"""RAPL's counters start again at zero every few minutes under load: read them more often."""

_LEAST_S = 1.0
"""A counter that has not moved in so long does not count: an idle processor draws watts."""


class EnergyMeter:
    """Sums all counters between entering and leaving.

    What is counted is the whole machine's processors and GPUs, for all processes. A counter that
    goes backwards, stands still or cannot be read makes the figure unavailable: a sum without one
    of its parts is no sum.
    """

    def __init__(
        self,
        counters: Sequence[Counter] | None = None,
        every_s: float = _EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._refused: Sequence[str] = ()
        if counters is None:
            found = find_counters()
            counters, self._refused = found.counters, found.refused
        self._counters = counters
        self._every_s = every_s
        self._clock = clock
        self._last = [0.0] * len(counters)
        self._grown = [0.0] * len(counters)
        self._fault = ""
        self._began = self._ended = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @property
    def sensors(self) -> tuple[str, ...]:
        """Names of the counters."""
        return tuple(counter.name for counter in self._counters)

    @property
    def joules(self) -> float | None:
        """Joules so far; None where they are unavailable."""
        return self.energy.joules

    @property
    def energy(self) -> Energy:
        """Joules with their label."""
        if not self._counters:
            why = "; ".join(self._refused) or "no energy counter"
            return Energy("unavailable", why=why)
        if self._fault:
            return Energy("unavailable", sensors=self.sensors, why=self._fault)
        seconds = self._ended - self._began
        if seconds >= _LEAST_S:
            for counter, grown in zip(self._counters, self._grown, strict=True):
                if grown == 0:
                    why = f"{counter.name} did not move in {seconds:.1f} s"
                    return Energy("unavailable", sensors=self.sensors, why=why)
        elif not sum(self._grown):
            why = f"the counters did not move in {seconds:.3f} s, which is too short for them"
            return Energy("unavailable", sensors=self.sensors, why=why)
        why = "; ".join(self._refused)
        return Energy("measured", sum(self._grown), sensors=self.sensors, why=why)

    def __enter__(self) -> Self:
        self._began = self._ended = self._clock()
        for index, counter in enumerate(self._counters):
            try:
                self._last[index] = counter.read_j()
            except (OSError, RuntimeError) as error:
                self._fault = f"{counter.name} could not be read ({error})"
        if self._counters:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._counters:
            self._thread.join()
            self._add()

    def _watch(self) -> None:
        while not self._stop.wait(self._every_s):
            self._add()

    def _add(self) -> None:
        self._ended = self._clock()
        for index, counter in enumerate(self._counters):
            if self._fault:
                return
            try:
                now = counter.read_j()
                self._grown[index] += growth(self._last[index], now, counter.range_j)
                self._last[index] = now
            except (OSError, RuntimeError) as error:
                self._fault = f"{counter.name} could not be read ({error})"
            except ValueError as error:
                self._fault = f"{counter.name} {error}"


def growth(before_j: float, now_j: float, range_j: float) -> float:
    """Return the joules between two readings of a counter that starts again after `range_j`.

    Raises ValueError when it went backwards and did not start again: between two readings a
    counter uses up far less than half of its range.
    """
    grown = now_j - before_j
    if grown >= 0:
        return grown
    wrapped = grown + range_j
    if 0 <= wrapped < range_j / 2:
        return wrapped
    raise ValueError(f"went backwards from {before_j:.3f} J to {now_j:.3f} J")
