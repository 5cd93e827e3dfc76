"""The compared networks as lists of operations, which every framework carries out alike.

Standard library alone: the environments of other frameworks have none of ours.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

Kind = Literal[
    "conv", "norm", "relu", "relu6", "max_pool", "mean", "linear", "flatten", "add", "concat"
]
IMAGE = "image"
"""Name of the input: images B x 3 x S x S."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operation; `name` is its output, and what its weights are called."""

    name: str
    kind: Kind
    inputs: tuple[str, ...]
    into: int
    """Channels, or features, that go in."""
    out: int
    kernel: int = 1
    stride: int = 1
    padding: int = 0
    groups: int = 1
    bias: bool = False
    epsilon: float = 1e-5
    """Of a norm: by the mean and variance of its own rank's batch, without running averages."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Its weights by name, in PyTorch's layout."""
        if self.kind == "conv":
            shape: tuple[int, ...] = (self.into // self.groups, self.kernel, self.kernel)
        elif self.kind == "linear":
            shape = (self.into,)
        elif self.kind == "norm":
            shape = ()
        else:
            return {}
        found: dict[str, tuple[int, ...]] = {f"{self.name}.weight": (self.out, *shape)}
        if self.bias or self.kind == "norm":
            found[f"{self.name}.bias"] = (self.out,)
        return found


Graph = tuple[Node, ...]
Value = TypeVar("Value")
"""An array of some framework."""


def carry_out(graph: Graph, image: Value, apply: Callable[[Node, list[Value]], Value]) -> Value:
    """Return the last node's output; `apply` computes a node from its inputs."""
    values = {IMAGE: image}
    found = image
    for node in graph:
        found = values[node.name] = apply(node, [values[name] for name in node.inputs])
    return found


Shapes = list[list[tuple[int, ...]]]
"""Of each tensor, layer by layer."""


def layers(graph: Graph) -> Shapes:
    """Return the shapes of all weights."""
    return [list(node.shapes.values()) for node in graph if node.shapes]


def parameters(graph: Graph) -> int:
    """Return the number of weights."""
    return sum(math.prod(shape) for layer in layers(graph) for shape in layer)


class _Builder:
    """Adds operations one after the other; each goes on from the last one's output."""

    def __init__(self, side: int, shrink: int) -> None:
        self.nodes: list[Node] = []
        self.last, self._shrink = IMAGE, shrink
        self._shapes = {IMAGE: (3, side)}  # channels and side; 0: a vector

    def wide(self, channels: int) -> int:
        """Return a number of channels, divided for tests."""
        return max(4, channels // self._shrink)

    def _add(self, kind: Kind, inputs: tuple[str, ...], out: int, side: int, **more: int) -> str:
        if side < 0 or (side == 0 and kind in ("conv", "max_pool")):
            raise ValueError("the images are too small for this network")
        name = f"{kind}{len(self.nodes)}"
        into = self._shapes[inputs[0]][0]
        self.nodes.append(Node(name, kind, inputs, into, out, **more))  # type: ignore[arg-type]
        self._shapes[name] = out, side
        self.last = name
        return name

    def _window(self, kernel: int, stride: int, padding: int) -> int:
        return (self._shapes[self.last][1] + 2 * padding - kernel) // stride + 1

    def conv(
        self, out: int, kernel: int, stride: int = 1, *, groups: int = 1, bias: bool = False
    ) -> str:
        """A convolution that keeps the side, but for its stride and for kernels above 7."""
        padding = 2 if kernel > 7 else kernel // 2
        side = self._window(kernel, stride, padding)
        more = {"kernel": kernel, "stride": stride, "padding": padding, "groups": groups}
        return self._add("conv", (self.last,), out, side, **more, bias=bias)

    def unit(
        self,
        out: int,
        kernel: int,
        stride: int = 1,
        *,
        groups: int = 1,
        act: Literal["relu", "relu6", ""] = "relu",
    ) -> str:
        """A convolution, its norm, and an activation unless it is empty."""
        self.conv(out, kernel, stride, groups=groups)
        self._add("norm", (self.last,), out, self._shapes[self.last][1])
        return self.activate(act) if act else self.last

    def activate(self, kind: Literal["relu", "relu6"]) -> str:
        return self._add(kind, (self.last,), *self._shapes[self.last])

    def max_pool(self, kernel: int, stride: int, padding: int = 0) -> str:
        side = self._window(kernel, stride, padding)
        more = {"kernel": kernel, "stride": stride, "padding": padding}
        return self._add("max_pool", (self.last,), self._shapes[self.last][0], side, **more)

    def add(self, other: str) -> str:
        return self._add("add", (self.last, other), *self._shapes[self.last])

    def concat(self, inputs: tuple[str, ...]) -> str:
        channels = sum(self._shapes[name][0] for name in inputs)
        return self._add("concat", inputs, channels, self._shapes[inputs[0]][1])

    def mean(self) -> str:
        """The mean of each channel over the map."""
        return self._add("mean", (self.last,), self._shapes[self.last][0], 0)

    def flatten(self) -> str:
        channels, side = self._shapes[self.last]
        return self._add("flatten", (self.last,), channels * side * side, 0)

    def linear(self, out: int) -> str:
        return self._add("linear", (self.last,), out, 0, bias=True)

    @property
    def channels(self) -> int:
        return self._shapes[self.last][0]


def _alexnet(net: _Builder, classes: int) -> None:
    """Krizhevsky 2014 (arXiv 1404.5997, section 5), without dropout; its last map as it comes."""
    for number, (out, kernel) in enumerate(((64, 11), (192, 5), (384, 3), (256, 3), (256, 3))):
        net.conv(net.wide(out), kernel, 4 if number == 0 else 1, bias=True)
        net.activate("relu")
        if number in (0, 1, 4):
            net.max_pool(3, 2)
    net.flatten()
    for _ in range(2):
        net.linear(net.wide(4096))
        net.activate("relu")
    net.linear(classes)


_INCEPTIONS: tuple[tuple[int, ...] | None, ...] = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    None,
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    None,
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)
"""Channels: 1x1; 3x3 and what goes into it; 5x5 and what goes into it; pooled. None: a pooling."""


def _googlenet(net: _Builder, classes: int) -> None:
    """Szegedy et al. 2014 (arXiv 1409.4842), table 1, with norms, without its side outputs."""
    net.unit(net.wide(64), 7, 2)
    net.max_pool(3, 2, 1)
    net.unit(net.wide(64), 1)
    net.unit(net.wide(192), 3)
    net.max_pool(3, 2, 1)
    for block in _INCEPTIONS:
        if block is None:
            net.max_pool(3, 2, 1)
            continue
        one, into3, three, into5, five, pooled = map(net.wide, block)
        start, ends = net.last, [net.unit(one, 1)]
        for into, out, kernel in ((into3, three, 3), (into5, five, 5)):
            net.last = start
            net.unit(into, 1)
            ends.append(net.unit(out, kernel))
        net.last = start
        net.max_pool(3, 1, 1)
        ends.append(net.unit(pooled, 1))
        net.concat(tuple(ends))
    net.mean()
    net.linear(classes)


def _resnet50(net: _Builder, classes: int) -> None:
    """He et al. 2015 (arXiv 1512.03385), with the stride in the 3x3 convolution."""
    net.unit(net.wide(64), 7, 2)
    net.max_pool(3, 2, 1)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner, outer = net.wide(64 << stage), 4 * net.wide(64 << stage)
        for block in range(blocks):
            stride = 2 if block == 0 and stage else 1
            start = net.last
            net.unit(inner, 1)
            net.unit(inner, 3, stride)
            end = net.unit(outer, 1, act="")
            if block == 0:
                net.last = start
                start = net.unit(outer, 1, stride, act="")
            net.last = end
            net.add(start)
            net.activate("relu")
    net.mean()
    net.linear(classes)


_BOTTLENECKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, channels, blocks, stride of the first."""


def _mobilenetv2(net: _Builder, classes: int) -> None:
    """Sandler et al. 2018 (arXiv 1801.04381), table 2, without dropout."""
    net.unit(net.wide(32), 3, 2, act="relu6")
    for expansion, channels, blocks, first in _BOTTLENECKS:
        for block in range(blocks):
            stride, start, into = first if block == 0 else 1, net.last, net.channels
            if expansion > 1:
                net.unit(expansion * into, 1, act="relu6")
            net.unit(expansion * into, 3, stride, groups=expansion * into, act="relu6")
            net.unit(net.wide(channels), 1, act="")
            if block:
                net.add(start)
    net.unit(net.wide(1280), 1, act="relu6")
    net.mean()
    net.linear(classes)


NETWORKS: dict[str, Callable[[_Builder, int], None]] = {
    "alexnet": _alexnet,
    "googlenet": _googlenet,
    "resnet50": _resnet50,
    "mobilenetv2": _mobilenetv2,
}


def network(name: str, side: int, classes: int, shrink: int = 1) -> Graph:
    """Return a network for square images; `shrink` divides its widths, for tests.

    Raises ValueError for images that are too small for it.
    """
    net = _Builder(side, shrink)
    NETWORKS[name](net, classes)
    return tuple(net.nodes)
