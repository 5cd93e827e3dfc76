"""One weird trick: convolutions data-parallel, wide linear layers split over all ranks."""

from collections.abc import Sequence
from typing import Any, ClassVar

from skindx.core.cost.cells import Cell
from skindx.core.cost.placing import Ground, cells_of, wide
from skindx.core.errors import UserError
from skindx.plan.parallel.rounds import in_rounds
from skindx.plan.strategies.parallel import Placed


class Owt(Placed):
    """`engine.parallel.kind: owt` (Krizhevsky 2014, arXiv 1404.5997)."""

    name: ClassVar[str] = "owt"
    searched: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"scheme": "b"}, {"scheme": "c"})

    def cells(self, ground: Ground, own_s_per_byte: float) -> Sequence[Cell]:
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
            in_rounds(cell, axis, scheme, own_s_per_byte) if degree > 1 else cell
            for cell, degree in zip(cells, degrees, strict=True)
        ]

    def more_bytes(self, ground: Ground, cells: Sequence[Cell]) -> float:
        """Count the inputs that come from the other ranks of a group."""
        return gathered_bytes(ground, cells)


def gathered_bytes(ground: Ground, cells: Sequence[Cell]) -> float:
    """Return the inputs of split operators for an image of each other rank of their group."""
    return sum(
        (cell.gradient_axis - 1) * own.input_bytes
        for cell, own in zip(cells, ground.operators, strict=True)
    )
