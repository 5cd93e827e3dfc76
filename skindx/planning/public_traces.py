"""Readers of traces that others have published, in their own formats."""

import re
from collections.abc import Iterable
from pathlib import Path

from skindx.errors import UserError
from skindx.planning.trace import Trace

_BCAFFE = re.compile(r"\[(\d+), (\d+), ([\d.e+-]+), [^\]]+\]$")
_PIPEDREAM = re.compile(
    r"node(\d+) -- (.+) -- forward_compute_time=([\d.]+), backward_compute_time=([\d.]+), "
    r"activation_size=[\d.]+, parameter_size=([\d.]+)$"
)
_ALLREDUCE = re.compile(r"(?:\d+,)?(\d+)\s+([\d.]+)$")


def read_bcaffe(path: Path) -> Trace:
    """Read a log of B-Caffe: rows `[number, floats, backward µs, communication µs, …]`.

    A log holds blocks, of which the first may be an iteration without times: the last is taken.
    Rows stand in forward order. The weight and the bias of a layer both bear the layer's time;
    both are ready at its end. Forward and update are not in it, and count as 0.
    """
    block: list[tuple[int, float]] = []
    for number, floats, backward_us in _rows(_BCAFFE, path):
        if int(number) == 0:
            block = []
        block.append((4 * int(floats), float(backward_us) / 1e6))
    numbers = range(len(block) - 1, -1, -1)
    return Trace(
        names=tuple(f"{number // 2}.{'bias' if number % 2 else 'weight'}" for number in numbers),
        sizes_bytes=tuple(block[number][0] for number in numbers),
        # Backward meets the bias (odd) first, which takes the time; the weight comes with it.
        backward_s=tuple(block[number][1] if number % 2 else 0.0 for number in numbers),
    )


def read_pipedream(path: Path) -> Trace:
    """Read a profile of PipeDream: nodes with times in ms, numbered in forward order.

    A node's parameters count as one tensor. `Input` is data loading and is left out. The time of a
    node without parameters counts towards the next tensor.
    """
    nodes = sorted(
        (int(number), operator, float(forward_ms), float(backward_ms), int(float(size)))
        for number, operator, forward_ms, backward_ms, size in _rows(_PIPEDREAM, path)
        if operator != "Input"
    )
    tensors, waiting_ms = [], 0.0
    for number, operator, _, backward_ms, size in reversed(nodes):
        waiting_ms += backward_ms
        if size:
            tensors.append((f"{number}.{operator.partition('(')[0]}", size, waiting_ms / 1e3))
            waiting_ms = 0.0
    names, sizes_bytes, backward_s = zip(*tensors, strict=True)
    return Trace(
        names=names,
        sizes_bytes=sizes_bytes,
        backward_s=backward_s,
        forward_s=sum(node[2] for node in nodes) / 1e3,
    )


def read_allreduce(path: Path) -> list[tuple[int, float]]:
    """Read (bytes, seconds) from a log of OSU's all-reduce test, in rows `[ranks,]bytes µs`."""
    return [(int(size), float(us) / 1e6) for size, us in _rows(_ALLREDUCE, path)]


def _rows(pattern: re.Pattern[str], path: Path) -> Iterable[tuple[str, ...]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [match.groups() for line in lines if (match := pattern.search(line.strip()))]
    if not rows:
        raise UserError(f"{path} has no row of the kind that was expected; check the file.")
    return rows
