"""The part of a weight that a rank holds, the whole weight, and the exchange of its gradient."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from typing import Self

import torch
from torch import Size, Tensor, nn

from skindx.comm.exchange import Exchange, Reducer
from skindx.comm.exchange_kinds import build_exchange
from skindx.comm.exchange_settings import ExchangeSettings
from skindx.comm.fabric import Fabric, GradientBuffer
from skindx.comm.fused import FusedSettings
from skindx.comm.fused_exchange import Fused
from skindx.training.gradient_sync import GradientSync
from skindx.training.methods.sharding.communicator import Communicator
from skindx.training.parallel.mesh import Mesh, sizes_of

PARTS = "parts"
"""What a split layer calls its parts: names of its weights -> `Part`."""

Span = tuple[int, int]
"""From, and to without."""


@dataclass(frozen=True)
class Part:
    """A weight of which the ranks of an axis hold different rows or columns."""

    links: Communicator
    shape: Size
    """Of the whole weight."""
    dim: int
    """The dimension that is split."""
    spans: tuple[tuple[Span, ...], ...]
    """Sizes of the ranks' parts along it."""
    replicated: bool = False
    """Along the mesh's axis `replicas` all hold the same, this and what is not split, and take the
    mean of all gradients."""
    peers: tuple[int, ...] = ()
    """Ranks that hold the same part and take the mean of its gradient alone, this one counted;
    what is not split has the mean of all ranks."""

    @classmethod
    def even(cls, links: Communicator, shape: Size) -> Self:
        """Share out rows in order; the first ranks have one more where they must."""
        ends = list(accumulate(sizes_of(shape[0], links.size)))
        spans = tuple((span,) for span in zip([0, *ends[:-1]], ends, strict=True))
        return cls(links, shape, 0, spans)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many rows or columns each rank holds."""
        return tuple(sum(end - start for start, end in spans) for spans in self.spans)

    def local(self, whole: Tensor) -> Tensor:
        """Return this rank's part of a whole weight, or of what an optimizer keeps of it."""
        result = [
            whole.narrow(self.dim, start, end - start) for start, end in self.spans[self.links.rank]
        ]
        return torch.cat(result, self.dim)

    def whole(self, local: Tensor) -> Tensor:
        """Return the whole of this rank's part; every rank of the axis calls this."""
        row = self.shape.numel() // self.shape[self.dim]
        parts = self.links.gather_parts(local, [size * row for size in self.sizes])
        whole = local.new_empty(self.shape)
        for part, size, spans in zip(parts, self.sizes, self.spans, strict=True):
            shape = [*self.shape]
            shape[self.dim] = size
            widths = [end - start for start, end in spans]
            pieces = torch.split(part.view(shape), widths, self.dim)
            for piece, (start, end) in zip(pieces, spans, strict=True):
                whole.narrow(self.dim, start, end - start).copy_(piece)
        return whole


@dataclass(frozen=True)
class Placed(Part):
    """A weight that one rank of an axis holds, and the others nothing of it."""

    owner: int = 0

    @classmethod
    def on(cls, owner: int, links: Communicator, shape: Size, *, replicated: bool) -> Self:
        """Place a weight of one dimension or more on a rank."""
        all_rows = (0, shape[0])
        spans = tuple((all_rows if rank == owner else (0, 0),) for rank in range(links.size))
        return cls(links, shape, 0, spans, replicated, owner=owner)

    def whole(self, local: Tensor) -> Tensor:
        """Return the owner's weight; every rank of the axis calls this."""
        here = self.links.rank == self.owner
        whole = local.detach().contiguous() if here else local.new_empty(self.shape)
        return self.links.broadcast(whole, self.owner)


def take_part(layer: nn.Module, parts: dict[str, Part]) -> None:
    """Keep this rank's parts of a layer's weights in place of the whole ones."""
    for name, part in parts.items():
        weight = layer.get_parameter(name)
        setattr(layer, name, nn.Parameter(part.local(weight.detach()), weight.requires_grad))
    setattr(layer, PARTS, parts)


def parts_of(module: nn.Module) -> dict[str, Part]:
    """Return the parts of all split weights of a module by their names; none where none is."""
    return dict(_parts(module))


def _parts(module: nn.Module) -> Iterator[tuple[str, Part]]:
    for place, layer in module.named_modules():
        layer_parts: dict[str, Part] = getattr(layer, PARTS, {})
        for name, part in layer_parts.items():
            yield f"{place}.{name}" if place else name, part


