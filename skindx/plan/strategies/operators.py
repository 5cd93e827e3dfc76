"""Each operator data-parallel or split over some ranks: the fastest placement that is found."""

from collections.abc import Sequence
from typing import Any, ClassVar

from skindx.core.cost.cells import Cell, Chain, MessageSeconds, cached, step_seconds
from skindx.core.cost.events import Flow
from skindx.core.cost.placing import Ground, cells_of, degrees_of, placed, wide
from skindx.plan.parallel.mcmc import PROPOSALS, Searched, search_placements
from skindx.plan.strategies.owt import gathered_bytes
from skindx.plan.strategies.parallel import Placed


class Operators(Placed):
    """`engine.parallel.kind: operators`: FlexFlow's search, over output channels.

    Jia et al. 2018, arXiv 1807.05358.
    """

    name: ClassVar[str] = "operators"

    def cells(self, ground: Ground, own_s_per_byte: float) -> Sequence[Cell]:
        """Take the degrees that are given, or search from data parallelism and from OWT."""
        if given := self.options.get("degrees"):
            names = [own.name for own in ground.operators]
            return cells_of(ground, [int(given.get(name, 1)) for name in names])
        return cells_of(ground, searched(ground, own_s_per_byte).degrees)

    def found(self, flows: Sequence[Flow]) -> dict[str, Any]:
        """Name the layers that are split; where members disagree on one, as the first has it."""
        degrees = {
            cell.name: cell.gradient_axis
            for flow in reversed(flows)
            if isinstance(flow, Chain)
            for cell in flow.cells
            if cell.gradient_axis > 1
        }
        return {"degrees": degrees} if degrees else {"kind": "data"}

    def more_bytes(self, ground: Ground, cells: Sequence[Cell]) -> float:
        """Count the inputs that come from the other ranks of a group."""
        return gathered_bytes(ground, cells)


def searched(ground: Ground, own_s_per_byte: float, proposals: int = PROPOSALS) -> Searched:
    """Return the fastest placement that is found, and what a step of it takes."""
    message_s = cached(lambda axis, size: ground.summed(axis, size).alone_s)
    cells = [
        {
            ranks: cell
            for ranks in degrees_of(ground, number)
            if _may_gain(cell := placed(ground, number, ranks), own, message_s, own_s_per_byte)
        }
        for number, own in enumerate(placed(ground, n, 1) for n in range(len(ground.operators)))
    ]
    choices = [tuple(own) for own in cells]

    def seconds_of(degrees: Sequence[int]) -> float:
        own = [cells[number][ranks] for number, ranks in enumerate(degrees)]
        return step_seconds(own, message_s, own_s_per_byte)

    owt = tuple(
        degree if degree in own else 1 for degree, own in zip(wide(ground), choices, strict=True)
    )
    starts = list(dict.fromkeys([(1,) * len(cells), owt]))
    return search_placements(starts, choices, seconds_of, proposals=proposals)


def _may_gain(cell: Cell, whole: Cell, message_s: MessageSeconds, own_s_per_byte: float) -> bool:
    """Tell whether a cell may be faster than the data-parallel one.

    Its borders and its slower computing stand in every step's way; all that it can save is the sum
    of the gradient and the update.
    """
    if cell.gradient_axis == 1:
        return True
    lost_s = cell.whole_forward_s + cell.take_s + cell.backward_s + cell.give_s
    lost_s -= whole.forward_s + whole.backward_s
    saved_s = message_s(1, whole.gradient_bytes)
    return lost_s < saved_s + own_s_per_byte * (whole.weight_bytes - cell.weight_bytes)
