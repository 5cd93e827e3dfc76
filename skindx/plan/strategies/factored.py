"""Factors of wide linear layers, and the other gradients in groups behind backward."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from skindx.comm.grouping import MB, fixed_buckets
from skindx.core.cost.network import Network
from skindx.core.cost.profile import Profile
from skindx.core.cost.step import Message, Schedule
from skindx.factoring import factors_pay
from skindx.plan.strategies.strategy import Load, Strategy

_LEAST_MB = 1.0
"""Of a weight, as the exchange has it by default."""


@dataclass(frozen=True)
class Factors:
    """What a rank sends of one layer's gradient in a step."""

    tensor: int
    """Its weight's place in backward order."""
    tensors: range
    """Places of the weight and its bias."""
    rows: int
    inside: int
    outside: int
    bytes_each: int

    @property
    def size_bytes(self) -> int:
        """Inputs and output gradients of this rank."""
        return self.rows * (self.inside + self.outside) * self.bytes_each


def factors_of(
    profile: Profile, images: int, ranks: int, least_mb: float = _LEAST_MB
) -> list[Factors]:
    """Return the layers that send factors where a rank has so many images in a step."""
    return [
        found
        for found in _linear_layers(profile, images)
        if 4 * found.inside * found.outside >= least_mb * MB
        and factors_pay(found.rows, found.inside, found.outside, ranks, found.bytes_each)
    ]


def _linear_layers(profile: Profile, images: int) -> Iterator[Factors]:
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
                yield Factors(tensor, places, rows, inside, outside, value)
            tensor += 1


class Factored(Strategy):
    """`exchange.kind: factored` (Xie et al. 2015, arXiv 1512.01708)."""

    name = "factored"

    def schedule(self, load: Load, network: Network) -> Schedule:
        """Send the factors when the last of them is there, and then buckets of the others."""
        if network.ranks == 1:
            return Schedule()
        local, summed, gathered = (
            load.local(self.name),
            network.price("all_reduce"),
            network.price("all_gather"),
        )
        factors = self._factors(load, network.ranks)
        messages = []
        if factors:
            size = sum(found.size_bytes for found in factors)
            last = 1 + max(found.tensor for found in factors)
            messages.append(Message(last, size, gathered(size)))
        others = sorted(set(range(load.count)) - {found.tensor for found in factors})
        sizes = [load.trace.sizes_bytes[tensor] for tensor in others]
        first = 0
        for count in fixed_buckets(sizes, float(self.options.get("bucket_mb", 25)), first_mb=1):
            size = sum(sizes[first : first + count])
            first += count
            ready = 1 + others[first - 1]  # groups go in order, so the factors are there by then
            messages.append(Message(ready, size, summed(size)))
        return Schedule(
            tuple(messages),
            finish_s=local.base_s + self._product_s(load, network.ranks),
            spread=max(summed.spread_of(len(messages)), gathered.spread if factors else 0.0),
            local_spread=local.spread,
            measured=summed.measured and (gathered.measured or not factors),
            note=_note(len(factors)),
        )

    def _factors(self, load: Load, ranks: int) -> list[Factors]:
        least_mb = float(self.options.get("least_mb", _LEAST_MB))
        return factors_of(load.profile, load.images * load.pieces, ranks, least_mb)

    def _product_s(self, load: Load, ranks: int) -> float:
        """Return the time of the products with all ranks' rows, less that of a rank's own."""
        rates, factors = load.profile.rates, self._factors(load, ranks)
        if rates:
            operations = sum(2.0 * found.rows * found.inside * found.outside for found in factors)
            return (ranks - 1) * operations / rates.product_flop_s
        # Half of a layer's backward pass is this product, the other half its input's gradient.
        own_s = sum(load.trace.backward_s[at] for found in factors for at in found.tensors)
        return (ranks - 1) * load.pieces * own_s / 2

    def fragment(self) -> dict[str, Any]:
        """Name the kind."""
        return {"exchange": {"kind": self.name, **self.options}, "engine": {"zero": 0}}

    def memory_bytes(self, load: Load, network: Network, images: int) -> int:
        """Count the factors of all ranks."""
        return sum(network.ranks * found.size_bytes for found in self._factors(load, network.ranks))


def _note(layers: int) -> str:
    return (
        "no layer sends factors" if not layers else f"{layers} layer{'s' * (layers > 1)} by factors"
    )
