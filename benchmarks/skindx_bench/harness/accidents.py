"""Accidents of ranks, by a schedule that a seed decides: killed, stopped, cut off, asked to go."""

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from skindx_bench.harness.netlab import NetLab

Kind = Literal["kill", "stop", "cut", "leave"]
"""`kill`: SIGKILL; `stop`: SIGSTOP, later SIGCONT; `cut`: the link goes down, later up again;
`leave`: SIGTERM, as a cluster does before it takes a machine."""

KINDS: tuple[Kind, ...] = ("kill", "stop", "cut", "leave")


_POLL_S = 0.05


@dataclass(frozen=True)
class Accident:
    """What happens to a rank, so many seconds after the schedule begins."""

    at_s: float
    kind: Kind
    rank: int
    for_s: float = 0.0
    """How long it is stopped or cut off."""
    happened: float | None = None
    """When it did, by the monotonic clock; none: not yet, or the rank was not there."""


def every(seconds: float, times: int, ranks: int, seed: int) -> list[Accident]:
    """Return `times` kills, one each so many seconds, never of the same rank twice in a row."""
    rng, result, before = random.Random(seed), [], -1  # noqa: S311 (a schedule)
    for number in range(times):
        before = rng.choice([rank for rank in range(ranks) if rank != before])
        result.append(Accident(number * seconds, "kill", before))
    return result


def at_random(
    seed: int, ranks: int, seconds: float, count: int, kinds: Sequence[Kind] = KINDS
) -> list[Accident]:
    """Return `count` accidents within so many seconds, in order; those of a rank do not overlap."""
    rng = random.Random(seed)  # noqa: S311 (a schedule)
    times = sorted(rng.uniform(0, seconds) for _ in range(count))
    free = dict.fromkeys(range(ranks), 0.0)
    result = []
    for at_s in times:
        if open_ranks := [rank for rank, until in free.items() if until <= at_s]:
            rank, kind = rng.choice(open_ranks), rng.choice(kinds)
            for_s = rng.uniform(0.2, seconds) if kind in ("stop", "cut") else 0.0
            free[rank] = at_s + for_s
            result.append(Accident(at_s, kind, rank, for_s))
    return result


class Injector:
    """Lets accidents happen to ranks whose processes `pid_of` knows; none: it is not there now.

    Rank R is on node `first_node` + R of the lab, where there is one.
    """

    def __init__(
        self, pid_of: Callable[[int], int | None], lab: NetLab | None = None, first_node: int = 0
    ) -> None:
        self._pid_of, self._lab, self._first_node = pid_of, lab, first_node
        self.happened: list[Accident] = []

    def run(self, schedule: Sequence[Accident], until: Callable[[], bool] = lambda: False) -> None:
        """Let a schedule happen from now on, while the run does not end, as `until` says it.

        What lasts is over when this returns.
        """
        began = time.monotonic()
        lasting: list[tuple[float, Callable[[], None]]] = []

        def wait(moment: float) -> None:
            """Wait, and end what is to end before."""
            while not until() and (left_s := moment - time.monotonic()) > 0:
                time.sleep(min(_POLL_S, left_s))
                for due, end in list(lasting):
                    if due <= time.monotonic():
                        lasting.remove((due, end))
                        end()

        try:
            for accident in schedule:
                wait(began + accident.at_s)
                if until():
                    return
                if end := self._happen(accident):
                    lasting.append((began + accident.at_s + accident.for_s, end))
            while lasting and not until():
                wait(min(due for due, _ in lasting))
        finally:
            for _, end in lasting:
                end()

    def _happen(self, accident: Accident) -> Callable[[], None] | None:
        """Let an accident happen; return what ends one that lasts."""
        rank, pid = accident.rank, self._pid_of(accident.rank)
        if pid is None:
            return None
        self.happened.append(replace(accident, happened=time.monotonic()))
        if accident.kind == "cut":
            assert self._lab is not None, "a link can be cut in a lab alone"
            lab, node = self._lab, self._first_node + rank
            lab.cut(node)
            return lambda: lab.mend(node)
        names = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "leave": signal.SIGTERM}
        _send(pid, names[accident.kind])
        return (lambda: _send(pid, signal.SIGCONT)) if accident.kind == "stop" else None


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
