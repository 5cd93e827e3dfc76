"""Attention and MLPs of transformers, split over groups of ranks.

The first product of a block is split by its outputs and the second by its inputs, so that nothing
is sent between the two, and what comes out is summed (Megatron-LM: Shoeybi et al. 2019, arXiv
1909.08053).
"""

from collections.abc import Sequence
from itertools import pairwise

from skindx.core.cost.cells import Border, Cell
from skindx.core.cost.placing import Axis, Ground, Operator

_BLOCKS = {("qkv", "proj"): 3, ("fc1", "fc2"): 1}
"""Names of the two products of a block -> outputs of the first for each input of the second."""


def pairs_of(operators: Sequence[Operator], ranks: int) -> list[tuple[int, int]]:
    """Return the places of the two products of each block that splits into `ranks` equal parts.

    Blocks are known by the names that timm gives their layers.
    """
    found = []
    linear = [number for number, own in enumerate(operators) if own.kind == "linear"]
    for first, second in pairwise(linear):
        (block, _, one), (other, _, two) = (
            operators[number].name.rpartition(".") for number in (first, second)
        )
        times, taken = _BLOCKS.get((one, two)), operators[second].inputs
        alike = block == other and times and operators[first].outputs == times * taken
        if alike and taken and taken % ranks == 0:
            found.append((first, second))
    return found


def tensor_cells(ground: Ground, ranks: int) -> tuple[Cell, ...]:
    """Return all operators with the blocks split over groups of `ranks` neighbours.

    A group works on the images of all its ranks, which are gathered where they enter the network:
    whatever is in no block, each of them computes for all of these. A rank sends 2 (k - 1) / k of
    what a block gives in forward, and as much of what it takes in backward.
    """
    pairs = pairs_of(ground.operators, ranks)
    firsts, seconds = {first for first, _ in pairs}, {second for _, second in pairs}
    axis, images = ground.axis(ranks), ground.images * ranks
    cells = []
    for number, own in enumerate(ground.operators):
        split = number in firsts or number in seconds
        scale = ground.scale(ground.images if split else images)
        weights = own.parameter_bytes
        if split:  # the second product's bias is whole
            rest = weights - 4 * own.weights if number in seconds else 0
            weights = (weights - rest) // ranks + rest
        summed = _sum(f"sum {own.name}", axis, round(images * own.output_bytes))
        above = _sum(f"sum above {own.name}", axis, round(images * own.input_bytes))
        ends = number == len(ground.operators) - 1
        cells.append(
            Cell(
                name=own.name,
                forward_s=own.forward_s * scale,
                backward_s=own.backward_s * scale,
                weight_bytes=weights,
                gradient_axis=ranks,
                gradient_bytes=weights if ranks < ground.ranks else 0,
                before_forward=() if number else (_gather("images", axis, _images_bytes(ground)),),
                after_forward=(summed,) if number in seconds else (),
                before_backward=(
                    (
                        _gather(
                            "gradients of outputs", axis, round(ground.images * own.output_bytes)
                        ),
                    )
                    if ends
                    else ()
                ),
                after_backward=(above,) if number in firsts and number else (),
            )
        )
    return tuple(cells)


def _images_bytes(ground: Ground) -> int:
    """Return the bytes of a rank's images: three of a pixel, or what the first layer takes."""
    side = ground.profile.size
    image_bytes = 3 * side * side if side else ground.operators[0].input_bytes
    return round(ground.images * image_bytes)


def _sum(name: str, axis: Axis, size_bytes: int) -> Border:
    sent = round(2 * (axis.ranks - 1) / axis.ranks * size_bytes)
    return Border(name, f"{axis.ranks} neighbours", sent, axis.all_reduce(size_bytes))


def _gather(what: str, axis: Axis, own_bytes: int) -> Border:
    sent = (axis.ranks - 1) * own_bytes
    return Border(f"gather {what}", "gathered", sent, axis.all_gather(own_bytes))
