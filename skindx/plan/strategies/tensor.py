"""One-dimensional tensor parallelism: attention and MLPs, split over groups of ranks."""

from collections.abc import Sequence
from typing import Any, ClassVar

from skindx.core.cost.cells import Cell
from skindx.core.cost.placing import Ground
from skindx.core.errors import UserError
from skindx.plan.parallel.pairs import pairs_of, tensor_cells
from skindx.plan.strategies.parallel import Placed


class Tensor(Placed):
    """`engine.parallel.kind: tensor` (Megatron-LM: Shoeybi et al. 2019, arXiv 1909.08053)."""

    name: ClassVar[str] = "tensor"
    searched: ClassVar[tuple[dict[str, Any], ...]] = tuple({"size": size} for size in (2, 4, 8))

    def cells(self, ground: Ground, own_s_per_byte: float) -> Sequence[Cell]:
        """Split all blocks over `size` neighbours. Raises UserError where there is none."""
        split = self._split(ground)
        if not pairs_of(ground.operators, split):
            raise UserError(
                f"tensor splits attention and MLPs whose widths are multiples of {split}, and "
                f"{ground.profile.name} has none."
            )
        return tensor_cells(ground, split)

    def more_bytes(self, ground: Ground, cells: Sequence[Cell]) -> float:
        """Count what is not split: every rank of a group keeps it for the images of all."""
        split = self._split(ground)
        columns = {first for first, _ in pairs_of(ground.operators, split)}
        whole = (own for number, own in enumerate(ground.operators) if number not in columns)
        return (split - 1) * sum(own.kept_bytes for own in whole)

    def _split(self, ground: Ground) -> int:
        """Return the ranks of a group."""
        split = int(self.options.get("size", 2))
        if split < 2 or ground.ranks % split:
            raise UserError(
                f"tensor needs groups of two ranks or more that divide the {ground.ranks} ranks, "
                f"not of {split}."
            )
        return split
