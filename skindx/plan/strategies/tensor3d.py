"""Three-dimensional tensor parallelism: linear layers on a cube of ranks."""

from collections.abc import Sequence
from typing import Any, ClassVar

from skindx.core.cost.cells import Cell, Chain
from skindx.core.cost.events import Flow
from skindx.core.cost.placing import Ground
from skindx.core.errors import UserError
from skindx.plan.parallel.cube import blocks_on_cubes, cube_cells, side_of
from skindx.plan.strategies.parallel import Placed


class Tensor3d(Placed):
    """`engine.parallel.kind: tensor3d` (Bian et al. 2021, arXiv 2105.14450)."""

    name: ClassVar[str] = "tensor3d"

    def cells(self, ground: Ground, own_s_per_byte: float) -> Sequence[Cell]:
        """Place all blocks that fit. Raises UserError where none does, or for no cube."""
        side = self._side(ground)
        if not blocks_on_cubes(ground.operators, side):
            raise UserError(
                f"tensor3d splits attention and MLPs whose widths are multiples of {side**2}, and "
                f"{ground.profile.name} has none."
            )
        return cube_cells(ground, side, gather_again=self._again)

    def more_bytes(self, ground: Ground, cells: Sequence[Cell]) -> float:
        """Count the gathered inputs that are kept for backward."""
        side = self._side(ground)
        if self._again:
            return 0.0
        pairs = blocks_on_cubes(ground.operators, side)
        places = (place for pair in pairs for place in pair)
        return (side - 1) * sum(ground.operators[place].input_bytes for place in places)

    def found(self, flows: Sequence[Flow]) -> dict[str, Any]:
        """Name the side."""
        axes = [
            cell.gradient_axis for flow in flows if isinstance(flow, Chain) for cell in flow.cells
        ]
        return {"side": side_of(max(axes))}

    @property
    def _again(self) -> bool:
        return bool(self.options.get("gather_again", False))

    def _side(self, ground: Ground) -> int:
        """Return q: the side given, else that of all ranks as a cube."""
        side = int(self.options.get("side", 0)) or side_of(ground.ranks)
        if side < 2 or ground.ranks % side**3:
            raise UserError(
                f"tensor3d needs a cube of ranks (8, 27, 64, ...), and {ground.ranks} ranks are "
                "none."
            )
        return side
