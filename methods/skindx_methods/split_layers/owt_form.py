"""One weird trick: convolutions data-parallel, wide linear layers split over all ranks."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from skindx.comm.fused import FusedSettings
from skindx.core.cost.pricing import Load, Network, StepSchedule, Strategy, Timed
from skindx.core.cost.profile import Profile, ProfiledLayer
from skindx.core.errors import UserError
from skindx.training.config.parallel_form import ParallelSettings
from skindx_methods.plan.cluster import UNMEASURED
from skindx_methods.plan.profiles import compute_scale
from skindx_methods.split_layers.cells import Cell, CellBorder, chain_of

# What a network's layers take on each rank where the wide linear ones are split over all ranks.

_BY_CHANNEL = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "BatchNormAct2d", "SyncBatchNorm")
"""Layers that treat each channel by itself; they are split like the layer before them."""


@dataclass(frozen=True)
class Operator:
    """A layer with weights, and all behind it that has none; bytes are those of one image."""

    name: str
    splits: bool
    """Whether it is a plain linear layer or convolution, whose output channels can be split."""
    forward_s: float
    """Time at the profile's batch on one rank."""
    backward_s: float
    parameter_bytes: int
    weights: int
    """Numbers of its weight matrix alone, without what else it has."""
    outputs: int
    """Channels or features; 0: not known, and so it cannot be split."""
    input_bytes: float
    """Size of its input; 0: not known."""
    output_bytes: float
    """Output of the layer itself."""
    passed_bytes: float
    """Output after activation and pooling, which the next operator receives."""


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
    """Set each operator's missing input size to the output size of the one before."""
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
    """Images that one rank processes in one piece of its batch."""
    factor: float = 1.0
    """Learnt correction factor of all compute times."""
    pieces: int = 1
    """Number of pieces of a step's batch."""

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """Operators in forward order."""
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
    if network.backend == "gloo":
        return Timed(link.alpha_s * rounds, wire_s * rounds)
    return Timed(link.alpha_s * (network.ranks - 1), wire_s)


Scheme = Literal["a", "b", "c"]


_FORWARD, _BACKWARD, _UPDATE = 1, 5, 9
"""Times that a weight goes to or from memory: it is read again in each further round, forward and
backward, where its gradient is written and added to that of the rounds before; and in an update by
SGD with momentum (five), with the copies of its gradient into a message's buffer and back (four).
"""


def in_rounds(cell: Cell, network: Network, scheme: Scheme, update_s_per_byte: float = 0.0) -> Cell:
    """Return a cell of scheme (a) in rounds; computing hides what it can of its borders.

    With k ranks there are k rounds (section 4 of the paper). In scheme (b) one rank sends its
    images to all others, and gets all outputs of these, while the other links are idle; in (c) all
    ranks send a part of theirs.

    `update_s_per_byte` is what the update of a byte of weights takes: each further round passes all
    weights of the cell through memory, however few its images are.
    """
    if scheme == "a" or not cell.borders:
        return cell
    again_s = (network.ranks - 1) * cell.weight_bytes * update_s_per_byte / _UPDATE
    forward_s = cell.forward_s + _FORWARD * again_s
    backward_s = cell.backward_s + _BACKWARD * again_s
    forward = _hidden(cell.before_forward, forward_s, cell.after_forward, network, scheme)
    backward = _hidden(cell.before_backward, backward_s, cell.after_backward, network, scheme)
    return replace(
        cell,
        forward_s=forward_s,
        backward_s=backward_s,
        before_forward=forward[0],
        after_forward=forward[1],
        before_backward=backward[0],
        after_backward=backward[1],
    )


def _hidden(
    before: tuple[CellBorder, ...],
    compute_s: float,
    after: tuple[CellBorder, ...],
    network: Network,
    scheme: Scheme,
) -> tuple[tuple[CellBorder, ...], tuple[CellBorder, ...]]:
    """Return the borders with the time in which nothing is computed.

    The first round's messages come before all computing and the last round's after it; all others
    travel beside it, on the same link.
    """
    rounds = network.ranks
    whole_s = [_whole_s(border, network, scheme) for border in (*before, *after)]
    link_s = sum(whole_s)
    waits_s = max(link_s - compute_s, link_s / rounds)
    share = waits_s / link_s if link_s else 1.0
    shown = [
        replace(border, timed=Timed(0.0, border_s * share))
        for border, border_s in zip((*before, *after), whole_s, strict=True)
    ]
    return tuple(shown[: len(before)]), tuple(shown[len(before) :])


def _whole_s(border: CellBorder, network: Network, scheme: Scheme) -> float:
    """Return what all rounds of a border take on the link."""
    rounds, timed = network.ranks, border.timed
    if scheme == "c":
        return rounds * timed.latency_s + timed.wire_s
    if border.name.startswith("gather"):
        return rounds * broadcast(network, border.sent_bytes / (rounds - 1)).alone_s
    return rounds * timed.alone_s  # all that one rank gets comes over its own link


