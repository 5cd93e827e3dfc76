"""Operators of a network on axes of ranks: what is split, and what a collective takes there."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from skindx.core.cost.cells import Cell, CellBorder
from skindx.core.cost.network import UNMEASURED, Network, Timed
from skindx.core.cost.profile import Profile, ProfiledLayer, compute_scale


@dataclass(frozen=True)
class RankAxis:
    """Ranks `stride` apart. All groups of an axis send at once, and share the links of a node."""

    network: Network
    """Of the ranks of one group."""
    sharing: int
    """Groups that send over the same node's link."""

    @property
    def ranks(self) -> int:
        return self.network.ranks

    @property
    def measured(self) -> bool:
        """The collectives were measured among as many ranks of as many nodes."""
        return self.ranks == 1 or self.network.price("all_gather").measured

    @property
    def spread(self) -> float:
        """How sure a collective is: standard deviation over the mean."""
        if self.ranks == 1:
            return 0.0
        known = self.network.price("all_gather").spread
        return known if self.sharing == 1 else max(known, UNMEASURED)

    def all_gather(self, message_bytes: float) -> Timed:
        """Every rank gets the message of every other rank: (P - 1) messages come in.

        A reduce-scatter is its mirror: every rank sends each other one its part, and sums.
        """
        return self._shared("all_gather", message_bytes)

    def all_reduce(self, size_bytes: float) -> Timed:
        """Every rank gets the sum of a buffer."""
        return self._shared("all_reduce", size_bytes)

    def broadcast(self, size_bytes: float) -> Timed:
        """Every rank gets the buffer of one: along a tree with gloo, else along a chain in pieces.

        Never measured: from the link of two ranks.
        """
        if self.ranks == 1 or size_bytes <= 0:
            return Timed(0.0, 0.0)
        link = self.network.between if self.network.nodes > 1 else self.network.inside
        rounds = (self.ranks - 1).bit_length()
        gloo = self.network.cluster.backend == "gloo"
        wire_s = link.beta_s_per_byte * size_bytes * self.sharing
        return Timed(
            link.alpha_s * (rounds if gloo else self.ranks - 1), wire_s * (rounds if gloo else 1)
        )

    def _shared(self, collective: str, size_bytes: float) -> Timed:
        if self.ranks == 1 or size_bytes <= 0:
            return Timed(0.0, 0.0)
        timed = self.network.price(collective)(size_bytes)  # type: ignore[arg-type]
        return replace(timed, wire_s=timed.wire_s * self.sharing)


