"""Traces and logs that others have published: PipeDream's graphs, B-Caffe's logs, OSU's all-reduce.

A log of B-Caffe has the time of each message of a run, which is laid beside what a plan says of it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from skindx.core.cost.collectives import Cost, least_relative_error
from skindx.core.cost.pricing import Message, Price, StepSchedule, Timed
from skindx.core.cost.profile import Profile, Trace
from skindx_methods.plan.cluster import Cluster, ClusterNetwork, Link
from skindx_methods.plan.events import simulate_step
from skindx_methods.plan.profiles import Profiles

_NODE = re.compile(
    r"node(\d+) -- (.+) -- forward_compute_time=(\S+), backward_compute_time=(\S+), "
    r"activation_size=(\S+), parameter_size=(\S+)$"
)
_OUTPUTS = re.compile(r"^(?:Linear\(in_features=\d+, out_features=|Conv2d\(\d+, )(\d+)\b")
_EDGE = re.compile(r"node(\d+) -- node(\d+)$")
_ALLREDUCE = re.compile(r"(?:\d+,)?(\d+)\s+([\d.]+)$")
_LOGGED = re.compile(r"\[(\d+), (\d+), ([^\]]+)\]$")

_CLASSES = 1000
"""Of ImageNet, of which the last node of a graph makes a number each."""
_LEAST_SPREAD = 0.05


def read_pipedream(path: Path, one_rank_s: float | None = None) -> Profiles:
    """Read a graph of PipeDream, node by node in forward order; ms and bytes.

    Its `Input` is data loading and is left out. `one_rank_s`: the measured seconds of a step on one
    rank, to which its times are scaled.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    nodes = {int(row[0]): row for row in _rows(_NODE, lines)}
    taken: dict[int, int] = {}
    for first, second in _rows(_EDGE, lines):
        made = int(float(nodes[int(first)][4]))
        taken[int(second)] = max(taken.get(int(second), 0), made)
    factor = 1e-3
    if one_rank_s is not None:
        factor = one_rank_s / sum(
            float(forward_ms) + float(backward_ms)
            for _, words, forward_ms, backward_ms, *_ in nodes.values()
            if words != "Input"
        )
    layers = []
    for number, (_, words, forward_ms, backward_ms, activation, size) in sorted(nodes.items()):
        operator, outputs = words.partition("(")[0], _OUTPUTS.match(words)
        if operator != "Input":
            layers.append(
                {
                    "name": f"{number}.{operator}",
                    "operator": operator,
                    "forward_s": factor * float(forward_ms),
                    "backward_s": factor * float(backward_ms),
                    "parameter_bytes": int(float(size)),
                    "activation_bytes": int(float(activation)),
                    "input_bytes": taken.get(number, 0),
                    "outputs": int(outputs[1]) if outputs else 0,
                }
            )
    images = max(1, int(float(nodes[max(nodes)][4])) // (4 * _CLASSES))
    raw = {"name": path.name.removesuffix(".graph.txt"), "batch": images, "layers": layers}
    profile = Profile.parse(raw, origin=str(path), expand=False)
    return Profiles(source="given", device="cuda", networks=(profile,))


def read_allreduce(path: Path) -> list[tuple[int, float]]:
    """Read (bytes, seconds) from a log of OSU's all-reduce test, in rows `[ranks,]bytes µs`."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [(int(size), float(us) / 1e6) for size, us in _rows(_ALLREDUCE, lines)]


def _rows(pattern: re.Pattern[str], lines: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return (match.groups() for line in lines if (match := pattern.search(line.strip())))


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

    def predicted_s(self, network: ClusterNetwork) -> float:
        """Backward with its communication, as a plan prices the same messages."""
        price = network.price("all_reduce")
        return self._step_s([price(size) for size in self.sizes_bytes], network)

    def _step_s(self, times: list[Timed], network: ClusterNetwork) -> float:
        ends = accumulate(self.groups)
        messages = tuple(map(Message, ends, self.sizes_bytes, times))
        return simulate_step(self.trace, StepSchedule(messages), network).seconds


_NOWHERE = ClusterNetwork(Cluster(nodes=1, backend="mpi"))


def read_runs(path: Path) -> list[Logged]:
    """Read a log's last block: one run for each column of communication.

    Rows are `[number, floats, backward µs, communication µs, …]` in forward order; a message goes
    out at each row that has a time, with all since the one before. Weight and bias of a layer both
    bear its time, and backward meets the bias (odd) first. Forward and update are not in it.
    """
    block: list[tuple[int, float, list[float]]] = []
    for number, floats, rest in _rows(_LOGGED, path.read_text(encoding="utf-8").splitlines()):
        if int(number) == 0:
            block = []
        backward_us, *columns = map(float, rest.split(","))
        block.append((4 * int(floats), backward_us / 1e6, [us / 1e6 for us in columns]))
    least = min(len(columns) for *_, columns in block)
    runs = (_run(f"{path.stem}/{column}", block, column) for column in range(least))
    return [run for run in runs if run]


def _run(name: str, block: list[tuple[int, float, list[float]]], column: int) -> Logged | None:
    backward = list(enumerate(block))[::-1]
    groups, took_s, waiting = [], [], 0
    for _, (_, _, columns) in backward:
        waiting += 1
        if columns[column] > 0:
            groups.append(waiting)
            took_s.append(columns[column])
            waiting = 0
    if not groups:
        return None
    groups[-1] += waiting
    trace = Trace(
        names=tuple(str(number) for number, _ in backward),
        sizes_bytes=tuple(size for _, (size, _, _) in backward),
        backward_s=tuple(layer_s if number % 2 else 0.0 for number, (_, layer_s, _) in backward),
    )
    return Logged(name, trace, tuple(groups), tuple(took_s))


def fit_overhead(sizes: Sequence[int], seconds: Sequence[float], known: Price) -> Cost:
    """Return what messages took on top of a collective, as a line over bytes; no term is negative.

    The least sum of relative errors |(known + alpha + beta x bytes) / measured - 1|.
    """
    known_N = np.array([known(size).alone_s for size in sizes])
    return least_relative_error(np.array(sizes, float), np.array(seconds), known_N)


def overhead_of(run: Logged, network: ClusterNetwork) -> Link:
    """Return what messages of a run took on top of the collectives alone, as far as known.

    Its spread is what all messages together took over what they would by the fit: a few that took
    far longer do not bend the line, and are not forgotten either.
    """
    price = network.price("all_reduce")
    line = fit_overhead(run.sizes_bytes, run.seconds, price)
    fitted_s = sum(price(size).alone_s + line(size) for size in run.sizes_bytes)
    spread = abs(sum(run.seconds) / fitted_s - 1)
    return Link(
        alpha_s=line.alpha_s,
        beta_s_per_byte=max(line.beta_s_per_byte, 1e-18),
        spread=min(10.0, max(_LEAST_SPREAD, spread)),
    )
