"""Readers of traces that others have published, in their own formats."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from skindx.core.cost.profile import (
    MOST_BYTES,
    MOST_S,
    MOST_TENSORS,
    Profile,
    Profiles,
    Trace,
    parse_profiles,
    read_trace_file,
)
from skindx.core.errors import UserError

_NUMBER = r"([^,\s\]]{1,40})"
_BCAFFE = re.compile(rf"\[(\d{{1,9}}), (\d{{1,15}}), {_NUMBER}, [^\]]+\]$")
_PIPEDREAM = re.compile(
    r"node(\d{1,9}) -- (.+) -- forward_compute_time=(\S{1,40}), backward_compute_time=(\S{1,40}), "
    r"activation_size=(\S{1,40}), parameter_size=(\S{1,40})$"
)
_OUTPUTS = re.compile(r"^(?:Linear\(in_features=\d+, out_features=|Conv2d\(\d+, )(\d{1,9})\b")
_EDGE = re.compile(r"node(\d{1,9}) -- node(\d{1,9})$")
_ALLREDUCE = re.compile(r"(?:\d{1,9},)?(\d{1,15})\s+([\d.]{1,40})$")
_LONGEST_LINE = 2000
"""Characters; patterns are looked for at each place of a line."""

_CLASSES = 1000
_BCAFFE_BATCH = 64
"""Images a rank, as MG-WFBP (arXiv 1811.11141) trains GoogLeNet; the logs do not say."""

OPERATORS = frozenset(
    {
        "Input",
        "Conv2d",
        "ReLU",
        "ReLU6",
        "BatchNorm2d",
        "Linear",
        "Add",
        "Concat",
        "MaxPool2d",
        "AvgPool2d",
        "AdaptiveAvgPool2d",
        "Dropout",
        "Size",
        "View",
        "Mean",
        "Softmax",
        "LogSoftmax",
        "Flatten",
        "Sigmoid",
        "Mul",
        "LSTM",
        "Embedding",
        "EmuBidirLSTM",
        "RecurrentAttention",
        "Classifier",
    }
)
"""Of PipeDream's profiler, as its public graphs have them."""


@dataclass(frozen=True)
class _Node:
    number: int
    operator: str
    outputs: int
    forward_s: float
    backward_s: float
    activation_bytes: int
    parameter_bytes: int
    input_bytes: int = 0


def read_bcaffe(path: Path) -> Trace:
    """Read a log of B-Caffe: rows `[number, floats, backward µs, communication µs, …]`.

    A log holds blocks, of which the first may be an iteration without times: the last is taken.
    Rows stand in forward order. The weight and the bias of a layer both bear the layer's time;
    both are ready at its end. Forward and update are not in it, and count as 0.
    """
    block = _bcaffe_block(path)
    numbers = range(len(block) - 1, -1, -1)
    raw = {
        "names": [f"{number // 2}.{'bias' if number % 2 else 'weight'}" for number in numbers],
        "sizes_bytes": [block[number][0] for number in numbers],
        # Backward meets the bias (odd) first, which takes the time; the weight comes with it.
        "backward_s": [block[number][1] if number % 2 else 0.0 for number in numbers],
    }
    return Trace.parse(raw, origin=str(path), expand=False)


