"""What each framework sends in a step: how many messages, how many bytes, and of what kind."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from skindx.comm.factored import factors_pay
from skindx.comm.grouping import MB, fixed_buckets

Sending = Literal["buckets", "factors", "whole", "tensors", "shards", "sparse"]
"""buckets: of 25 MB, the first of 1 MB; factors: inputs and output gradients of wide linear layers
at once, and the others in buckets; whole: all gradients at once; tensors: one by one; shards:
weights are gathered and gradients scattered, layer by layer; sparse: 8 bytes an element that is
sent, to one partner after the other."""

BUCKET_MB, FIRST_MB = 25, 1
FACTORED_FROM_MB = 1
"""Of a weight, by default."""
SHARDED_FROM = 1_000_000
"""Weights of a layer from which FSDP2 shards and gathers it by itself."""


@dataclass(frozen=True)
class Traffic:
    """Collectives of one step: `rounds` of latency, `volume` bytes on each rank's link.

    `last_rounds` and `last_volume` are those of the last collective, which can begin only when
    backward has ended.
    """

    rounds: float
    volume: float
    last_rounds: float
    last_volume: float


def traffic(
    sending: Sending,
    layers: Sequence[Sequence[tuple[int, ...]]],
    ranks: int,
    density: float = 0.001,
    batch: int = 1,
) -> Traffic:
    """Return what a rank sends in a step. `layers`: shapes of the tensors, layer by layer.

    A ring all-reduce takes 2 (P - 1) rounds of a P-th of the buffer, a gather or a scatter half of
    them.
    """
    if ranks == 1:
        return Traffic(0, 0, 0, 0)
    shapes = [shape for layer in reversed(layers) for shape in reversed(layer)]
    factors = [
        shape
        for shape in shapes
        if sending == "factors"
        and len(shape) == 2
        and 4 * math.prod(shape) >= FACTORED_FROM_MB * MB
        and factors_pay(batch, *shape, ranks)
    ]
    sizes = [4 * math.prod(shape) for shape in shapes if shape not in factors]
    if sending == "sparse":
        rounds = math.ceil(math.log2(ranks))
        volume = rounds * 8.0 * math.ceil(density * sum(sizes) / 4)
        return Traffic(rounds, volume, rounds, volume)
    ring, share = 2 * (ranks - 1), 2 * (ranks - 1) / ranks
    if sending == "shards":
        weights = [sum(map(math.prod, layer)) for layer in layers]
        large = [4 * count for count in weights if count >= SHARDED_FROM]
        rest = sum(sizes) - sum(large)
        # A large layer is gathered again for backward, the others are still there.
        gathered = ring * (1.5 * len(large) + 1)
        return Traffic(gathered, share * (1.5 * sum(large) + rest), ring / 2, share * rest / 2)
    if sending == "whole":
        messages = [sum(sizes)]
    elif sending == "tensors":
        messages = sizes
    else:
        messages = _grouped(sizes, fixed_buckets(sizes, BUCKET_MB, first_mb=FIRST_MB))
    gathered = (ranks - 1) * 4.0 * batch * sum(map(sum, factors))
    rounds = ring * len(messages) + (ranks - 1) * bool(factors)
    return Traffic(rounds, share * sum(messages) + gathered, ring, share * messages[-1])


def _grouped(sizes: Sequence[int], groups: Sequence[int]) -> list[int]:
    found, first = [], 0
    for count in groups:
        found.append(sum(sizes[first : first + count]))
        first += count
    return found
