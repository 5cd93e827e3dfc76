"""Three-dimensional tensor parallelism: linear layers on a cube of ranks.

P = q^3 ranks (i, j, l). X has its rows split over (i, j) and its columns over l, A its rows over l
and its columns over (j, i). Forward: X is gathered over j and A over i, and Y = X A is summed and
scattered over l. Backward: dY is gathered over l, dX scattered over j, dA over i. The next layer
swaps j and l back.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from skindx.core.cost.cells import Cell, Chain
from skindx.core.cost.events import Flow
from skindx.core.cost.placing import Ground, Operator, RankAxis, border
from skindx.core.errors import UserError
from skindx.training.forms.parallel_form import ParallelForm, ParallelSettings, PlacedForm
from skindx.training.forms.tensor import pairs_of


def side_of(ranks: int) -> int:
    """Return the q whose cube is `ranks`; 0 where there is none."""
    side = round(ranks ** (1 / 3))
    return side if side**3 == ranks else 0


def blocks_on_cubes(operators: Sequence[Operator], side: int) -> list[tuple[int, int]]:
    """Return the places of the two products of each block whose widths split.

    What a block gives is filled up with zeros where it does not.
    """
    result = pairs_of(operators, side * side)
    return [(first, second) for first, second in result if operators[first].inputs % side == 0]


def cube_cells(ground: Ground, side: int, *, gather_again: bool) -> tuple[Cell, ...]:
    """Return all operators with attention and MLPs on cubes of side^3 neighbours.

    For a product a rank sends (q - 1) / q^3 of X, A and Y each, twice: 6 (q - 1) / q^3 of a matrix
    where they are alike, and 8 when X and A are gathered again in backward instead of kept. Where a
    block begins and ends, ranks trade rows for columns: (q - 1) / q of their own, and as much in
    backward. What is in no block is computed on the images of each rank, and its gradients are
    summed over all ranks.
    """
    pairs = blocks_on_cubes(ground.operators, side)
    firsts, seconds = {first for first, _ in pairs}, {second for _, second in pairs}
    over_i, over_j, over_l = (ground.axis(side, side**power) for power in (2, 1, 0))
    cells = []
    for number, operator in enumerate(ground.operators):
        if number in firsts:
            axes = over_i, over_j, over_l
            cells.append(_on_cube(ground, number, axes, gather_again, enters=True))
        elif number in seconds:
            axes = over_i, over_l, over_j  # the layout that the first one leaves
            cells.append(_on_cube(ground, number, axes, gather_again, enters=False))
        else:
            scale = ground.scale(ground.images)
            cells.append(
                Cell(
                    name=operator.name,
                    forward_s=operator.forward_s * scale,
                    backward_s=operator.backward_s * scale,
                    weight_bytes=operator.parameter_bytes,
                    gradient_bytes=operator.parameter_bytes,
                )
            )
    return tuple(cells)


def _on_cube(
    ground: Ground,
    number: int,
    axes: tuple[RankAxis, RankAxis, RankAxis],
    again: bool,
    *,
    enters: bool,
) -> Cell:
    operator, ranks = ground.operators[number], axes[0].ranks ** 3
    over_i, over_j, over_l = axes
    # Of a rank: X and Y have a part of ranks x images rows, so that ranks cancel out.
    x_bytes = round(ground.images * operator.input_bytes)
    y_bytes = round(ground.images * operator.output_bytes)
    a_bytes = operator.parameter_bytes // ranks
    gather_x = border(f"gather X {operator.name}", over_j, "j", x_bytes)
    gather_a = border(f"gather A {operator.name}", over_i, "i", a_bytes)
    gather_y = border(f"gather dY {operator.name}", over_l, "l", y_bytes)
    # Along l of the first product, which is j of the second.
    trade = (
        border(f"trade X {operator.name}", over_l, "traded", x_bytes // over_l.ranks)
        if enters
        else border(f"trade Y {operator.name}", over_j, "traded", y_bytes // over_j.ranks)
    )
    scale = ground.scale(ground.images)
    return Cell(
        name=operator.name,
        forward_s=operator.forward_s * scale,
        backward_s=operator.backward_s * scale,
        weight_bytes=a_bytes,
        gradient_axis=ranks,
        gradient_bytes=a_bytes if ranks < ground.ranks else 0,
        before_forward=(*((trade,) if enters else ()), gather_x, gather_a),
        after_forward=(
            border(f"scatter Y {operator.name}", over_l, "l", y_bytes),
            *(() if enters else (trade,)),
        ),
        before_backward=(
            *(() if enters else (trade,)),
            gather_y,
            *((gather_x, gather_a) if again else ()),
        ),
        after_backward=(
            # Without gradients of its inputs a network's first layer sends nothing back.
            *((border(f"scatter dX {operator.name}", over_j, "j", x_bytes),) if number else ()),
            border(f"scatter dA {operator.name}", over_i, "i", a_bytes),
            *((trade,) if enters and number else ()),
        ),
    )


class Tensor3dForm(PlacedForm):
    """`engine.parallel.kind: tensor3d` (Bian et al. 2021, arXiv 2105.14450)."""

    name: ClassVar[str] = "tensor3d"

    def cells(self, ground: Ground, update_s_per_byte: float) -> Sequence[Cell]:
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

    def settings_of(self, flows: Sequence[Flow]) -> dict[str, Any]:
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


class Tensor3dSettings(ParallelSettings):
    """Attention and MLPs of transformers, and MLP heads, on cubes of ranks.

    Bian et al. 2021, arXiv 2105.14450: each rank of a cube holds an equal part of both matrices of
    a product, and of what comes out.
    """

    kind: Literal["tensor3d"] = "tensor3d"
    side: int = Field(2, ge=2, le=8)
    """Of a cube, whose side^3 ranks follow each other; the number of ranks is a multiple of it."""
    gather_again: bool = False
    """Gather the parts of both matrices again in the backward pass, instead of keeping them."""

    price: ClassVar[type[ParallelForm] | None] = Tensor3dForm

    def group_size(self, ranks: int) -> int:
        """Return the ranks of a cube. Raises UserError."""
        size = self.side**3
        what = f"side={self.side} makes cubes of {size} ranks, which"
        return self._group_of(size, ranks, what)