def profile_bcaffe(path: Path) -> Profiles:
    """Read a log of B-Caffe, weight and bias of a layer together; it has no forward times."""
    block = _bcaffe_block(path)
    layers = [
        {
            "name": str(number // 2),
            "forward_s": 0.0,
            "backward_s": block[number][1],
            "shapes": [(size // 4,) for size, _ in reversed(block[number : number + 2])],
            "parameter_bytes": sum(size for size, _ in block[number : number + 2]),
        }
        for number in range(0, len(block), 2)
    ]
    raw = {"name": path.stem, "batch": _BCAFFE_BATCH, "layers": layers}
    profile = Profile.parse(raw, origin=str(path), expand=False)
    return Profiles(source="bcaffe", device="cuda", networks=(profile,))


def _bcaffe_block(path: Path) -> list[tuple[int, float]]:
    block: list[tuple[int, float]] = []
    for number, floats, backward_us in _rows(_BCAFFE, path):
        if int(number) == 0:
            block = []
        if int(number) != len(block):
            raise UserError(
                f"{path}: row {number} stands where {len(block)} should; give a whole log."
            )
        where = f"row {number}"
        size = int(seconds(floats, 0.25, path, where, MOST_BYTES))
        block.append((size, seconds(backward_us, 1e6, path, where)))
        refuse_many(path, len(block))
    return block


def read_pipedream(path: Path) -> Trace:
    """Read a profile of PipeDream: nodes with times in ms, numbered in forward order.

    A node's parameters count as one tensor. `Input` is data loading and is left out. The time of a
    node without parameters counts towards the next tensor.
    """
    tensors, waiting_s = [], 0.0
    nodes = _pipedream_nodes(path)
    for node in reversed(nodes):
        waiting_s += node.backward_s
        if node.parameter_bytes:
            name = f"{node.number}.{node.operator}"
            tensors.append((name, node.parameter_bytes, waiting_s))
            waiting_s = 0.0
    if not tensors:
        raise UserError(f"{path} has no node with parameters; there is nothing to train.")
    names, sizes_bytes, backward_s = zip(*tensors, strict=True)
    raw = {
        "names": names,
        "sizes_bytes": sizes_bytes,
        "backward_s": backward_s,
        "forward_s": sum(node.forward_s for node in nodes),
    }
    return Trace.parse(raw, origin=str(path), expand=False)


def profile_pipedream(path: Path) -> Profiles:
    """Read a profile of PipeDream, node by node; its `Input` is data loading and is left out.

    Its batch follows from the last node, which has a number for each of ImageNet's classes.
    """
    nodes = _pipedream_nodes(path)
    if not nodes:
        raise UserError(f"{path} has no node but Input; there is nothing to train.")
    images = nodes[-1].activation_bytes // (4 * _CLASSES)
    layers = [
        {
            "name": f"{node.number}.{node.operator}",
            "operator": node.operator,
            "forward_s": node.forward_s,
            "backward_s": node.backward_s,
            "parameter_bytes": node.parameter_bytes,
            "activation_bytes": node.activation_bytes,
            "input_bytes": node.input_bytes,
            "outputs": node.outputs,
        }
        for node in nodes
    ]
    name = path.name.removesuffix(".txt").removesuffix(".graph")
    raw = {"name": name, "batch": max(1, images), "layers": layers}
    profile = Profile.parse(raw, origin=str(path), expand=False)
    return Profiles(source="pipedream", device="cuda", networks=(profile,))


def _pipedream_nodes(path: Path) -> list[_Node]:
    """Return the nodes in forward order. Raises UserError for a graph that goes round."""
    nodes = []
    for line in map(str.strip, short_lines(path)):
        if line.startswith("node") and not (_PIPEDREAM.search(line) or _EDGE.search(line)):
            raise UserError(
                f"{path}: {line[:60]!r} lacks a time or a size; a node has forward_compute_time, "
                "backward_compute_time, activation_size and parameter_size."
            )
    for number, words, forward_ms, backward_ms, activation, size in _rows(_PIPEDREAM, path):
        operator, where = words.partition("(")[0], f"node{number}"
        if operator not in OPERATORS:
            raise UserError(
                f"{path}: {where} is a {operator[:60]!r}, an unknown operator; known are "
                f"{', '.join(sorted(OPERATORS))}."
            )
        nodes.append(
            _Node(
                int(number),
                operator,
                _outputs(words),
                seconds(forward_ms, 1e3, path, where),
                seconds(backward_ms, 1e3, path, where),
                int(seconds(activation, 1, path, where, MOST_BYTES)),
                int(seconds(size, 1, path, where, MOST_BYTES)),
            )
        )
        refuse_many(path, len(nodes))
    edges = [(int(first), int(second)) for first, second in _rows(_EDGE, path, needed=False)]
    _refuse_cycles(path, {node.number for node in nodes}, edges)
    made = {node.number: node.activation_bytes for node in nodes}
    taken: dict[int, int] = {}
    for first, second in edges:
        taken[second] = max(taken.get(second, 0), made[first])
    return [
        replace(node, input_bytes=taken.get(node.number, 0))
        for node in sorted(nodes, key=lambda node: node.number)
        if node.operator != "Input"
    ]


def _outputs(words: str) -> int:
    """Return the output features of a linear layer, or channels of a convolution; else 0."""
    result = _OUTPUTS.match(words)
    return int(result[1]) if result else 0


def _refuse_cycles(path: Path, numbers: Collection[int], edges: Sequence[tuple[int, int]]) -> None:
    """Raise UserError where an edge leads to no node, or where edges lead back."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    place = {number: at for at, number in enumerate(sorted(numbers))}
    for first, second in edges:
        if first not in place or second not in place:
            raise UserError(f"{path}: the edge node{first} -- node{second} leads to no node.")
    if not edges:
        return
    begins, ends = ([place[pair[side]] for pair in edges] for side in (0, 1))
    graph = coo_array(([1] * len(edges), (begins, ends)), shape=(len(place), len(place)))
    _, groups = connected_components(graph, directed=True, connection="strong")
    sizes = Counter(groups.tolist())
    round_trip = {first for first, second in edges if first == second}
    round_trip |= {number for number, at in place.items() if sizes[groups[at]] > 1}
    if round_trip:
        raise UserError(
            f"{path}: a cycle leads through node{min(round_trip)}; a network's graph has none."
        )


def read_allreduce(path: Path) -> list[tuple[int, float]]:
    """Read (bytes, seconds) from a log of OSU's all-reduce test, in rows `[ranks,]bytes µs`."""
    return [
        (int(size), seconds(us, 1e6, path, f"the row of {size} bytes"))
        for size, us in _rows(_ALLREDUCE, path)
    ]


def refuse_many(path: Path, count: int) -> None:
    """Raise UserError for more layers than plans are made of."""
    if count > MOST_TENSORS:
        raise UserError(
            f"{path} has more than {MOST_TENSORS} layers, and plans are made of {MOST_TENSORS} at "
            "most; put layers of a block together."
        )


def seconds(text: str, per_second: float, path: Path, where: str, most: float = MOST_S) -> float:
    """Return a time in s, or a size; raises UserError for what is none, or above `most`."""
    try:
        value = float(text) / per_second
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and 0 <= value <= most):
        raise UserError(
            f"{path}: {where} has {text!r} where a time or a size from 0 to "
            f"{most * per_second:.3g} belongs."
        )
    return value


def _rows(
    pattern: re.Pattern[str], path: Path, *, needed: bool = True
) -> Sequence[tuple[str, ...]]:
    lines: Iterable[str] = short_lines(path)
    rows = [match.groups() for line in lines if (match := pattern.search(line.strip()))]
    if not rows and needed:
        raise UserError(f"{path} has no row of the kind that was expected; check the file.")
    return rows


def read_lines(path: Path) -> list[str]:
    """Return a text file's lines. Raises UserError for what is none."""
    try:
        return read_trace_file(path).decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} cannot be read as text ({error}); give a trace.") from None


def short_lines(path: Path) -> list[str]:
    """Return the lines of a log or a graph. Raises UserError where one is too long for these."""
    lines = read_lines(path)
    if (longest := max(map(len, lines), default=0)) > _LONGEST_LINE:
        raise UserError(
            f"{path} has a line of {longest} characters, and lines of a trace have at most "
            f"{_LONGEST_LINE}; give a graph of PipeDream or a log of B-Caffe."
        )
    return lines


def read_profiles(path: Path) -> Profiles:
    """Read a trace of any kind: ours (JSON), a graph of PipeDream, a log of B-Caffe."""
    lines = read_lines(path)
    text = "\n".join(lines)
    if text.lstrip().startswith(("{", "[]")) or path.suffix == ".json":
        return parse_profiles(text, path)
    lines = short_lines(path)
    if any(" -- " in line and "compute_time=" in line for line in lines):
        return profile_pipedream(path)
    if any(_BCAFFE.search(line.strip()) for line in lines):
        return profile_bcaffe(path)
    raise UserError(
        f"{path} is no trace; give what `skindx plan measure` wrote, a graph of PipeDream "
        "(graph.txt) or a log of B-Caffe."
    )
