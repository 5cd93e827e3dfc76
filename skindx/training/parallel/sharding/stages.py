"""Layers placed in stages of a pipeline: what a rank keeps of the network, and computes."""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from skindx.training.config.parallel import ModelSettings
from skindx.training.parallel.mesh import Mesh
from skindx.training.parallel.sharding.communicator import Communicator
from skindx.training.parallel.sharding.cutting import (
    WHAT,
    counts_of,
    first_layer,
    micro_batches_of,
)
from skindx.training.parallel.sharding.gpipe import GPipe
from skindx.training.parallel.sharding.part import PARTS, Part, Placed
from skindx.training.parallel.sharding.pieces import Border, Piece, pieces_of
from skindx.training.parallel.sharding.staged import PIPELINE


class Stage(nn.Module):
    """Some pieces of a network, one after the other."""

    def __init__(self, graph: fx.GraphModule, into: Border, *, again: bool) -> None:
        """Compute activations `again` in the backward pass instead of keeping them."""
        super().__init__()
        self.graph, self._into, self._again = graph, into, again

    def forward(self, x: Tensor) -> Tensor:
        """Return what the next stage gets, in rows: its memory is laid out as it travels."""
        if self._into.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        y: Tensor = checkpoint(self.graph, x, use_reentrant=False) if self._again else self.graph(x)
        return y.contiguous()


def place_stages(
    net: nn.Module, mesh: Mesh, image: Tensor, batch: int, say: Callable[[str], None]
) -> None:
    """Let this rank keep its stage of a network alone, in place; names stay the same.

    Every rank calls this, with equal networks. Raises UserError.
    """
    parallel, engine = mesh.settings.parallel, mesh.settings
    assert isinstance(parallel, ModelSettings)
    wires, half = Communicator(mesh.tensor), engine.precision == "bf16"
    found = pieces_of(net, image, half=half)
    counts = counts_of(found, parallel)
    images = batch // (mesh.data.size // wires.size)
    micro = micro_batches_of(parallel, images)
    starts = [0, *accumulate(counts)]
    stages = [list(found.pieces[begin:end]) for begin, end in pairwise(starts)]
    own = stages[wires.rank]
    into = _border(stages[wires.rank - 1]) if wires.rank else found.images
    nodes = [node for piece in own for node in piece.nodes]
    graph = fx.GraphModule(found.root, _part_of(found.graph, nodes))
    norms = [layer for layer in net.modules() if isinstance(layer, _BatchNorm)]
    before = _numbers(net)
    owners = _owners(net, stages)
    replicated = mesh.replicas is not None and len(mesh.replicas) > 1
    _keep_own(net, owners, wires, replicated=replicated)
    pipeline = GPipe(
        Stage(graph, into, again=engine.activation_checkpointing),
        wires,
        into,
        _border(own),
        _border(stages[-1]),
        micro_batches=micro,
        owners={name: owners[id(buffer)] for name, buffer in net.named_buffers()},
        device=mesh.device,
        half=half,
    )
    pipeline.watch(net)
    setattr(net, PIPELINE, pipeline)
    names = ", ".join(first_layer(stage) for stage in stages[1:])
    say(
        f"{WHAT}: {wires.size} stages, of which all but the first begin at {names}; this rank "
        f"holds {_numbers(net) / 1e6:.1f} of {before / 1e6:.1f} million weights, and "
        f"{micro} micro-batches go through"
    )
    if any(norm.training for norm in norms):
        say(f"{WHAT}: batch norm normalises by about {images // micro} images of a micro-batch")


def _border(stage: Sequence[Piece]) -> Border:
    border = stage[-1].onward
    assert border is not None
    return border


def _part_of(graph: fx.Graph, nodes: Sequence[fx.Node]) -> fx.Graph:
    """Return the graph of some nodes that follow each other: one tensor in, one out."""
    inside, made = set(nodes), fx.Graph()
    x, copies = made.placeholder("x"), dict[fx.Node, fx.Node]()

    def copied(node: fx.Node) -> fx.Node:
        if node in copies:
            return copies[node]
        assert node not in inside
        # What no piece computes is the network's own, or what comes from the stage before.
        return made.node_copy(node) if node.op == "get_attr" else x

    for node in nodes:
        copies[node] = made.node_copy(node, copied)
    (given,) = (node for node in nodes if any(user not in inside for user in node.users))
    made.output(copies[given])
    return made


def _owners(net: nn.Module, stages: Sequence[Sequence[Piece]]) -> dict[int, int]:
    """Return the rank of each weight and statistic; what no stage uses is the first one's."""
    owners: dict[int, int] = {}
    for value in (*net.parameters(), *net.buffers()):
        owners[id(value)] = 0
    for rank, stage in enumerate(stages):
        for piece in stage:
            owners.update(dict.fromkeys(piece.weights, rank))
    return owners


def _keep_own(
    net: nn.Module, owners: dict[int, int], wires: Communicator, *, replicated: bool
) -> None:
    """Leave nothing of the weights of other stages; one that is used twice stays one."""
    emptied: dict[int, nn.Parameter] = {}
    for layer in net.modules():
        parts: dict[str, Part] = {}
        for name, weight in list(layer.named_parameters(recurse=False)):
            owner = owners[id(weight)]
            parts[name] = Placed.on(owner, wires, weight.shape, replicated=replicated)
            if owner == wires.rank:
                continue
            if id(weight) not in emptied:
                nothing: Any = weight.detach()[:0].clone()
                emptied[id(weight)] = nn.Parameter(nothing, weight.requires_grad)
            setattr(layer, name, emptied[id(weight)])
        if parts:
            setattr(layer, PARTS, parts)


def _numbers(net: nn.Module) -> int:
    return sum(weight.numel() for weight in net.parameters())
