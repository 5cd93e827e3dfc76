"""One weird trick: convolutions data-parallel, wide linear layers split over all ranks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from skindx.comm.fused import FusedSettings
from skindx.core.cost.cells import Cell, CellBorder, chain_of
from skindx.core.cost.network import UNMEASURED, Network, Timed
from skindx.core.cost.pricing import Load, Strategy
from skindx.core.cost.step import StepSchedule
from skindx.core.errors import UserError
from skindx.training.forms.owt_cells import Ground, broadcast
from skindx.training.forms.parallel_form import ParallelSettings

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
            raise UserError("owt shares layers out over ranks, and there is only one.")
        least = self.options.get("min_weights", "auto")
        wide = ground.wide(None if least == "auto" else int(least))
        if not any(wide):
            raise UserError(
                f"owt splits wide linear layers, and {ground.profile.name} has none whose gradient "
                f"is more than what goes in and out of it for {ground.batch} images."
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
    changes_network: ClassVar[str] = "skindx.training.methods.sharding.wide_layers:split_network"
