"""What a network's layers take on each rank where the wide linear ones are split over all ranks."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from skindx.core.cost.cells import Cell, CellBorder
from skindx.core.cost.network import Network, Timed
from skindx.core.cost.profile import Profile, ProfiledLayer, compute_scale

_BY_CHANNEL = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "BatchNormAct2d", "SyncBatchNorm")
"""They work on each channel alone, and follow the layer before them."""


@dataclass(frozen=True)
class Operator:
    """A layer with weights, and all behind it that has none; bytes are those of one image."""

    name: str
    splits: bool
    """It is a plain linear layer or convolution, whose output channels can be shared out."""
    forward_s: float
    """At the profile's batch, on one rank."""
    backward_s: float
    parameter_bytes: int
    weights: int
    """Numbers of its weight matrix alone, without what else it has."""
    outputs: int
    """Channels or features; 0: not known, and so it cannot be split."""
    input_bytes: float
    """0: not known."""
    output_bytes: float
    """Of the layer itself."""
    passed_bytes: float
    """Behind its activation and pooling: what the next operator gets."""


def operators_of(profile: Profile) -> tuple[Operator, ...]:
    """Return the operators in forward order; a layer that was never timed counts as 0 s."""
    result: list[Operator] = []
    for layer in profile.layers:
        operator = _operator(layer, profile.batch)
        if result and (not layer.parameter_bytes or layer.operator in _BY_CHANNEL):
            result[-1] = _joined(result[-1], operator)
        else:
            result.append(operator)
    return tuple(_chained(result))


def _operator(layer: ProfiledLayer, batch: int) -> Operator:
    plain = layer.operator in ("Linear", "Conv2d")
    weight = max(layer.shapes, key=len, default=())
    outputs = layer.outputs or (weight[0] if len(weight) > 1 and plain else 0)
    output_bytes = layer.activation_bytes / batch
    input_bytes = layer.input_bytes / batch
    if not input_bytes and layer.operator == "Linear" and len(weight) == 2:
        input_bytes = output_bytes * weight[1] / outputs  # as many positions come in as go out
    return Operator(
        name=layer.name,
        splits=plain and layer.groups == 1,
        forward_s=layer.forward_s or 0.0,
        backward_s=layer.backward_s or 0.0,
        parameter_bytes=layer.parameter_bytes,
        weights=math.prod(weight) if weight else layer.parameter_bytes // 4 - outputs,
        outputs=outputs,
        input_bytes=input_bytes,
        output_bytes=output_bytes,
        passed_bytes=output_bytes,
    )


def _joined(first: Operator, second: Operator) -> Operator:
    return replace(
        first,
        forward_s=first.forward_s + second.forward_s,
        backward_s=first.backward_s + second.backward_s,
        parameter_bytes=first.parameter_bytes + second.parameter_bytes,
        # `Size` of a graph makes a few bytes for a whole batch, which are no activation.
        passed_bytes=second.passed_bytes if second.passed_bytes >= 4 else first.passed_bytes,
    )


def _chained(result: Sequence[Operator]) -> Iterator[Operator]:
    """Fill in what goes in by what came out before."""
    for number, operator in enumerate(result):
        if operator.input_bytes or not number:
            yield operator
        else:
            yield replace(operator, input_bytes=result[number - 1].passed_bytes)


@dataclass(frozen=True)
class Ground:
    """Input of a placement: operators, ranks and the images of each."""

    profile: Profile
    network: Network
    images: int
    """Of a rank in a piece."""
    factor: float = 1.0
    """Of all computing, as it was learnt."""
    pieces: int = 1
    """Of a step."""

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """In forward order."""
        return operators_of(self.profile)

    @property
    def ranks(self) -> int:
        return self.network.ranks

    @property
    def batch(self) -> int:
        """Images of all ranks in a step."""
        return self.images * self.ranks * self.pieces

    def wide(self, min_weights: int | None = None) -> tuple[bool, ...]:
        """Tell of each operator whether it is split: a linear one with many weights.

        Linear is what an image passes once. Many are `min_weights` weights or more; without it
        those whose gradient has more numbers than what goes in and out of them for a whole batch.
        """
        return tuple(self._is_wide(operator, min_weights) for operator in self.operators)

    def _is_wide(self, operator: Operator, min_weights: int | None) -> bool:
        value = 4 if self.profile.precision == "fp32" else 2
        known = operator.splits and operator.input_bytes > 0 and operator.outputs >= self.ranks
        if not known or round(operator.output_bytes / value) != operator.outputs:
            return False
        values = operator.input_bytes / value + operator.outputs // self.ranks
        least = self.batch * values if min_weights is None else min_weights
        return operator.weights >= least

    def cell(self, number: int, *, split: bool) -> Cell:
        """Return an operator on each rank, with its output channels split over all of them or not.

        It takes and gives the rows (images) of its own rank: inputs are gathered, outputs are sent
        back to the ranks that their images came from; backward goes the other way round (Krizhevsky
        2014, arXiv 1404.5997, scheme (a)). With k ranks, b images on each, n numbers in and m out,
        a rank sends 2 (k - 1) b (n + m / k) numbers; images have no gradient to send back.
        """
        operator, ranks = self.operators[number], self.ranks
        if not split:
            scale = compute_scale(self.profile, self.images) * self.factor
            return Cell(
                operator.name,
                operator.forward_s * scale,
                operator.backward_s * scale,
                operator.parameter_bytes,
                gradient_bytes=operator.parameter_bytes,
            )
        share = -(-operator.outputs // ranks) / operator.outputs
        scale = compute_scale(self.profile, self.images * ranks * share) * self.factor
        inward = round(self.images * operator.input_bytes)
        outward = round(self.images * operator.output_bytes / ranks)
        back = self._border(f"regroup {operator.name}", outward)
        scatter = self._border(f"scatter {operator.name}", inward)
        return Cell(
            operator.name,
            operator.forward_s * scale,
            operator.backward_s * scale,
            round(operator.parameter_bytes * share),
            before_forward=(self._border(f"gather {operator.name}", inward),),
            after_forward=(back,),
            before_backward=(back,),
            after_backward=(scatter,) if number else (),
        )

    def _border(self, name: str, message_bytes: int) -> CellBorder:
        """Return a gather or a scatter: each rank sends all others a message."""
        timed = self.network.price("all_gather")(message_bytes) if message_bytes > 0 else NOTHING
        return CellBorder(name, (self.ranks - 1) * message_bytes, timed)


NOTHING = Timed(0.0, 0.0)


def broadcast(network: Network, size_bytes: float) -> Timed:
    """Return what it takes until every rank has the buffer of one.

    Along a tree with gloo, else along a chain in pieces. Never measured: from the link of two
    ranks.
    """
    if size_bytes <= 0:
        return NOTHING
    link = network.between if network.nodes > 1 else network.inside
    rounds, wire_s = (network.ranks - 1).bit_length(), link.beta_s_per_byte * size_bytes
    if network.cluster.backend == "gloo":
        return Timed(link.alpha_s * rounds, wire_s * rounds)
    return Timed(link.alpha_s * (network.ranks - 1), wire_s)