def axis_of(network: Network, ranks: int, stride: int = 1) -> RankAxis:
    """Return the axis on which `ranks` ranks lie `stride` apart, of neighbours that share nodes.

    Ranks are numbered node by node. Where a group leaves its node, as many groups as the node has
    ranks in different ones send over its link at the same time.
    """
    per_node = network.per_node
    if ranks == 1:
        return RankAxis(_part(network, 1, 1), 1)
    if stride * ranks <= per_node:  # inside a node
        return RankAxis(_part(network, 1, ranks), 1)
    here = max(1, per_node // stride)
    return RankAxis(_part(network, -(-ranks // here), here), max(1, per_node // here))


def _part(network: Network, nodes: int, per_node: int) -> Network:
    if (nodes, per_node) == (network.nodes, network.per_node):
        return network
    return Network(network.cluster, nodes, per_node)


OperatorKind = Literal["convolution", "linear", "other"]

_BY_CHANNEL = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "BatchNormAct2d", "SyncBatchNorm")
"""They work on each channel alone, and follow the layer before them."""


@dataclass(frozen=True)
class Operator:
    """A layer with weights, and all behind it that has none; bytes are those of one image."""

    name: str
    kind: OperatorKind
    forward_s: float
    """At the profile's batch, on one rank."""
    backward_s: float
    parameter_bytes: int
    weights: int
    """Numbers of its weight matrix alone, without what else it has."""
    outputs: int
    """Channels or features; 0: not known, and so it cannot be split."""
    inputs: int
    """Features of a linear layer's weight; 0 for all else."""
    groups: int
    input_bytes: float
    """0: not known."""
    output_bytes: float
    """Of the layer itself."""
    passed_bytes: float
    """Behind its activation and pooling: what the next operator gets."""
    kept_bytes: float
    """All that backward needs of it."""

    def share(self, ranks: int) -> float:
        """Return the part of its output channels that the first of some ranks computes."""
        return 1.0 if ranks == 1 else -(-self.outputs // ranks) / self.outputs

    def parameters(self, ranks: int) -> int:
        """Return the bytes of its weights on the first of some ranks that split its channels."""
        return round(self.parameter_bytes * self.share(ranks))

    def splits(self, ranks: int) -> bool:
        """Tell whether its output channels can be shared out: one for each rank or more."""
        known = self.kind != "other" and self.groups == 1 and self.input_bytes > 0
        return ranks == 1 or (known and self.outputs >= ranks)


def kind_of(layer: ProfiledLayer) -> OperatorKind:
    """Return what a layer is: the plain classes, as those derived from them may do otherwise."""
    if layer.operator == "Linear":
        return "linear"
    return "convolution" if layer.operator == "Conv2d" else "other"


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
    kind = kind_of(layer)
    weight = max(layer.shapes, key=len, default=())
    outputs = layer.outputs or (weight[0] if len(weight) > 1 and kind != "other" else 0)
    inputs = weight[1] if kind == "linear" and len(weight) == 2 else 0
    input_bytes = layer.input_bytes / batch
    if not input_bytes and inputs:  # as many positions come in as go out
        input_bytes = layer.activation_bytes / batch * inputs / outputs
    output_bytes = layer.activation_bytes / batch
    return Operator(
        name=layer.name,
        kind=kind,
        forward_s=layer.forward_s or 0.0,
        backward_s=layer.backward_s or 0.0,
        parameter_bytes=layer.parameter_bytes,
        weights=math.prod(weight) if weight else layer.parameter_bytes // 4 - outputs,
        outputs=outputs,
        inputs=inputs,
        groups=layer.groups,
        input_bytes=input_bytes,
        output_bytes=output_bytes,
        passed_bytes=output_bytes,
        kept_bytes=output_bytes,
    )


def _joined(first: Operator, second: Operator) -> Operator:
    return replace(
        first,
        forward_s=first.forward_s + second.forward_s,
        backward_s=first.backward_s + second.backward_s,
        parameter_bytes=first.parameter_bytes + second.parameter_bytes,
        # `Size` of a graph makes a few bytes for a whole batch, which are no activation.
        passed_bytes=second.passed_bytes if second.passed_bytes >= 4 else first.passed_bytes,
        kept_bytes=first.kept_bytes + second.kept_bytes,
    )


def _chained(result: Sequence[Operator]) -> Iterator[Operator]:
    """Fill in what goes in by what came out before, and the other way round."""
    for number, operator in enumerate(result):
        filled = operator
        if not operator.input_bytes and number:
            filled = replace(operator, input_bytes=result[number - 1].passed_bytes)
        if number + 1 < len(result) and result[number + 1].input_bytes:
            filled = replace(filled, passed_bytes=result[number + 1].input_bytes)
        yield filled


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

    @property
    def value_bytes(self) -> int:
        return 4 if self.profile.precision == "fp32" else 2

    def scale(self, images: float) -> float:
        """Return what the profile's times are multiplied by for so many images."""
        return compute_scale(self.profile, images) * self.factor

    @cached_property
    def _axes(self) -> dict[tuple[int, int], RankAxis]:
        return {}

    def axis(self, ranks: int, stride: int = 1) -> RankAxis:
        """Return the axis of so many ranks that lie `stride` apart."""
        key = (ranks, stride)
        if key not in self._axes:
            self._axes[key] = axis_of(self.network, ranks, stride)
        return self._axes[key]

    def summed(self, split: int, size_bytes: int) -> Timed:
        """Return what a sum over the ranks with the same weights takes; `split` hold others."""
        return self.axis(self.ranks // split, split).all_reduce(size_bytes)


def placed(ground: Ground, number: int, ranks: int) -> Cell:
    """Return an operator whose output channels are split over groups of `ranks` neighbours.

    It takes and gives the rows (images) of its own rank: inputs of the group are gathered, outputs
    are sent back to the ranks that their images came from; backward goes the other way round
    (Krizhevsky 2014, arXiv 1404.5997, scheme (a)). With k ranks, b images on each, n numbers in and
    m out, a rank sends 2 (k - 1) b (n + m / k) numbers; images have no gradient to send back.
    """
    operator, images = ground.operators[number], ground.images
    axis = ground.axis(ranks)
    scale = ground.scale(images * ranks * operator.share(ranks))
    inward = round(images * operator.input_bytes)
    outward = round(images * operator.output_bytes / ranks)
    name = operator.name
    word = f"{ranks} neighbours"
    gather = border(f"gather {name}", axis, word, inward)
    back = border(f"regroup {name}", axis, word, outward)
    scatter = border(f"scatter {name}", axis, word, inward)
    split = ranks > 1
    weights = operator.parameters(ranks)
    return Cell(
        name=name,
        forward_s=operator.forward_s * scale,
        backward_s=operator.backward_s * scale,
        weight_bytes=weights,
        gradient_axis=ranks,
        gradient_bytes=weights if ranks < ground.ranks else 0,
        before_forward=(gather,) if split else (),
        after_forward=(back,) if split else (),
        before_backward=(back,) if split else (),
        after_backward=(scatter,) if split and number else (),
    )


def wide(ground: Ground, min_weights: int | None = None) -> tuple[int, ...]:
    """Return the degrees of one weird trick: wide linear layers over all ranks, all else at 1.

    Linear is what an image passes once. Wide are `min_weights` weights or more; without it those
    whose gradient has more numbers than what goes in and out of them for a whole batch.
    """
    return tuple(
        ground.ranks if _is_wide(ground, operator, min_weights) else 1
        for operator in ground.operators
    )


def _is_wide(ground: Ground, operator: Operator, min_weights: int | None) -> bool:
    value = ground.value_bytes
    if (
        not operator.splits(ground.ranks)
        or round(operator.output_bytes / value) != operator.outputs
    ):
        return False
    values = operator.input_bytes / value + operator.outputs // ground.ranks
    least = ground.batch * values if min_weights is None else min_weights
    return operator.weights >= least


def border(name: str, axis: RankAxis, word: str, message_bytes: int) -> CellBorder:
    """Return a gather, a scatter or a trade: each rank sends all others of an axis a message."""
    timed = axis.all_gather(message_bytes)
    return CellBorder(name, word, (axis.ranks - 1) * message_bytes, timed)


def cells_of(ground: Ground, degrees: Sequence[int]) -> tuple[Cell, ...]:
    """Return all operators as the degrees place them."""
    return tuple(placed(ground, number, ranks) for number, ranks in enumerate(degrees))
