"""The pieces of a network between which a single tensor goes on, and its cuts into stages."""

from collections.abc import Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Size, Tensor, fx, nn
from torch.utils.flop_counter import FlopCounterMode

from skindx.core.cost.assignment import cut
from skindx.core.errors import UserError
from skindx.training.forms.pipeline import PIPELINED, ModelSettings, micro_batches_of

_UNTRACEABLE = (
    *(fx.proxy.TraceError, ArithmeticError, AssertionError, AttributeError, LookupError),
    *(NameError, RuntimeError, TypeError, ValueError),
)
"""What code raises that decides by the values or the number of its inputs."""


class _LayerTracer(fx.Tracer):
    """Keeps layers of torch and timm whole, and what cannot be followed."""

    def __init__(self, opaque: set[type[nn.Module]]) -> None:
        super().__init__()
        self._opaque = opaque
        self.failed: nn.Module | None = None
        """The innermost module whose code could not be followed."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Tell whether a module is a layer."""
        of_timm = type(m).__module__.startswith("timm.layers")
        whole = of_timm or type(m) in self._opaque
        return whole or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Follow a module's code, or take it for a layer."""
        try:
            return super().call_module(m, forward, args, kwargs)
        except _UNTRACEABLE:
            self.failed = self.failed or m
            raise


class Traced(NamedTuple):
    """The layers of a network in training mode."""

    graph: fx.Graph
    root: nn.Module
    """Has the same layers, and what the code has made of constants."""


def trace_layers(net: nn.Module) -> Traced | None:
    """Return the layers of a network as a graph; None: its code hides them."""
    opaque: set[type[nn.Module]] = set()
    modes = {layer: layer.training for layer in net.modules()}
    net.train()  # what is decided by the mode alone is decided now
    try:
        while True:
            tracer, root = _LayerTracer(opaque), _of_one_input(net)
            try:
                return Traced(tracer.trace(root), root)
            except _UNTRACEABLE:
                if tracer.failed is None or type(tracer.failed) in opaque:
                    return None
                opaque.add(type(tracer.failed))
    finally:
        for layer, mode in modes.items():
            layer.training = mode


def _of_one_input(net: nn.Module) -> nn.Module:
    """Return the same layers under a forward that takes nothing but images."""
    base: Any = type(net)

    def forward(self: nn.Module, images: Any) -> Any:
        return base.forward(self, images)

    one = copy(net)
    one.__class__ = type(base.__name__, (base,), {"forward": forward})
    return one


_IMAGES = 2


@dataclass(frozen=True)
class Border:
    """Values that pass from one piece to the next."""

    shape: Size
    """Of one image's part."""
    dtype: torch.dtype
    learns: bool
    """A gradient goes back."""
    channels_last: bool

    def empty(self, images: int, device: torch.device | str = "meta") -> Tensor:
        """Return a tensor like what goes on of so many images."""
        shape = (images, *self.shape)
        return torch.empty(shape, dtype=self.dtype, device=device, requires_grad=self.learns)


@dataclass
class Piece:
    """Some layers that only make sense together."""

    nodes: list[fx.Node] = field(default_factory=list)
    operations: int = 0
    """Of an image, forward: those of products and convolutions, and a value each of the others."""
    onward: Border | None = None
    """Values for the next piece, or the network's output."""
    weights: set[int] = field(default_factory=set)
    """Identities of its parameters and buffers."""

    @property
    def layers(self) -> list[str]:
        """Names of what it calls."""
        return [str(node.target) for node in self.nodes if node.op == "call_module"]


@dataclass(frozen=True)
class Pieces:
    """All pieces of a network, in the order in which an image passes them."""

    graph: fx.Graph
    root: nn.Module
    """Namespace of the graph's names."""
    pieces: tuple[Piece, ...]
    images: Border
    """Inputs of the first one."""


def pieces_of(net: nn.Module, image: Tensor, *, half: bool = False) -> Pieces:
    """Return the pieces of a network that an image, 1 x …, passes; `half`: in bf16.

    A piece begins at a layer with weights. Raises UserError where the network's code hides its
    layers, or where it has a weight that is a number alone.
    """
    for name, weight in net.named_parameters():
        if not weight.ndim:
            raise UserError(
                f"engine.parallel.kind=model: {name} is a single number, which no stage can hold "
                "for the others; choose another model, or leave engine.parallel out."
            )
    traced = trace_layers(net)
    if traced is None:
        raise UserError(
            "engine.parallel.kind=model: the layers of this network cannot be separated; choose "
            "another model, or leave engine.parallel out."
        )
    graph, root = traced
    result = _measured(root, graph, image, half)
    nodes = [node for node in graph.nodes if node.op in _COMPUTING]
    pieces = tuple(_cut(root, graph, nodes, result))
    return Pieces(graph, root, pieces, _border(result[_first(graph)]))


_COMPUTING = ("call_module", "call_function", "call_method")


@dataclass(frozen=True)
class _Value:
    """Values of a node."""

    tensor: Tensor | None
    """Without its values."""
    operations: int


