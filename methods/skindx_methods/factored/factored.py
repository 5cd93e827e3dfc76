"""Factored: wide linear layers send the factors of their gradients, other layers the gradients."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field

from skindx.comm.exchange_settings import ExchangeSettings
from skindx.comm.grouping import MB, fixed_buckets
from skindx.core.cost.pricing import Load, Message, Network, StepSchedule
from skindx.core.cost.profile import Profile

_SAVES = 2
"""Least ratio of the gradient's bytes to those of the factors, which each rank multiplies."""


class FactoredSettings(ExchangeSettings):
    """Wide linear layers send the factors of their gradients, and all ranks multiply.

    Exact (Xie et al. 2015, arXiv 1512.01708; Poseidon: Zhang et al. 2017, arXiv 1706.03292). It
    pays for networks with wide layers before the last one (AlexNet, VGG) and few images a rank; a
    layer whose factors are not much smaller than its gradient is summed like all others.
    """

    kind: Literal["factored"] = "factored"
    bucket_mb: float = Field(25, gt=0, le=100_000)
    """Size of a group of the other gradients; the first is closed at 1 MB."""
    least_mb: float = Field(1, ge=0, le=100_000)
    """A weight below this size is summed like all others."""

    code: ClassVar[str] = "skindx_methods.factored.factored_exchange:Factored"
    local_s_per_element: ClassVar[float] = 0.3e-9
    local_as: ClassVar[str] = "fused"
    needs: ClassVar[str] = (
        "factored watches the layers of an eager network in fp32 or bf16, without "
        "recipe.preconditioner"
    )

    def check_training(self, *, whole_layers: bool, preconditioned: bool) -> None:
        """Raise ValueError for layers that it cannot watch, or a pass that it must not see."""
        if whole_layers:
            raise ValueError(
                "exchange.kind=factored works only with precision fp32 or bf16 and without "
                "compile; set engine.compile=false and engine.precision accordingly, or "
                "exchange.kind=fused"
            )
        if preconditioned:
            raise ValueError(
                "exchange.kind=factored does not work with recipe.preconditioner; set "
                "exchange.kind=fused, or remove recipe.preconditioner"
            )

    def schedule(self, load: Load, network: Network, rule: str = "") -> StepSchedule:
        """Send the factors when the last of them is there, then buckets of other gradients."""
        if network.ranks == 1:
            return StepSchedule()
        local, factors = self.local(load), self._factors(load, network.ranks)
        summed, gathered = network.price("all_reduce"), network.price("all_gather")
        messages = []
        if factors:
            size = sum(layer.size_bytes for layer in factors)
            last = 1 + max(layer.tensor for layer in factors)
            messages.append(Message(last, size, gathered(size)))
        dense = sorted(set(range(load.count)) - {layer.tensor for layer in factors})
        sizes = [load.trace.sizes_bytes[tensor] for tensor in dense]
        first = 0
        for count in fixed_buckets(sizes, self.bucket_mb, first_mb=1):
            size = sum(sizes[first : first + count])
            first += count
            ready = 1 + dense[first - 1]  # groups go in order, so the factors are there by then
            messages.append(Message(ready, size, summed(size)))
        return StepSchedule(
            tuple(messages),
            finish_s=local.base_s + _product_s(load, network.ranks, factors),
            spread=max(summed.spread_of(len(messages)), gathered.spread if factors else 0.0),
            local_spread=local.spread,
            measured=summed.measured and (gathered.measured or not factors),
        )

    def _factors(self, load: Load, ranks: int) -> list["LayerFactors"]:
        return factors_of(load.profile, load.images * load.pieces, ranks, self.least_mb)

    def memory_bytes(self, load: Load, network: Network) -> int:
        """Count the factors of all ranks."""
        factors = self._factors(load, network.ranks)
        return sum(network.ranks * layer.size_bytes for layer in factors)

    def differs(self, nodes: int, per_node: int, networks: Sequence[tuple[Profile, int]]) -> bool:
        """Return whether some layer's factors are fewer bytes than its gradient."""
        ranks = nodes * per_node
        return any(factors_of(profile, images, ranks) for profile, images in networks)


def factors_pay(rows: int, inside: int, outside: int, ranks: int, bytes_each: int = 4) -> bool:
    """Tell whether a layer `outside` x `inside` sends less by its factors.

    A gradient is a sum over `rows` of a rank, each an output gradient times an input. A ring
    all-reduce sends 2 (P - 1) / P of the matrix in fp32, an all-gather P - 1 times a rank's
    factors, which have `bytes_each` an element.
    """
    gradient = 2 * inside * outside * 4 / ranks
    return ranks > 1 and _SAVES * rows * (inside + outside) * bytes_each <= gradient


@dataclass(frozen=True)
class LayerFactors:
    """What a rank sends of one layer's gradient in a step."""

    tensor: int
    """Position of its weight in backward order."""
    tensors: range
    """Positions of the weight and its bias."""
    rows: int
    inside: int
    outside: int
    bytes_each: int

    @property
    def size_bytes(self) -> int:
        """Bytes of this rank's inputs and output gradients."""
        return self.rows * (self.inside + self.outside) * self.bytes_each


def factors_of(
    profile: Profile, images: int, ranks: int, least_mb: float = 1.0
) -> list[LayerFactors]:
    """Return the layers that send factors where a rank has so many images in a step."""
    return [
        layer
        for layer in _linear_layers(profile, images)
        if 4 * layer.inside * layer.outside >= least_mb * MB
        and factors_pay(layer.rows, layer.inside, layer.outside, ranks, layer.bytes_each)
    ]


def _linear_layers(profile: Profile, images: int) -> Iterator[LayerFactors]:
    """Yield every linear layer's factors, in backward order."""
    value, tensor = 4 if profile.precision == "fp32" else 2, 0
    for layer in reversed(profile.layers):
        unknown = ((layer.parameter_bytes // 4,),) if layer.parameter_bytes >= 4 else ()
        shapes = layer.shapes or unknown
        places = range(tensor, tensor + len(shapes))
        for shape in shapes:
            if layer.operator == "Linear" and len(shape) == 2:
                outside, inside = shape
                values = layer.activation_bytes / value / profile.batch
                rows = max(1, round(values / outside)) * images
                yield LayerFactors(tensor, places, rows, inside, outside, value)
            tensor += 1


def _product_s(load: Load, ranks: int, factors: Sequence[LayerFactors]) -> float:
    """Return the time of the products with all ranks' rows, less that of a rank's own."""
    if rates := load.profile.rates:
        operations = sum(2.0 * layer.rows * layer.inside * layer.outside for layer in factors)
        return (ranks - 1) * operations / rates.product_flop_s
    # Half of a layer's backward pass is this product, the other half its input's gradient.
    backward_s = sum(load.trace.backward_s[at] for layer in factors for at in layer.tensors)
    return (ranks - 1) * load.pieces * backward_s / 2
