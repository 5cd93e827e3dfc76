"""Runs of B-Caffe whose logs say what each message took: beside what a plan says of them."""

import re
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from skindx.core.cost.cluster import Cluster, Link
from skindx.core.cost.collectives import fit_overhead
from skindx.core.cost.network import Network, Timed
from skindx.core.cost.profile import MOST_BYTES, Trace
from skindx.core.cost.step import Message, StepSchedule, simulate_step
from skindx.core.errors import UserError
from skindx.plan.public_traces import refuse_many, seconds, short_lines

_ROW = re.compile(r"\[(\d{1,9}), (\d{1,15}), ([^\]]+)\]$")
_MOST_RUNS = 16
"""Of a log, each of which is simulated."""
_LEAST_SPREAD = 0.05


@dataclass(frozen=True)
class Logged:
    """One iteration of a run: backward layer by layer, and what each message took in it."""

    name: str
    trace: Trace
    groups: tuple[int, ...]
    """Tensors of each message, in backward order."""
    seconds: tuple[float, ...]
    """Of the messages."""

    @property
    def sizes_bytes(self) -> list[int]:
        """Of the messages."""
        return [
            sum(self.trace.sizes_bytes[end - count : end])
            for end, count in zip(accumulate(self.groups), self.groups, strict=True)
        ]

    @property
    def measured_s(self) -> float:
        """Backward with its communication, by the times of the log."""
        return self._step_s([Timed(0.0, seconds) for seconds in self.seconds], _NOWHERE)

    def predicted_s(self, network: Network) -> float:
        """Backward with its communication, as a plan prices the same messages."""
        price = network.price("all_reduce")
        return self._step_s([price(size) for size in self.sizes_bytes], network)

    def _step_s(self, times: list[Timed], network: Network) -> float:
        messages, last = [], 0
        for count, size, timed in zip(self.groups, self.sizes_bytes, times, strict=True):
            last += count
            messages.append(Message(last, size, timed))
        return simulate_step(self.trace, StepSchedule(tuple(messages)), network).seconds


_NOWHERE = Network(Cluster(nodes=1, backend="mpi"))


def overhead_of(run: Logged, network: Network) -> Link:
    """Return what messages of a run took on top of the collectives alone, as far as known.

    Its spread is what all messages together took over what they would by the fit: a few that took
    far longer do not bend the line, and are not forgotten either.
    """
    price = network.price("all_reduce")
    pairs = list(zip(run.sizes_bytes, run.seconds, strict=True))
    line = fit_overhead(pairs, lambda size: price(size).alone_s)
    fitted_s = sum(price(size).alone_s + line(size) for size, _ in pairs)
    spread = abs(sum(run.seconds) / fitted_s - 1)
    return Link(
        alpha_s=line.alpha_s,
        beta_s_per_byte=max(line.beta_s_per_byte, 1e-18),
        spread=min(10.0, max(_LEAST_SPREAD, spread)),
    )


def read_runs(path: Path) -> list[Logged]:
    """Read a log's last block: one run for each column of communication.

    Rows are `[number, floats, backward µs, communication µs, …]`; a message goes out at each row
    that has a time, with all since the one before. Raises UserError.
    """
    block: list[tuple[int, float, list[float]]] = []
    for line in short_lines(path):
        if match := _ROW.search(line.strip()):
            if int(match[1]) == 0:
                block = []
            where = f"row {match[1]}"
            size = int(seconds(match[2], 0.25, path, where, MOST_BYTES))
            backward_s, *communication = (
                seconds(text.strip(), 1e6, path, where) for text in match[3].split(",")
            )
            block.append((size, backward_s, communication))
            refuse_many(path, len(block))
    columns = min((len(communication) for *_, communication in block), default=0)
    if columns > _MOST_RUNS:
        raise UserError(
            f"{path} has {columns} times of messages in a row, and at most {_MOST_RUNS} are read; "
            "leave the columns of other runs out."
        )
    runs = [_run(f"{path.stem}/{column}", block, column) for column in range(columns)]
    result = [run for run in runs if run]
    if not result:
        raise UserError(f"{path} has no times of messages; give a log of B-Caffe on several nodes.")
    return result


def _run(name: str, block: list[tuple[int, float, list[float]]], column: int) -> Logged | None:
    backward = list(enumerate(block))[::-1]
    groups, took_s, waiting = [], [], 0
    for _, (_, _, communication) in backward:
        waiting += 1
        if communication[column] > 0:
            groups.append(waiting)
            took_s.append(communication[column])
            waiting = 0
    if not groups:
        return None
    groups[-1] += waiting
    raw = {
        "names": [str(number) for number, _ in backward],
        "sizes_bytes": [size for _, (size, _, _) in backward],
        # Weight and bias of a layer bear its time both; backward meets the bias (odd) first.
        "backward_s": [layer_s if number % 2 else 0.0 for number, (_, layer_s, _) in backward],
    }
    trace = Trace.parse(raw, origin=name, expand=False)
    return Logged(name, trace, tuple(groups), tuple(took_s))
