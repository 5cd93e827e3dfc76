"""The part of a weight that a rank holds, the whole weight, and the exchange of its gradient."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

import torch
from torch import Size, Tensor, nn

from skindx.comm.exchange import Exchange
from skindx.comm.exchange_kinds import build_exchange
from skindx.comm.exchange_settings import ExchangeSettings
from skindx.comm.fused import FusedSettings
from skindx.training.gradient_sync import GradientSync
from skindx.training.parallel.mesh import Mesh, sizes_of
from skindx_methods.split_layers.communicator import Communicator

PARTS = "parts"
"""What a split layer calls its parts: names of its weights -> `Part`."""

Span = tuple[int, int]
"""Start, and end (exclusive)."""


@dataclass(frozen=True)
class Part:
    """A weight of which the ranks of an axis hold different rows or columns."""

    links: Communicator
    shape: Size
    """Shape of the whole weight."""
    dim: int
    """The dimension that is split."""
    spans: tuple[tuple[Span, ...], ...]
    """Spans of each rank's part along that dimension."""

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

    Those of the parts stay where they are, and count in the norm.
    """

    def __init__(
        self,
        module: nn.Module,
        exchange: Exchange,
        mesh: Mesh,
        steps_per_epoch: int,
        say: Callable[[str], None],
    ) -> None:
        """Lay out the gradients and get the exchange ready; every rank calls this."""
        parts = parts_of(module)
        super().__init__(module, exchange, mesh, steps_per_epoch, say, left_out=parts.keys())
        self._links = next(iter(parts.values())).links
        trained = [item for item in module.named_parameters() if item[1].requires_grad]
        self._split = [weight for name, weight in trained if name in parts]

    def _finish(self) -> float | None:
        square = self._square()
        if not math.isfinite(square):
            # The exchange must not remember a step that is not taken.
            self.gradients.flat.fill_(math.nan)
        norm = self.reducer.finish()
        if norm is None or not math.isfinite(square):  # nothing may be left that an exchange sees
            return None
        return math.sqrt(norm**2 + square)

    def _square(self) -> float:
        """Return the squared norm of all parts' gradients; NaN, on all ranks, if not finite."""
        return float(self._links.sum(square_of(self._split)))

    def _scale(self, factor: float) -> None:
        super()._scale(factor)
        torch._foreach_mul_(_gradients(self._split), factor)


def _gradients(weights: Sequence[nn.Parameter]) -> list[Tensor]:
    return [weight.grad for weight in weights if weight.grad is not None]


def square_of(weights: Sequence[nn.Parameter]) -> Tensor:
    """Return the squared norm of what these weights have of gradients, as a tensor of one."""
    result = _gradients(weights)
    if not result:
        device = weights[0].device if weights else None
        return torch.zeros(1, dtype=torch.float64, device=device)
    return torch.stack(torch._foreach_norm(result)).double().square().sum().view(1)


def build_split_sync(
    settings: ExchangeSettings,
    module: nn.Module,
    mesh: Mesh,
    steps_per_epoch: int,
    say: Callable[[str], None],
) -> GradientSync:
    """Return the exchange of `settings` at work on a split module."""
    names = {name for name, weight in module.named_parameters() if weight.requires_grad}
    if parts_of(module).keys() >= names:
        settings = FusedSettings(tune=False)  # of nothing at all: then it sends nothing
    return SplitGradientSync(module, exchange_beside(settings), mesh, steps_per_epoch, say)


def exchange_beside(settings: ExchangeSettings) -> Exchange:
    """Return the exchange of `settings`; a fused one in place of DeepSpeed's own.

    DeepSpeed would reduce what is split as well.
    """
    exchange = build_exchange(FusedSettings(tune=False) if settings.by_engine else settings)
    assert exchange is not None
    return exchange
