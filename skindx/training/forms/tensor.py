"""One-dimensional tensor parallelism: attention and MLPs, split over groups of ranks.

The first product of a block is split by its outputs and the second by its inputs, so that nothing
is sent between the two, and what comes out is summed.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, Literal

from pydantic import Field

from skindx.core.cost.cells import Cell, CellBorder
from skindx.core.cost.placing import Ground, Operator, RankAxis, border
from skindx.core.errors import UserError
from skindx.training.forms.parallel_form import ParallelForm, ParallelSettings, PlacedForm

_BLOCKS = {("qkv", "proj"): 3, ("fc1", "fc2"): 1}
"""Names of the two products of a block -> outputs of the first for each input of the second."""


def pairs_of(operators: Sequence[Operator], ranks: int) -> list[tuple[int, int]]:
    """Return the places of the two products of each block that splits into `ranks` equal parts.

    Blocks are known by the names that timm gives their layers.
    """
    result = []
    linear = [number for number, operator in enumerate(operators) if operator.kind == "linear"]
    for first, second in pairwise(linear):
        (block, _, one), (other, _, two) = (
            operators[number].name.rpartition(".") for number in (first, second)
        )
        times, taken = _BLOCKS.get((one, two)), operators[second].inputs
        alike = block == other and times and operators[first].outputs == times * taken
        if alike and taken and taken % ranks == 0:
            result.append((first, second))
    return result


def tensor_cells(ground: Ground, ranks: int) -> tuple[Cell, ...]:
    """Return all operators with the blocks split over groups of `ranks` neighbours.

    A group works on the images of all its ranks, which are gathered where they enter the network:
    whatever is in no block, each of them computes for all of these. A rank sends 2 (k - 1) / k of
    what a block gives in forward, and as much of what it takes in backward.
    """
    pairs = pairs_of(ground.operators, ranks)
    firsts, seconds = {first for first, _ in pairs}, {second for _, second in pairs}
    axis, images, last = ground.axis(ranks), ground.images * ranks, ground.operators[-1]
    images_in = border("gather images", axis, "gathered", _images_bytes(ground))
    size_bytes = round(ground.images * last.output_bytes)
    gradients_in = border("gather gradients of outputs", axis, "gathered", size_bytes)
    cells = []
    for number, operator in enumerate(ground.operators):
        split = number in firsts or number in seconds
        scale = ground.scale(ground.images if split else images)
        weights = operator.parameter_bytes
        if split:  # the second product's bias is whole
            rest = weights - 4 * operator.weights if number in seconds else 0
            weights = (weights - rest) // ranks + rest
        summed = _sum(f"sum {operator.name}", axis, round(images * operator.output_bytes))
        above = _sum(f"sum above {operator.name}", axis, round(images * operator.input_bytes))
        cells.append(
            Cell(
                name=operator.name,
                forward_s=operator.forward_s * scale,
                backward_s=operator.backward_s * scale,
                weight_bytes=weights,
                gradient_axis=ranks,
                gradient_bytes=weights if ranks < ground.ranks else 0,
                before_forward=() if number else (images_in,),
                after_forward=(summed,) if number in seconds else (),
                before_backward=(gradients_in,) if operator is last else (),
                after_backward=(above,) if number in firsts and number else (),
            )
        )
    return tuple(cells)


def _images_bytes(ground: Ground) -> int:
    """Return the bytes of a rank's images: three of a pixel, or what the first layer takes."""
    side = ground.profile.size
    image_bytes = 3 * side * side if side else ground.operators[0].input_bytes
    return round(ground.images * image_bytes)


def _sum(name: str, axis: RankAxis, size_bytes: int) -> CellBorder:
    sent = round(2 * (axis.ranks - 1) / axis.ranks * size_bytes)
    return CellBorder(name, f"{axis.ranks} neighbours", sent, axis.all_reduce(size_bytes))


class TensorForm(PlacedForm):
    """`engine.parallel.kind: tensor` (Megatron-LM: Shoeybi et al. 2019, arXiv 1909.08053)."""

    name: ClassVar[str] = "tensor"
    searched: ClassVar[tuple[dict[str, Any], ...]] = tuple({"size": size} for size in (2, 4, 8))

    def cells(self, ground: Ground, update_s_per_byte: float) -> Sequence[Cell]:
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
        whole = (
            operator for number, operator in enumerate(ground.operators) if number not in columns
        )
        return (split - 1) * sum(operator.kept_bytes for operator in whole)

    def _split(self, ground: Ground) -> int:
        """Return the ranks of a group."""
        split = int(self.options.get("size", 2))
        if split < 2 or ground.ranks % split:
            raise UserError(
                f"tensor needs groups of two ranks or more that divide the {ground.ranks} ranks, "
                f"not of {split}."
            )
        return split


class TensorSettings(ParallelSettings):
    """Attention and MLPs of transformers are split over groups of ranks.

    Megatron-LM (Shoeybi et al. 2019, arXiv 1909.08053, section 3): each rank of a group computes
    some heads and some hidden units for the images of the whole group.
    """

    kind: Literal["tensor"] = "tensor"
    size: int = Field(2, ge=2, le=4096)
    """Ranks of a group, which follow each other; the number of ranks is a multiple of it."""

    by_peers: ClassVar[bool] = True
    price: ClassVar[type[ParallelForm] | None] = TensorForm

    def group_size(self, ranks: int) -> int:
        """Return its size. Raises UserError."""
        return self._group_of(self.size, ranks, f"size={self.size}")

    @property
    def together(self) -> int:
        """A group sees the images of all its ranks."""
        return self.size