class SplitGradientSync(GradientSync):
    """Reduces the gradients of a module with split layers.

    Those of the parts count in the norm; they are averaged with the ranks that hold the same part,
    and stay where they are where none does.
    """

    def __init__(
        self,
        module: nn.Module,
        exchange: Exchange,
        mesh: Mesh,
        steps_per_epoch: int,
        say: Callable[[str], None],
    ) -> None:
        """Lay out the gradients and get the exchanges ready; every rank calls this."""
        parts, named = parts_of(module), list(module.named_parameters())
        self._averaged = any(part.replicated for part in parts.values())
        ranks = mesh.replicas if self._averaged else None
        left_out = () if self._averaged else parts.keys()
        super().__init__(
            module, exchange, mesh, steps_per_epoch, say, ranks=ranks, left_out=left_out
        )
        self._split = _split_gradients(named, parts)
        self._peers = [
            _Peers(ranks, [(name, weight) for name, weight in named if name in local], mesh)
            for ranks, local in _by_peers(parts).items()
        ]

    def backward(self, *, last: bool) -> None:
        """The engine's next backward begins."""
        super().backward(last=last)
        for peers in self._peers:
            peers.reducer.begin()
            if last:
                peers.reducer.arm()

    def _finish(self) -> float | None:
        if self._averaged:
            return self._split.norm(known_bad=self.reducer.finish() is None)
        bad = [peers.reducer.finish() is None for peers in self._peers]
        square = self._split.square(known_bad=any(bad))
        if not math.isfinite(square):
            # The exchange must not remember a step that is not taken.
            self.gradients.flat.fill_(math.nan)
        norm = self.reducer.finish()
        if norm is None or not math.isfinite(square):  # nothing may be left that an exchange sees
            return None
        return math.sqrt(norm**2 + square)

    def _scale(self, factor: float) -> None:
        super()._scale(factor)
        if not self._averaged:
            self._split.scale(factor)

    def discard(self) -> None:
        """Forget the gradients of this step, of which nothing was sent."""
        super().discard()
        for peers in self._peers:
            peers.reducer.discard()

    @property
    def bytes_sent(self) -> int:
        """By this rank since the start."""
        return super().bytes_sent + sum(peers.fabric.bytes_sent for peers in self._peers)

    def close(self) -> None:
        """Remove the hooks from the module."""
        super().close()
        for peers in self._peers:
            peers.reducer.close()


class _Peers:
    """The gradients of parts that some ranks hold alike, on their way between these."""

    def __init__(
        self, ranks: Sequence[int], named: Sequence[tuple[str, nn.Parameter]], mesh: Mesh
    ) -> None:
        timeout = timedelta(seconds=mesh.settings.timeout_s)
        self.fabric, gradients = Fabric(mesh.device, timeout, ranks), GradientBuffer(named)
        exchange = Fused(FusedSettings(tune=False))
        exchange.attach(self.fabric, gradients, 1)
        self.reducer = Reducer(gradients, exchange)


def _by_peers(parts: Mapping[str, Part]) -> dict[tuple[int, ...], set[str]]:
    """Return the names of the parts that other ranks hold as well, by these ranks."""
    by_peers: dict[tuple[int, ...], set[str]] = {}
    for name, part in parts.items():
        if len(part.peers) > 1:
            by_peers.setdefault(part.peers, set()).add(name)
    return by_peers


class SplitGradients:
    """The gradients of split weights, which differ by rank, and of those that all ranks share."""

    def __init__(
        self,
        weights: Mapping[Communicator, Sequence[nn.Parameter]],
        shared: Sequence[nn.Parameter],
    ) -> None:
        """Know the split weights, by what their ranks talk through, and the `shared` ones."""
        self._weights, self._shared = weights, shared

    def square(self, *, known_bad: bool = False) -> float:
        """Return the squared norm of the split ones over all ranks, the same on each.

        NaN where one is not finite, or where a rank has `known_bad` ones.
        """
        total = 0.0
        for links, weights in self._weights.items():
            local = _square(weights)
            total += float(links.sum(local + math.nan if known_bad else local))
        return total

    def norm(self, *, known_bad: bool) -> float | None:
        """Return the norm of all gradients; None, on all ranks, where one is not finite.

        It is the same to the bit on all ranks, and so is what is clipped by it.
        """
        square = self.square(known_bad=known_bad)
        return math.sqrt(square + float(_square(self._shared))) if math.isfinite(square) else None

    def scale(self, factor: float) -> None:
        """Multiply the split ones."""
        for weights in self._weights.values():
            torch._foreach_mul_(_gradients(weights), factor)


def _gradients(weights: Sequence[nn.Parameter]) -> list[Tensor]:
    return [weight.grad for weight in weights if weight.grad is not None]


def _square(weights: Sequence[nn.Parameter]) -> Tensor:
    """Return the squared norm of what these weights have of gradients, as a tensor of one."""
    result = _gradients(weights)
    if not result:
        device = weights[0].device if weights else None
        return torch.zeros(1, dtype=torch.float64, device=device)
    return torch.stack(torch._foreach_norm(result)).double().square().sum().view(1)


def _split_gradients(
    named: Sequence[tuple[str, nn.Parameter]], parts: Mapping[str, Part]
) -> SplitGradients:
    trained = [(name, weight) for name, weight in named if weight.requires_grad]
    split: dict[Communicator, list[nn.Parameter]] = {part.links: [] for part in parts.values()}
    for name, weight in trained:
        if name in parts:
            split[parts[name].links].append(weight)
    shared = [weight for name, weight in trained if name not in parts]
    return SplitGradients(split, shared)


def build_split_sync(
    settings: ExchangeSettings,
    module: nn.Module,
    mesh: Mesh,
    steps_per_epoch: int,
    say: Callable[[str], None],
) -> GradientSync:
    """Return the exchange of `settings` at work on a split module.

    DeepSpeed would reduce what is split as well: then the dense exchange is ours.
    """
    parts = parts_of(module)
    names = {name for name, weight in module.named_parameters() if weight.requires_grad}
    alone = parts.keys() >= names and not any(part.replicated for part in parts.values())
    if settings.by_engine or alone:
        settings = FusedSettings(tune=False)  # also for nothing at all: then it sends nothing
    exchange = build_exchange(settings)
    assert exchange is not None
    return SplitGradientSync(module, exchange, mesh, steps_per_epoch, say)
