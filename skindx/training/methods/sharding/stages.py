"""A pipeline of micro-batches through stages of a network, a rank each, in GPipe's order.

GPipe (Huang et al. 2019, arXiv 1811.06965, section 2): all micro-batches go forward through all
stages, then all go backward; the weights move once a step. A stage on one micro-batch is torch's
`PipelineStage`; the order is ours, since between forward and backward every rank computes the loss
of its own images: these go to the first stage, and what the network gives comes back from the last.

With B images in a pipeline, a step sends B a values from a stage to the next one and as many back,
where a is what an image's part of the border is.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate, pairwise
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, fx, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._utils import InferenceMode
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from skindx.training.forms.pipeline import PIPELINED, ModelSettings, micro_batches_of
from skindx.training.methods.sharding.communicator import Communicator, Sizes
from skindx.training.methods.sharding.parts import PARTS, Part, Placed
from skindx.training.methods.sharding.pieces import (
    Border,
    Piece,
    counts_of,
    first_layer,
    pieces_of,
)
from skindx.training.methods.sharding.whole import PIPELINE
from skindx.training.parallel.mesh import Mesh, sizes_of

# b = images of this rank, B = those of all ranks of the pipeline


class GPipe:
    """This rank's stage, and the ranks before and behind it."""

    def __init__(
        self,
        stage: nn.Module,
        links: Communicator,
        into: Border,
        out: Border,
        last: Border,
        *,
        micro_batches: int,
        owners: Mapping[str, int],
        device: torch.device,
        half: bool = False,
    ) -> None:
        """Run `stage`, from `into` to `out`; the network gives `last`.

        `owners` says which rank computes each of the network's statistics.
        """
        self.links, self.owners, self.out = links, owners, out
        self.micro_batches = micro_batches
        self._module, self._into, self._last = stage, into, last
        self._device, self._half = device, half
        self._stages: dict[int, PipelineStage] = {}
        self._trained: list[nn.Parameter] = []
        self._sizes: Sizes = ()
        self._rows: Sizes = ()
        self._given: list[Tensor] = []
        self._outputs: Tensor | None = None

    def __deepcopy__(self, memo: object) -> Self:
        """A copied network stands beside the same stage."""
        return self

    def watch(self, net: nn.Module) -> None:
        """Let no trained weight of a network be without a gradient after a step."""
        self._trained = [weight for weight in net.parameters() if weight.requires_grad]

    @property
    def _is_last(self) -> bool:
        return self.links.rank == self.links.size - 1

    def forward(self, images_b: Tensor) -> Tensor:
        """Return what the network gives for this rank's images; all ranks call this."""
        self.discard()
        self._rows = self.links.rows
        every = sum(self._rows)
        self._sizes = sizes_of(every, min(self.micro_batches, every))
        inputs = self._to_first(images_b)
        works: list[tuple[PipelineStage, int, list[dist.Work]]] = []
        with self._precision():
            for number, size in enumerate(self._sizes):
                stage = self._stage(size)
                self.links.wait(self._start(stage.get_fwd_recv_ops(number)))
                given = stage.forward_one_chunk(number, inputs[number], save_forward_output=False)
                if self._is_last:
                    self._given.append(given)
                works.append((stage, number, self._start(stage.get_fwd_send_ops(number))))
        for stage, number, sent in works:
            self.links.wait(sent)
            stage.release_fwd_send_outputs(number)
        self._outputs = self._from_last().requires_grad_()
        return self._outputs

    def backward(self, before_last: Callable[[], None] = lambda: None) -> None:
        """Go back from the gradient of what `forward` returned; all ranks call this.

        `before_last` is called before the last micro-batch makes this rank's gradients whole.
        """
        assert self._outputs is not None
        assert self._outputs.grad is not None
        # The mean over the ranks counts a stage's gradient once, of all ranks' images.
        gradients = self._to_last(self._outputs.grad / self.links.size)
        sent: list[dist.Work] = []
        for number, size in enumerate(self._sizes):
            stage = self._stage(size)
            if number == len(self._sizes) - 1:
                before_last()
            self.links.wait(self._start(stage.get_bwd_recv_ops(number)))
            if not self.out.learns:
                continue
            # torch wants a loss: this one has just the gradient that came.
            loss = (self._given[number] * gradients[number]).sum() if self._is_last else None
            stage.backward_one_chunk(number, loss=loss)
            sent += self._start(stage.get_bwd_send_ops(number))
        self.links.wait(sent)
        self.discard()
        for weight in self._trained:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)

    def discard(self) -> None:
        """Forget the micro-batches that are under way."""
        for stage in self._stages.values():
            stage.clear_runtime_states()
        self._given, self._outputs = [], None

    def _stage(self, images: int) -> PipelineStage:
        """Return the stage for micro-batches of so many images, of which there are two kinds."""
        if images not in self._stages:
            stage = PipelineStage(
                self._module,
                self.links.rank,
                self.links.size,
                self._device,
                input_args=self._into.empty(images),
                output_args=self.out.empty(images),
                group=self.links.group,
            )
            # As its own schedules do where all shapes are given.
            stage.has_backward = True
            stage._inference_mode = InferenceMode.STATIC
            stage._prepare_forward_infra(self.micro_batches, None, has_backward=True)
            stage._prepare_backward_infra(self.micro_batches)
            self._stages[images] = stage
        return self._stages[images]

    def _start(self, operations: list[dist.P2POp]) -> list[dist.Work]:
        self.links.bytes_sent += sum(
            operation.tensor.nbytes for operation in operations if operation.op is dist.isend
        )
        return list(dist.batch_isend_irecv(operations)) if operations else []

    def _precision(self) -> AbstractContextManager[Any]:
        if not self._half:
            return nullcontext()
        return torch.autocast(self._device.type, torch.bfloat16)

    def _to_first(self, images_b: Tensor) -> Sequence[tuple[Tensor, ...]]:
        """Return the micro-batches on the first stage; the others have nothing to begin with."""
        images = self._collected(images_b, 0)
        if images is None:
            return [()] * len(self._sizes)
        return [(part,) for part in torch.split(images, list(self._sizes))]

    def _to_last(self, gradient_b: Tensor) -> Sequence[Tensor]:
        gradient = self._collected(gradient_b, self.links.size - 1)
        return [] if gradient is None else torch.split(gradient, list(self._sizes))

    def _collected(self, rows_b: Tensor, at: int) -> Tensor | None:
        """Return the rows of all ranks on the rank `at`, and None on the others."""
        rows_b = rows_b.contiguous()
        if self.links.rank != at:
            self.links.wait([self.links.send(rows_b, at)])
            return None
        result = rows_b.new_empty(sum(self._rows), *rows_b.shape[1:])
        works = []
        for rank, part in enumerate(torch.split(result, list(self._rows))):
            if rank == at:
                part.copy_(rows_b)
            else:
                works.append(self.links.receive(part, rank))
        self.links.wait(works)
        return result

    def _from_last(self) -> Tensor:
        """Return this rank's rows of what the last stage gives."""
        links = self.links
        if not self._is_last:
            rows_b = self._last.empty(self._rows[links.rank], self._device).detach()
            links.wait([links.receive(rows_b, links.size - 1)])
            return rows_b
        parts = torch.split(torch.cat([given.detach() for given in self._given]), list(self._rows))
        self.links.wait([links.send(part, rank) for rank, part in enumerate(parts[:-1])])
        return parts[-1].clone()


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
    links, half = Communicator(mesh.tensor), engine.precision == "bf16"
    result = pieces_of(net, image, half=half)
    counts = counts_of(result, parallel)
    images = batch // (mesh.data.size // links.size)
    micro = micro_batches_of(parallel, images)
    starts = [0, *accumulate(counts)]
    stages = [list(result.pieces[begin:end]) for begin, end in pairwise(starts)]
    local_pieces = stages[links.rank]
    into = _border(stages[links.rank - 1]) if links.rank else result.images
    nodes = [node for piece in local_pieces for node in piece.nodes]
    graph = fx.GraphModule(result.root, _part_of(result.graph, nodes))
    norms = [layer for layer in net.modules() if isinstance(layer, _BatchNorm)]
    before = _numbers(net)
    owners = _owners(net, stages)
    replicated = mesh.replicas is not None and len(mesh.replicas) > 1
    _keep_local(net, owners, links, replicated=replicated)
    pipeline = GPipe(
        Stage(graph, into, again=engine.activation_checkpointing),
        links,
        into,
        _border(local_pieces),
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
        f"{PIPELINED}: {links.size} stages, of which all but the first begin at {names}; this rank "
        f"holds {_numbers(net) / 1e6:.1f} of {before / 1e6:.1f} million weights, and "
        f"{micro} micro-batches go through"
    )
    if any(norm.training for norm in norms):
        say(
            f"{PIPELINED}: batch norm normalises by about {images // micro} images of a micro-batch"
        )


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


def _keep_local(
    net: nn.Module, owners: dict[int, int], links: Communicator, *, replicated: bool
) -> None:
    """Leave nothing of the weights of other stages; one that is used twice stays one."""
    emptied: dict[int, nn.Parameter] = {}
    for layer in net.modules():
        parts: dict[str, Part] = {}
        for name, weight in list(layer.named_parameters(recurse=False)):
            owner = owners[id(weight)]
            parts[name] = Placed.on(owner, links, weight.shape, replicated=replicated)
            if owner == links.rank:
                continue
            if id(weight) not in emptied:
                nothing: Any = weight.detach()[:0].clone()
                emptied[id(weight)] = nn.Parameter(nothing, weight.requires_grad)
            setattr(layer, name, emptied[id(weight)])
        if parts:
            setattr(layer, PARTS, parts)


def _numbers(net: nn.Module) -> int:
    return sum(weight.numel() for weight in net.parameters())