class OwtForm(Strategy):
    """`engine.parallel.kind: owt` (Krizhevsky 2014, arXiv 1404.5997)."""

    name: ClassVar[str] = "owt"
    parallel: ClassVar[bool] = True
    searched: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"scheme": "b"}, {"scheme": "c"})

    @property
    def lossy(self) -> bool:  # type: ignore[override]
        """16 bits round the sums of gradients on their way."""
        return self.options.get("wire") == "bf16"

    def fragment(self) -> dict[str, Any]:
        """Name the kind."""
        options = {key: value for key, value in self.options.items() if key != "wire"}
        wire = {"wire": self.options["wire"]} if "wire" in self.options else {}
        return {
            "exchange": {"kind": "fused", **wire},
            "engine": {"zero": 0, "parallel": {"kind": self.name, **options}},
        }

    def schedule(self, load: Load, network: Network) -> StepSchedule:
        """Return the cells of a step as a flow. Raises UserError where nothing is wide."""
        _, cells = self._placed(load, network)
        half, reduce = self.lossy, network.price("all_reduce")

        def summed(size_bytes: int) -> Timed:
            return reduce(size_bytes // 2 if half else size_bytes)

        return StepSchedule(
            flow=chain_of(cells, summed, _update_s_per_byte(load, cast=half)),
            spread=max(UNMEASURED, reduce.spread),
            local_spread=FusedSettings().local(load).spread,
            measured=False,
        )

    def memory_bytes(self, load: Load, network: Network, images: int) -> int:
        """Count inputs that come from other ranks, less the weights that these hold."""
        profile = load.profile
        ground, cells = self._placed(load, network)
        held = sum(cell.weight_bytes for cell in cells) / max(1, profile.parameter_bytes)
        gathered = sum(
            (ground.ranks - 1) * operator.input_bytes
            for cell, operator in zip(cells, ground.operators, strict=True)
            if cell.borders
        )
        saved = (1 - held) * (2 * profile.parameter_bytes + profile.optimizer_bytes)
        return round(images * gathered - saved)

    def _placed(self, load: Load, network: Network) -> tuple[Ground, Sequence[Cell]]:
        """Split what is wide. Raises UserError where nothing is, or for a single rank."""
        key = (self.label, network.nodes, network.per_node)
        if key not in load.memo:
            ground = Ground(load.profile, network, load.images, load.factor, load.pieces)
            load.memo[key] = (ground, self._cells(ground, _update_s_per_byte(load)))
        result: tuple[Ground, Sequence[Cell]] = load.memo[key]
        return result

    def _cells(self, ground: Ground, update_s_per_byte: float) -> Sequence[Cell]:
        if ground.ranks < 2:
            raise UserError(
                "owt splits layers over several ranks, but there is only one rank; use at least "
                "2 ranks."
            )
        least = self.options.get("min_weights", "auto")
        wide = ground.wide(None if least == "auto" else int(least))
        if not any(wide):
            raise UserError(
                f"owt does not help {ground.profile.name}, because no linear layer has a gradient "
                f"larger than its inputs and outputs for {ground.batch} images; choose another "
                "strategy."
            )
        scheme = self.options.get("scheme", "a")
        cells = (ground.cell(number, split=split) for number, split in enumerate(wide))
        return [in_rounds(cell, ground.network, scheme, update_s_per_byte) for cell in cells]


def _update_s_per_byte(load: Load, *, cast: bool = False) -> float:
    """Return what a byte of weights takes: the update, and copies into the gradients' buffer.

    With `cast` its gradient is made 16 bits and back.
    """
    local_s = FusedSettings().local(load).base_s + (load.cast().base_s if cast else 0.0)
    return (load.trace.update_s + local_s) / max(1, load.profile.parameter_bytes)


class OwtSettings(ParallelSettings):
    """One weird trick (Krizhevsky 2014, arXiv 1404.5997): wide linear layers are split over ranks.

    Everything else stays data-parallel. A layer counts as linear when an image passes it once: a
    linear layer on pooled features, or a convolution as large as its map.
    """

    kind: Literal["owt"] = "owt"
    min_weights: Annotated[int, Field(ge=1, le=10**12)] | Literal["auto"] = "auto"
    """Split layers with at least so many weights; auto: those whose gradients would be more bytes
    than what goes in and out of them for a whole batch."""
    scheme: Literal["a", "b", "c"] = "a"
    """How the batch meets a split layer (section 4 of the paper): a: all at once; b: one rank's
    images after the other; c: a part of each rank's images after the other. In b and c the next
    images are sent while the last are computed."""

    price: ClassVar[type[Strategy] | None] = OwtForm
    changes_network: ClassVar[str] = "skindx_methods.split_layers.wide_layers:split_network"
