"""Linear layers on a cube of ranks (Bian et al. 2021, arXiv 2105.14450).

P = q^3 ranks (i, j, l). X has its rows split over (i, j) and its columns over l, A its rows over l
and its columns over (j, i). Forward: X is gathered over j and A over i, and Y = X A is summed and
scattered over l. Backward: dY is gathered over l, dX scattered over j, dA over i. The next layer
swaps j and l.
"""

from skindx.planning.parallel.axes import Axis
from skindx.planning.parallel.cells import Border, Cell
from skindx.planning.parallel.operators import Operator
from skindx.planning.parallel.placing import Ground


def side_of(ranks: int) -> int:
    """Return the q whose cube is `ranks`; 0 where there is none."""
    side = round(ranks ** (1 / 3))
    return side if side**3 == ranks else 0


def on_cube(own: Operator, side: int) -> bool:
    """Tell whether an operator is a linear layer whose widths split."""
    split = side * side
    return (
        own.kind == "linear" and own.inputs > 0 and not (own.inputs % split or own.outputs % split)
    )


def cube_cells(ground: Ground, side: int, *, gather_again: bool) -> tuple[Cell, ...]:
    """Return all operators with the linear layers on cubes of side^3 neighbours.

    A rank sends (q - 1) / q^3 of X, A and Y each, twice: 6 (q - 1) / q^3 of a matrix where they are
    alike, and 8 when X and A are gathered again in backward instead of kept. What is no such layer
    is computed on the images of each rank, and its gradients are summed over all ranks.
    """
    axes = ground.axis(side, side * side), ground.axis(side, side), ground.axis(side)
    cells = []
    for number, own in enumerate(ground.operators):
        if on_cube(own, side):
            cells.append(_on_cube(ground, number, side, axes, gather_again))
            axes = axes[0], axes[2], axes[1]  # the layout that the next one finds
            continue
        scale = ground.scale(ground.images)
        cells.append(
            Cell(
                name=own.name,
                forward_s=own.forward_s * scale,
                backward_s=own.backward_s * scale,
                weight_bytes=own.parameter_bytes,
                gradient_bytes=own.parameter_bytes,
            )
        )
    return tuple(cells)


def _on_cube(
    ground: Ground, number: int, side: int, axes: tuple[Axis, Axis, Axis], again: bool
) -> Cell:
    own, ranks = ground.operators[number], side**3
    over_i, over_j, over_l = axes
    # Of a rank: X and Y have a part of ranks x images rows, so that ranks cancel out.
    x_bytes = round(ground.images * own.input_bytes)
    y_bytes = round(ground.images * own.output_bytes)
    a_bytes = own.parameter_bytes // ranks
    gather_x = _gather(f"gather X {own.name}", over_j, "j", x_bytes)
    gather_a = _gather(f"gather A {own.name}", over_i, "i", a_bytes)
    gather_y = _gather(f"gather dY {own.name}", over_l, "l", y_bytes)
    scale = ground.scale(ground.images)
    return Cell(
        name=own.name,
        forward_s=own.forward_s * scale,
        backward_s=own.backward_s * scale,
        weight_bytes=a_bytes,
        gradient_axis=ranks,
        gradient_bytes=a_bytes if ranks < ground.ranks else 0,
        before_forward=(gather_x, gather_a),
        after_forward=(_scatter(f"scatter Y {own.name}", over_l, "l", y_bytes),),
        before_backward=(gather_y, *((gather_x, gather_a) if again else ())),
        after_backward=(
            *((_scatter(f"scatter dX {own.name}", over_j, "j", x_bytes),) if number else ()),
            _scatter(f"scatter dA {own.name}", over_i, "i", a_bytes),
        ),
    )


def _gather(name: str, axis: Axis, word: str, part_bytes: int) -> Border:
    return Border(name, word, (axis.ranks - 1) * part_bytes, axis.all_gather(part_bytes))


def _scatter(name: str, axis: Axis, word: str, part_bytes: int) -> Border:
    return Border(name, word, (axis.ranks - 1) * part_bytes, axis.reduce_scatter(part_bytes))
