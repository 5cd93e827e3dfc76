"""Three-dimensional tensor parallelism: linear layers on a cube of ranks."""

from collections.abc import Sequence
from typing import ClassVar

from skindx.errors import UserError
from skindx.planning.parallel.cells import Cell
from skindx.planning.parallel.cube import cube_cells, on_cube, side_of
from skindx.planning.parallel.placing import Ground
from skindx.planning.strategies.parallel import Placed


class Tensor3d(Placed):
    """`engine.parallel.kind: tensor3d` (Bian et al. 2021, arXiv 2105.14450)."""

    name: ClassVar[str] = "tensor3d"

    def cells(self, ground: Ground, own_s_per_byte: float) -> Sequence[Cell]:
        """Place all linear layers that fit. Raises UserError where none does, or for no cube."""
        side = self._side(ground)
        if not any(on_cube(own, side) for own in ground.operators):
            raise UserError(
                f"tensor3d splits linear layers whose widths are multiples of {side**2}, and "
                f"{ground.profile.name} has none."
            )
        return cube_cells(ground, side, gather_again=self._again)

    def more_bytes(self, ground: Ground, cells: Sequence[Cell]) -> float:
        """Count the gathered inputs that are kept for backward."""
        side = self._side(ground)
        if self._again:
            return 0.0
        return (side - 1) * sum(own.input_bytes for own in ground.operators if on_cube(own, side))

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
