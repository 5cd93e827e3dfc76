"""Operators split by their output channels over neighbouring ranks, or data-parallel."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from skindx.planning.network import Network, Timed
from skindx.planning.parallel.axes import Axis, axis_of
from skindx.planning.parallel.cells import Border, Cell
from skindx.planning.parallel.operators import Operator, operators_of
from skindx.planning.profile import Profile
from skindx.planning.scaling import compute_scale
from skindx.planning.sharing import divisors


@dataclass(frozen=True)
class Ground:
    """Input of a placement: operators, ranks and the images of each."""

    profile: Profile
    network: Network
    images: int
    """Of a rank in a piece."""
    factor: float = 1.0
    """Of all computing, as it was learnt."""
    pieces: int = 1
    """Of a step."""

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """In forward order."""
        return operators_of(self.profile)

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.network.ranks

    @property
    def batch(self) -> int:
        """Images of all ranks in a step."""
        return self.images * self.ranks * self.pieces

    @property
    def value_bytes(self) -> int:
        """Of a number of an activation."""
        return 4 if self.profile.precision == "fp32" else 2

    def scale(self, images: float) -> float:
        """Return what the profile's times are multiplied by for so many images."""
        return compute_scale(self.profile, images) * self.factor

    @cached_property
    def _axes(self) -> dict[tuple[int, int], Axis]:
        return {}

    def axis(self, ranks: int, stride: int = 1) -> Axis:
        """Return the axis of so many ranks that lie `stride` apart."""
        key = (ranks, stride)
        if key not in self._axes:
            self._axes[key] = axis_of(self.network, ranks, stride)
        return self._axes[key]

    def summed(self, split: int, size_bytes: int) -> Timed:
        """Return what a sum over the ranks with the same weights takes; `split` hold others."""
        return self.axis(self.ranks // split, split).all_reduce(size_bytes)


def placed(ground: Ground, number: int, ranks: int) -> Cell:
    """Return an operator whose output channels are split over groups of `ranks` neighbours.

    It takes and gives the rows (images) of its own rank: inputs of the group are gathered, outputs
    are sent back to the ranks that their images came from; backward goes the other way round
    (Krizhevsky 2014, arXiv 1404.5997, scheme (a)). With k ranks, b images on each, n numbers in and
    m out, a rank sends 2 (k - 1) b (n + m / k) numbers; images have no gradient to send back.
    """
    own, images = ground.operators[number], ground.images
    axis = ground.axis(ranks)
    scale = ground.scale(images * ranks * own.share(ranks))
    inward = round(images * own.input_bytes)
    outward = round(images * own.output_bytes / ranks)
    name = own.name
    gather = _border(f"gather {name}", axis, inward, axis.all_gather(inward))
    back = _border(f"regroup {name}", axis, outward, axis.all_gather(outward))
    scatter = _border(f"scatter {name}", axis, inward, axis.reduce_scatter(inward))
    split = ranks > 1
    weights = own.parameters(ranks)
    return Cell(
        name=name,
        forward_s=own.forward_s * scale,
        backward_s=own.backward_s * scale,
        weight_bytes=weights,
        gradient_axis=ranks,
        gradient_bytes=weights if ranks < ground.ranks else 0,
        before_forward=(gather,) if split else (),
        after_forward=(back,) if split else (),
        before_backward=(back,) if split else (),
        after_backward=(scatter,) if split and number else (),
    )


def degrees_of(ground: Ground, number: int) -> tuple[int, ...]:
    """Return over how many ranks an operator can be split: divisors of all, 1 the first."""
    own = ground.operators[number]
    return tuple(ranks for ranks in divisors(ground.ranks) if own.splits(ranks))


def wide(ground: Ground, min_weights: int | None = None) -> tuple[int, ...]:
    """Return the degrees of one weird trick: wide linear layers over all ranks, all else at 1.

    Linear is what an image passes once. Wide are `min_weights` weights or more; without it those
    whose gradient has more numbers than what goes in and out of them for a whole batch.
    """
    return tuple(
        ground.ranks if _is_wide(ground, own, min_weights) else 1 for own in ground.operators
    )


def _is_wide(ground: Ground, own: Operator, min_weights: int | None) -> bool:
    value = ground.value_bytes
    if not own.splits(ground.ranks) or round(own.output_bytes / value) != own.outputs:
        return False
    values = own.input_bytes / value + own.outputs // ground.ranks
    least = ground.batch * values if min_weights is None else min_weights
    return own.weights >= least


def _border(name: str, axis: Axis, message_bytes: int, timed: Timed) -> Border:
    return Border(name, f"{axis.ranks} neighbours", (axis.ranks - 1) * message_bytes, timed)


def cells_of(ground: Ground, degrees: Sequence[int]) -> tuple[Cell, ...]:
    """Return all operators as the degrees place them."""
    return tuple(placed(ground, number, ranks) for number, ranks in enumerate(degrees))
