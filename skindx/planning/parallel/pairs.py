"""Pairs of linear layers, the first split by its outputs and the second by its inputs.

Nothing is sent between the two: the second works on the columns that the first has made, and its
outputs are summed (Megatron-LM: Shoeybi et al. 2019, arXiv 1909.08053).
"""

import itertools
from collections.abc import Sequence

from skindx.planning.parallel.axes import Axis
from skindx.planning.parallel.cells import Border, Cell
from skindx.planning.parallel.operators import Operator
from skindx.planning.parallel.placing import Ground


def pairs_of(operators: Sequence[Operator], ranks: int) -> list[tuple[int, int]]:
    """Return the places of the pairs: a linear layer, and the next one, which takes its outputs.

    Queries, keys and values of an attention are three outputs for each input of the next layer.
    Both widths are multiples of `ranks`.
    """
    linear = [number for number, own in enumerate(operators) if own.kind == "linear"]
    found, free = [], -1
    for first, second in itertools.pairwise(linear):
        made, taken = operators[first].outputs, operators[second].inputs
        fits = taken > 0 and made in (taken, 3 * taken) and taken % ranks == 0
        if first > free and fits:
            found.append((first, second))
            free = second
    return found


def tensor_cells(ground: Ground, ranks: int) -> tuple[Cell, ...]:
    """Return all operators with the pairs split over groups of `ranks` neighbours.

    A group works on the images of all its ranks: whatever is in no pair, each of them computes for
    all of these. A rank sends 2 (k - 1) / k of what a pair gives in forward and of what it takes in
    backward, by an all-reduce each.
    """
    pairs = pairs_of(ground.operators, ranks)
    firsts, seconds = {first for first, _ in pairs}, {second for _, second in pairs}
    axis = ground.axis(ranks)
    cells = []
    for number, own in enumerate(ground.operators):
        split = number in firsts or number in seconds
        scale = ground.scale(ground.images * (1 if split else ranks))
        weights = own.parameter_bytes // ranks if split else own.parameter_bytes
        images = ground.images * ranks
        summed = _sum(f"sum {own.name}", axis, round(images * own.output_bytes))
        above = _sum(f"sum above {own.name}", axis, round(images * own.input_bytes))
        cells.append(
            Cell(
                name=own.name,
                forward_s=own.forward_s * scale,
                backward_s=own.backward_s * scale,
                weight_bytes=weights,
                gradient_axis=ranks,
                gradient_bytes=weights if ranks < ground.ranks else 0,
                after_forward=(summed,) if number in seconds else (),
                after_backward=(above,) if number in firsts and number else (),
            )
        )
    return tuple(cells)


def _sum(name: str, axis: Axis, size_bytes: int) -> Border:
    sent = round(2 * (axis.ranks - 1) / axis.ranks * size_bytes)
    return Border(name, f"{axis.ranks} neighbours", sent, axis.all_reduce(size_bytes))
