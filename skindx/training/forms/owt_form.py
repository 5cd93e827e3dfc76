"""One weird trick: convolutions data-parallel, wide linear layers split over all ranks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from skindx.core.cost.cells import Cell, CellBorder
from skindx.core.cost.network import Timed
from skindx.core.cost.placing import Ground, RankAxis, cells_of, wide
from skindx.core.errors import UserError
from skindx.training.forms.parallel_form import ParallelForm, ParallelSettings

Scheme = Literal["a", "b", "c"]


_FORWARD, _BACKWARD, _UPDATE = 1, 5, 9
"""Times that a weight goes to or from memory: it is read again in each further round, forward and
backward, where its gradient is written and added to that of the rounds before; and in an update by
SGD with momentum (five), with the copies of its gradient into a message's buffer and back (four).
"""


def in_rounds(cell: Cell, axis: RankAxis, scheme: Scheme, update_s_per_byte: float = 0.0) -> Cell:
    """Return a cell of scheme (a) in rounds; computing hides what it can of its borders.

    With k ranks there are k rounds (section 4 of the paper). In scheme (b) one rank sends its
    images to all others, and gets all outputs of these, while the other links are idle; in (c) all
    ranks send a part of theirs.

    `update_s_per_byte` is what the update of a byte of weights takes: each further round passes all
    weights of the cell through memory, however few its images are.
    """
    if scheme == "a" or not cell.borders:
        return cell
    again_s = (axis.ranks - 1) * cell.weight_bytes * update_s_per_byte / _UPDATE
    forward_s = cell.forward_s + _FORWARD * again_s
    backward_s = cell.backward_s + _BACKWARD * again_s
    forward = _hidden(cell.before_forward, forward_s, cell.after_forward, axis, scheme)
    backward = _hidden(cell.before_backward, backward_s, cell.after_backward, axis, scheme)
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
    axis: RankAxis,
    scheme: Scheme,
) -> tuple[tuple[CellBorder, ...], tuple[CellBorder, ...]]:
    """Return the borders with the time in which nothing is computed.

    The first round's messages come before all computing and the last round's after it; all others
    travel beside it, on the same link.
    """
    rounds = axis.ranks
    whole_s = [_whole_s(border, axis, scheme) for border in (*before, *after)]
    link_s = sum(whole_s)
    waits_s = max(link_s - compute_s, link_s / rounds)
    share = waits_s / link_s if link_s else 1.0
    shown = [
        replace(border, timed=Timed(0.0, border_s * share))
        for border, border_s in zip((*before, *after), whole_s, strict=True)
    ]
    return tuple(shown[: len(before)]), tuple(shown[len(before) :])


def _whole_s(border: CellBorder, axis: RankAxis, scheme: Scheme) -> float:
    """Return what all rounds of a border take on the link."""
    rounds, timed = axis.ranks, border.timed
    if scheme == "c":
        return rounds * timed.latency_s + timed.wire_s
    if border.name.startswith("gather"):
        return rounds * axis.broadcast(border.sent_bytes / (rounds - 1)).alone_s
    return rounds * timed.alone_s  # all that one rank gets comes over its own link


class OwtForm(ParallelForm):
    """`engine.parallel.kind: owt` (Krizhevsky 2014, arXiv 1404.5997)."""

    name: ClassVar[str] = "owt"
    searched: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"scheme": "b"}, {"scheme": "c"})

    def cells(self, ground: Ground, update_s_per_byte: float) -> Sequence[Cell]:
        """Split what is wide. Raises UserError where nothing is."""
        least = self.options.get("min_weights", "auto")
        degrees = wide(ground, None if least == "auto" else int(least))
        if max(degrees) == 1:
            raise UserError(
                f"owt splits wide linear layers, and {ground.profile.name} has none whose gradient "
                f"is more than what goes in and out of it for {ground.batch} images."
            )
        scheme, axis = self.options.get("scheme", "a"), ground.axis(ground.ranks)
        cells = cells_of(ground, degrees)
        return [
            in_rounds(cell, axis, scheme, update_s_per_byte) if degree > 1 else cell
            for cell, degree in zip(cells, degrees, strict=True)
        ]

    def more_bytes(self, ground: Ground, cells: Sequence[Cell]) -> float:
        """Count the inputs that come from the other ranks of a group."""
        return gathered_bytes(ground, cells)


def gathered_bytes(ground: Ground, cells: Sequence[Cell]) -> float:
    """Return the inputs of split operators for an image of each other rank of their group."""
    return sum(
        (cell.gradient_axis - 1) * operator.input_bytes
        for cell, operator in zip(cells, ground.operators, strict=True)
    )


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

    in_groups: ClassVar[bool] = False
    price: ClassVar[type[ParallelForm] | None] = OwtForm
    changes_network: ClassVar[str] = "skindx.training.methods.sharding.wide_layers:split_network"
