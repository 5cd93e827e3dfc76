"""Cost of K-FAC in a step: factors, eigenvectors, their messages, and the preconditioning.

As `skindx train` does it (Pauloski et al. 2020, arXiv 2007.00784; KAISA, arXiv 2107.01739): factors
every some steps, summed over all ranks; eigenvectors more rarely, each on one rank, sent to those
that need them; each layer's gradient in its eigenbasis in every step. A step is the mean over a
cycle of these. How many eigenvectors are negligible is known only while training, so the price is
that of all of them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from skindx.comm.grouping import fixed_buckets
from skindx.core.cost.assignment import Sharing, plan_sharing
from skindx.core.cost.network import Network, Timed
from skindx.core.cost.placing import RankAxis, axis_of
from skindx.core.cost.profile import Profile, ProfiledLayer, Rates
from skindx.core.cost.step import Message, StepSchedule
from skindx.core.errors import UserError

INSIDE, OUTSIDE = "inside", "outside"

_NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "BatchNormAct2d")
_BUCKET_MB = 25
"""Of factors in one message."""
_INSIDE, _OUTSIDE, _NORM, _CHANGE = 6, 4, 10, 22
"""Times that each number goes to or from memory: of the patches that a factor is the product of
(spread out, turned, multiplied), of gradients at outputs, of a batch norm's activations, and of a
gradient on its way into the eigenbasis, through damping and clip, and back."""
SPREAD = 0.25
"""Standard deviation, over the mean, of what such counts leave out."""
_LEAST_SHARE = 1 / 8
"""Of the images, which factors are made of however many rows these have."""
_SAMPLED = 0.5
"""Of a backward pass: that of drawn labels goes through the layers and reaches no weight."""


@dataclass(frozen=True)
class KfacCost:
    """`recipe.preconditioner`, as far as it costs time."""

    factors_every: int = 10
    inverses_every: int = 100
    widest: int = 4608
    gradient_workers: float = 1.0
    sampled: bool = True
    """A backward pass of its own for the factors."""
    factor_rows: int = 2048
    """Images times positions that are enough for a factor; 0: all are taken."""

    def taken(self, images: int, positions: int) -> int:
        """Return the images of a rank's pass that a layer's factors are made of."""
        if not self.factor_rows:
            return images
        enough = math.ceil(self.factor_rows / positions)
        return min(images, max(enough, math.ceil(images * _LEAST_SHARE)))


@dataclass(frozen=True)
class Conditioned:
    """A layer with its Kronecker factors, by (blocks, width)."""

    name: str
    shapes: Mapping[str, tuple[int, int]]
    rows: int
    """Of the matrix whose product is a factor, for one image: positions of its output."""
    values: float
    """Numbers of its output for one image."""

    @cached_property
    def factor_bytes(self) -> int:
        """Of all its factors."""
        return sum(4 * blocks * width * width for blocks, width in self.shapes.values())

    @cached_property
    def gradient_elements(self) -> int:
        """Of weight and bias."""
        blocks, inside = self.shapes[INSIDE]
        return blocks * inside * self._outside

    @property
    def products(self) -> float:
        """Operations of its factors, for one image."""
        return sum(2.0 * self.rows * n * width * width for n, width in self.shapes.values())

    @property
    def touched_bytes(self) -> float:
        """Bytes that its factors move through memory, for one image."""
        if OUTSIDE not in self.shapes:
            return 4.0 * _NORM * self.values
        blocks, inside = self.shapes[INSIDE]
        return 4.0 * (_INSIDE * self.rows * blocks * inside + _OUTSIDE * self.values)

    @property
    def changing(self) -> float:
        """Operations of its gradient's way into the eigenbasis and back."""
        blocks, inside = self.shapes[INSIDE]
        outside = self._outside if OUTSIDE in self.shapes else 0
        return 4.0 * blocks * inside * self._outside * (inside + outside)

    @property
    def _outside(self) -> int:
        return self.shapes[OUTSIDE][1] if OUTSIDE in self.shapes else 1


def conditioned(profile: Profile, widest: int) -> tuple[Conditioned, ...]:
    """Return the layers of a network that K-FAC knows and that are not too wide."""
    result = []
    value = 4 if profile.precision == "fp32" else 2
    for layer in profile.layers:
        shapes = _factors(layer)
        if shapes and max(width for _, width in shapes.values()) <= widest:
            values = layer.activation_bytes / value / profile.batch
            outputs = shapes[OUTSIDE][0] * shapes[OUTSIDE][1] if OUTSIDE in shapes else 0
            rows = max(1, round(values / outputs)) if outputs else 1
            result.append(Conditioned(layer.name, shapes, rows, values))
    return tuple(result)