class _Measure(fx.Interpreter):
    """Keeps the shapes of all values, and counts operations."""

    def __init__(self, net: nn.Module, graph: fx.Graph, counter: FlopCounterMode) -> None:
        super().__init__(net, graph=graph)
        self._counter = counter
        self.value_of: dict[fx.Node, _Value] = {}

    def run_node(self, n: fx.Node) -> Any:
        before = self._counter.get_total_flops()
        value = super().run_node(n)
        operations, kept = self._counter.get_total_flops() - before, None
        if isinstance(value, Tensor):
            operations += value.numel()
            kept = value.detach().to("meta").requires_grad_(value.requires_grad)
        self.value_of[n] = _Value(kept, operations // _IMAGES)
        return value


def _measured(net: nn.Module, graph: fx.Graph, image: Tensor, half: bool) -> dict[fx.Node, _Value]:
    """Let two images pass the graph once; nothing of the network changes."""
    modes = {layer: layer.training for layer in net.modules()}
    kind = image.device.type
    counter = FlopCounterMode(display=False)
    try:
        net.eval()
        with torch.random.fork_rng([]), counter:
            cast = torch.autocast(kind, torch.bfloat16) if half and kind != "meta" else None
            with cast or nullcontext():
                measure = _Measure(net, graph, counter)
                measure.run(torch.cat([image] * _IMAGES))
    finally:
        for layer, mode in modes.items():
            layer.training = mode
    return measure.value_of


def _first(graph: fx.Graph) -> fx.Node:
    first: fx.Node = next(node for node in graph.nodes if node.op == "placeholder")
    return first


def _border(value: _Value) -> Border:
    tensor = value.tensor
    assert tensor is not None
    last = tensor.ndim == 4 and not tensor.is_contiguous()
    last = last and tensor.is_contiguous(memory_format=torch.channels_last)
    return Border(tensor.shape[1:], tensor.dtype, tensor.requires_grad, last)


def _cut(
    net: nn.Module, graph: fx.Graph, nodes: Sequence[fx.Node], value_of: dict[fx.Node, _Value]
) -> list[Piece]:
    place = {node: number for number, node in enumerate(nodes)}
    end = len(nodes)
    last_use = {
        node: max((place.get(user, end) for user in node.users), default=-1) for node in graph.nodes
    }
    last_of_weight: dict[int, int] = {}
    for number, node in enumerate(nodes):
        last_of_weight.update(dict.fromkeys(_weights(net, node), number))
    pieces, open_until = [Piece()], -1
    live = [_first(graph)]
    for number, node in enumerate(nodes):
        used = _weights(net, node)
        live = [other for other in live if last_use[other] >= number]
        if pieces[-1].weights and used and open_until < number and _is_border(live, value_of):
            pieces[-1].onward = _border(value_of[live[0]])
            pieces.append(Piece())
        piece = pieces[-1]
        piece.nodes.append(node)
        piece.operations += value_of[node].operations
        piece.weights |= used
        open_until = max(open_until, *(last_of_weight[weight] for weight in used), -1)
        live.append(node)
    (output,) = (node for node in graph.nodes if node.op == "output")
    pieces[-1].onward = _border(value_of[output])
    return pieces


def _is_border(live: Sequence[fx.Node], value_of: dict[fx.Node, _Value]) -> bool:
    """Tell whether a single tensor, of a part for each image, is all that goes on."""
    if len(live) != 1:
        return False
    tensor = value_of[live[0]].tensor
    if tensor is None or not tensor.is_floating_point() or not tensor.ndim:
        return False
    return len(tensor) == _IMAGES


def _weights(net: nn.Module, node: fx.Node) -> set[int]:
    """Return the identities of what a node uses of the network's parameters and statistics."""
    result: set[int] = set()
    if node.op == "call_module":
        layer = net.get_submodule(str(node.target))
        result |= {id(weight) for weight in layer.parameters()}
        result |= {id(buffer) for buffer in layer.buffers()}
    for used in node.all_input_nodes:
        if used.op == "get_attr":
            value: Any = net
            for part in str(used.target).split("."):
                value = getattr(value, part)
            if isinstance(value, nn.Parameter):
                result.add(id(value))
    return result


def check_stages(net: nn.Module, image: Tensor, parallel: ModelSettings, images: int) -> None:
    """Raise UserError for a network that cannot be placed so, with `images` in a pipeline."""
    counts_of(pieces_of(net, image), parallel)
    micro_batches_of(parallel, images)


def counts_of(divided: Pieces, parallel: ModelSettings) -> list[int]:
    """Return how many pieces each stage has. Raises UserError for more stages than pieces."""
    count, pieces = parallel.stages, divided.pieces
    if count > len(pieces):
        raise UserError(
            f"{PIPELINED}: this network has {len(pieces)} pieces with a single tensor between two "
            f"of them, which are too few for {count} stages; lower engine.parallel.stages, or "
            "choose another model."
        )
    if not parallel.starts:
        return cut([piece.operations for piece in pieces], count)
    begins = [0, *(_place_of(name, pieces) for name in parallel.starts), len(pieces)]
    counts = [end - begin for begin, end in pairwise(begins)]
    if min(counts) < 1:
        raise UserError(
            f"{PIPELINED}: starts={', '.join(parallel.starts)} are not one piece of the network "
            "after the other, or two are in the same piece; name layers further apart, in their "
            "order."
        )
    return counts


def _place_of(name: str, pieces: Sequence[Piece]) -> int:
    """Return the piece that has a layer: by its name, or by that of a block that it begins."""
    for number, piece in enumerate(pieces):
        for layer in piece.layers:
            if f"{name}.".startswith(f"{layer}.") or f"{layer}.".startswith(f"{name}."):
                return number
    raise UserError(
        f"{PIPELINED}: starts names {name}, which is no layer of this network; the stages can "
        f"begin at {', '.join(first_layer([piece]) for piece in pieces[1:])}."
    )


def first_layer(stage: Sequence[Piece]) -> str:
    """Return the name of the layer that a stage begins at."""
    return next((layer for piece in stage for layer in piece.layers), "an operation")
