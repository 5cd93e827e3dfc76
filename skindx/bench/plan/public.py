"""The public measurements of B-Caffe: GoogLeNet on 2, 4 and 8 nodes, message by message."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from skindx.planning.cost import fit
from skindx.planning.public_traces import read_allreduce, read_lines
from skindx.planning.timeline import simulate
from skindx.planning.trace import Trace

_ROW = re.compile(r"\[(\d+), (\d+), ([^\]]+)\]$")

RUNS = (
    ("tmp2comm", 2, 0),
    ("tmp4comm", 4, 0),
    ("tmp4ocomm", 4, 0),
    ("tmp4ocomm", 4, 1),
    ("tmp8comm", 8, 0),
    ("tmp8comm", 8, 1),
    ("tmp8ocomm", 8, 0),
    ("tmp8ocomm", 8, 1),
)
"""Log, nodes, and which of its columns of communication."""


@dataclass(frozen=True)
class Logged:
    """One run: backward layer by layer, and what each message took in it."""

    name: str
    nodes: int
    trace: Trace
    groups: tuple[int, ...]
    seconds: tuple[float, ...]
    """Of the messages."""

    def step_s(self, cost: Callable[[int, float], float]) -> float:
        """Return backward with its communication; `cost` of a message's number and bytes."""
        numbers = iter(range(len(self.groups)))
        return simulate(self.trace, self.groups, lambda size: cost(next(numbers), size)).finish_s

    @property
    def measured_s(self) -> float:
        """By the times of the log."""
        return self.step_s(lambda number, size: self.seconds[number])


def errors(folder: Path) -> dict[str, float]:
    """Return the relative errors, by run: times of messages from the all-reduce that was measured.

    On each number of nodes one factor of the network is taken from the first run there, which
    counts in no error: training slows an all-reduce down that has the machine to itself in the
    test.
    """
    runs = [read_run(folder, *run) for run in RUNS]
    found = {}
    for nodes in sorted({run.nodes for run in runs}):
        own = [run for run in runs if run.nodes == nodes]
        line = fit(read_allreduce(folder / f"allreduce{nodes}.log"))
        factor = calibrate(own[0], line)
        for run in own[1:]:
            predicted_s = run.step_s(lambda number, size: factor * line(size))  # noqa: B023
            found[run.name] = predicted_s / run.measured_s - 1
    return found


def calibrate(run: Logged, line: Callable[[float], float]) -> float:
    """Return the factor of the network with which a run takes as long as it did."""
    low, high = 0.1, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        if run.step_s(lambda number, size: middle * line(size)) < run.measured_s:  # noqa: B023
            low = middle
        else:
            high = middle
    return (low + high) / 2


def read_run(folder: Path, log: str, nodes: int, column: int) -> Logged:
    """Read a log's last block; a message goes out at each row that has a time."""
    block: list[tuple[int, float, list[float]]] = []
    for line in read_lines(folder / f"{log}.log"):
        if match := _ROW.search(line.strip()):
            if int(match[1]) == 0:
                block = []
            backward_us, *communication = map(float, match[3].split(","))
            block.append((4 * int(match[2]), backward_us, communication))
    backward = list(enumerate(block))[::-1]
    groups, seconds, waiting = [], [], 0
    for _, (_, _, communication) in backward:
        waiting += 1
        if communication[column] > 0:
            groups.append(waiting)
            seconds.append(communication[column] / 1e6)
            waiting = 0
    if waiting:
        groups[-1] += waiting
    trace = Trace(
        names=tuple(str(number) for number, _ in backward),
        sizes_bytes=tuple(size for _, (size, _, _) in backward),
        # Weight and bias of a layer bear its time both; backward meets the bias (odd) first.
        backward_s=tuple(us / 1e6 if number % 2 else 0.0 for number, (_, us, _) in backward),
    )
    return Logged(f"{log}/{column}", nodes, trace, tuple(groups), tuple(seconds))