def _factors(layer: ProfiledLayer) -> dict[str, tuple[int, int]]:
    """Return (blocks, width) of a layer's factors; none for a layer that K-FAC leaves alone."""
    weight = max(layer.shapes, key=len, default=())
    bias = len(layer.shapes) - 1
    if layer.operator == "Linear" and len(weight) == 2:
        return {INSIDE: (1, weight[1] + bias), OUTSIDE: (1, weight[0])}
    if layer.operator == "Conv2d" and len(weight) == 4:
        inside = weight[1] * weight[2] * weight[3] + bias
        return {INSIDE: (layer.groups, inside), OUTSIDE: (layer.groups, weight[0] // layer.groups)}
    if layer.operator in _NORMS and len(weight) == 1:
        return {INSIDE: (weight[0], 1 + bias)}
    return {}


@dataclass(frozen=True)
class Priced:
    """Average cost of K-FAC; seconds and bytes of one rank."""

    compute_s: float
    messages: tuple[Message, ...]
    memory_bytes: float
    saved_bytes: float
    """Of them, in a checkpoint."""
    spread: float

    def added_to(self, schedule: StepSchedule) -> StepSchedule:
        """Return a schedule with it, between the exchange and the update."""
        return replace(
            schedule,
            precondition_s=self.compute_s,
            preconditions=self.messages,
            local_spread=max(schedule.local_spread, self.spread),
        )


def price(
    kfac: KfacCost, profile: Profile, network: Network, images: int, backward_s: float
) -> Priced:
    """Return what a step takes more, on average; `images` and `backward_s` are those of a rank.

    Raises UserError where the trace has no rates of matrices.
    """
    rates = profile.rates
    if rates is None:
        raise UserError(
            f"the trace of {profile.name} has no rates of matrix products and eigenvectors, so "
            "recipe.preconditioner cannot be priced; measure it again with `skindx plan measure`, "
            "or plan without (--set recipe.preconditioner=null)."
        )
    layers = conditioned(profile, kfac.widest)
    shapes = {layer.name: layer.shapes for layer in layers}
    sharing = plan_sharing(shapes, network.ranks, kfac.gradient_workers)
    rows = range(len(sharing.rows))
    factor_s = sum(
        kfac.taken(images, layer.rows)
        * (layer.products / rates.product_flop_s + layer.touched_bytes / rates.memory_bytes_s)
        for layer in layers
    )
    factor_s += backward_s * _SAMPLED if kfac.sampled else 0.0
    eigen_s = max(_eigen_s(layers, sharing, rates), default=0.0)
    by_row = [[layer for layer in layers if sharing.row_of[layer.name] == row] for row in rows]
    change_s = max(sum(_change_s(layer, rates) for layer in row) for row in by_row)
    row_axis = axis_of(network, sharing.workers)
    column_axis = axis_of(network, network.ranks // sharing.workers, sharing.workers)
    factors = _summed(layers, network, kfac.factors_every)
    vectors = _vectors(by_row, row_axis, kfac.inverses_every)
    gradients = _gradients(by_row, column_axis)
    held = max(sum(layer.factor_bytes for layer in row) for row in by_row)
    averages = sum(layer.factor_bytes for layer in layers)
    return Priced(
        factor_s / kfac.factors_every + eigen_s / kfac.inverses_every + change_s,
        tuple(message for message in (factors, vectors, gradients) if message.size_bytes),
        # Averages and eigenvectors, and the gradients in their basis.
        averages + held + profile.parameter_bytes,
        2 * averages,  # all eigenvectors, gathered
        math.hypot(SPREAD, rates.spread),
    )


def _change_s(layer: Conditioned, rates: Rates) -> float:
    touched_s = 4 * _CHANGE * layer.gradient_elements / rates.memory_bytes_s
    return layer.changing / rates.product_flop_s + touched_s + rates.layer_s


def _eigen_s(layers: Sequence[Conditioned], sharing: Sharing, rates: Rates) -> list[float]:
    """Return what each rank takes for the factors that are assigned to it."""
    seconds = [0.0] * sharing.ranks
    for layer in layers:
        for factor, (blocks, width) in layer.shapes.items():
            seconds[sharing.rank_of[layer.name, factor]] += blocks * eigen_s(rates, width)
    return seconds


def eigen_s(rates: Rates, width: int) -> float:
    """Return the seconds of one matrix's eigenvectors: a line between logarithms, then n^3."""
    points = sorted(rates.eigen_s)
    first, last = points[0], points[-1]
    if width <= first[0]:
        return first[1]
    if width >= last[0]:
        return float(last[1] * (width / last[0]) ** 3)
    widths, seconds = zip(*points, strict=True)
    return float(np.exp(np.interp(np.log(width), np.log(widths), np.log(seconds))))


def _summed(layers: Sequence[Conditioned], network: Network, every: int) -> Message:
    if network.ranks == 1:
        return Message(0, 0, Timed(0.0, 0.0))
    collective = network.price("all_reduce")
    sizes = [
        4 * blocks * width * width for layer in layers for blocks, width in layer.shapes.values()
    ]
    timed, first = [], 0
    for count in fixed_buckets(sizes, _BUCKET_MB):
        timed.append(collective(sum(sizes[first : first + count])))
        first += count
    return _mean(sum(sizes), timed, every)


def _vectors(by_row: Sequence[Sequence[Conditioned]], axis: RankAxis, every: int) -> Message:
    """Eigenvectors and values, of each factor from its rank to all of the row, many at once."""
    if axis.ranks == 1:
        return Message(0, 0, Timed(0.0, 0.0))
    at_once = axis.network.cluster.slots
    rows = []
    for row in by_row:
        sizes = [4 * n * w * (w + 1) for layer in row for n, w in layer.shapes.values()]
        timed = [axis.broadcast(size).scaled(1 / at_once) for size in sizes]
        rows.append(_mean(sum(sizes), timed, every))
    return max(rows, key=lambda message: message.timed.alone_s)


def _gradients(by_row: Sequence[Sequence[Conditioned]], axis: RankAxis) -> Message:
    """Finished gradients of each row, to the other rows, in every step."""
    if axis.ranks == 1:
        return Message(0, 0, Timed(0.0, 0.0))
    sizes = [4 * sum(layer.gradient_elements for layer in row) for row in by_row]
    return _mean(sum(sizes), [axis.broadcast(size) for size in sizes if size], 1)


def _mean(size_bytes: int, timed: Sequence[Timed], every: int) -> Message:
    """Return messages one after the other, every some steps, as one message a step."""
    return Message(
        0,
        round(size_bytes / every),
        Timed(
            sum(one.latency_s for one in timed) / every,
            sum(one.wire_s for one in timed) / every,
            sum(one.cpu_s for one in timed) / every,
        ),
    )
