"""Each operator data-parallel or split over some ranks, as a Markov chain finds it."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from skindx.core.cost.cells import Cell, Chain, MessageSeconds, cached, step_seconds
from skindx.core.cost.events import Flow
from skindx.core.cost.placing import Ground, cells_of, degrees_of, placed, wide
from skindx.core.errors import UserError
from skindx.training.forms.owt_form import gathered_bytes
from skindx.training.forms.parallel_form import ParallelForm, ParallelSettings, PlacedForm

Degrees = tuple[int, ...]

PROPOSALS = 1000
"""At most, shared out over the starts."""
EACH = 100
"""Proposals for each operator that has a choice."""
HOT, COLD = 0.2, 0.002
"""First and last temperature, of the time of a start: what is so much slower is accepted once in e
times."""
WORK = 4_000_000
"""Operators that all proposals together go through, at most: a few seconds. Networks of up to
a thousand operators do not reach it before their last changes."""
PAIRS = 500
"""Changes of two operators at once that are tried at the end, where there are no more of them."""


@dataclass(frozen=True)
class Searched:
    """Result of a search."""

    degrees: Degrees
    seconds: float
    priced: int
    """Placements that were priced."""


def search_placements(
    starts: Sequence[Degrees],
    choices: Sequence[Sequence[int]],
    seconds_of: Callable[[Degrees], float],
    *,
    proposals: int = PROPOSALS,
    seed: int = 0,
) -> Searched:
    """Return the fastest placement that was met; none is slower than any of `starts`.

    A proposal changes the degree of one operator to another of its `choices`, and is accepted with
    min(1, exp((t_old - t_new) / T)), while T falls. From the best one it goes downhill, by one
    operator or two, as long as that helps, and ends after so many proposals that they have gone
    through `WORK` operators. The same seed finds the same.
    """
    known: dict[Degrees, float] = {}
    left = max(2 * len(starts), WORK // max(1, len(choices)))

    def price(degrees: Degrees) -> float:
        result = known.get(degrees)
        if result is None:
            result = known[degrees] = seconds_of(degrees)
        return result

    free = [number for number, options in enumerate(choices) if len(options) > 1]
    rng = random.Random(seed)  # noqa: S311 (a search, no secret)
    count = min(proposals, EACH * len(free), left // 2) // len(starts)
    for start in starts:
        now, now_s = start, price(start)
        temperature_s, cooling = HOT * now_s, (COLD / HOT) ** (1 / max(1, count))
        for _ in range(count):
            number = rng.choice(free)
            degree = rng.choice([other for other in choices[number] if other != now[number]])
            tried = (*now[:number], degree, *now[number + 1 :])
            tried_s = price(tried)
            if tried_s <= now_s or rng.random() < _chance(now_s - tried_s, temperature_s):
                now, now_s = tried, tried_s
            temperature_s *= cooling
    best = min(known, key=known.__getitem__)
    best = _downhill(best, _changes(choices, free), price, left - count * len(starts))
    return Searched(best, known[best], len(known))


def _chance(gain_s: float, temperature_s: float) -> float:
    return math.exp(gain_s / temperature_s) if temperature_s else 0.0


def _changes(
    choices: Sequence[Sequence[int]], free: Sequence[int]
) -> list[tuple[tuple[int, int], ...]]:
    """Return changes of one operator, as (place, degree), and of two where these are few."""
    single = [(number, degree) for number in free for degree in choices[number]]
    both = (pair for pair in combinations(single, 2) if pair[0][0] != pair[1][0])
    pairs = list(islice(both, PAIRS + 1))
    return [*((one,) for one in single), *(pairs if len(pairs) <= PAIRS else ())]


def _downhill(
    best: Degrees,
    changes: Sequence[Sequence[tuple[int, int]]],
    price: Callable[[Degrees], float],
    most: int,
) -> Degrees:
    """Take each of the changes that helps, until none does or `most` were tried."""
    best_s, better, left = price(best), True, most
    while better:
        better = False
        for change in changes[: max(0, left)]:
            tried = list(best)
            for number, degree in change:
                tried[number] = degree
            tried_s = price(tuple(tried))
            if tried_s < best_s:
                best, best_s, better = tuple(tried), tried_s, True
        left -= len(changes)
    return best


class OperatorsForm(PlacedForm):
    """`engine.parallel.kind: operators`: FlexFlow's search, over output channels.

    Jia et al. 2018, arXiv 1807.05358.
    """

    name: ClassVar[str] = "operators"

    def cells(self, ground: Ground, update_s_per_byte: float) -> Sequence[Cell]:
        """Take the degrees that are given, or search from data parallelism and from OWT."""
        if given := self.options.get("degrees"):
            names = [operator.name for operator in ground.operators]
            return cells_of(ground, [int(given.get(name, 1)) for name in names])
        return cells_of(ground, searched(ground, update_s_per_byte).degrees)

    def settings_of(self, flows: Sequence[Flow]) -> dict[str, Any]:
        """Name the layers that are split; where members disagree on one, as the first has it."""
        degrees = {
            cell.name: cell.gradient_axis
            for flow in reversed(flows)
            if isinstance(flow, Chain)
            for cell in flow.cells
            if cell.gradient_axis > 1
        }
        return {"degrees": degrees} if degrees else {"kind": "data"}

    def more_bytes(self, ground: Ground, cells: Sequence[Cell]) -> float:
        """Count the inputs that come from the other ranks of a group."""
        return gathered_bytes(ground, cells)


def searched(ground: Ground, update_s_per_byte: float, proposals: int = PROPOSALS) -> Searched:
    """Return the fastest placement of a search, and what a step of it takes."""
    message_s = cached(lambda axis, size: ground.summed(axis, size).alone_s)
    cells = [
        {
            ranks: cell
            for ranks in degrees_of(ground, number)
            if _may_gain(cell := placed(ground, number, ranks), whole, message_s, update_s_per_byte)
        }
        for number, whole in enumerate(placed(ground, n, 1) for n in range(len(ground.operators)))
    ]
    choices = [tuple(options) for options in cells]

    def seconds_of(degrees: Sequence[int]) -> float:
        chosen = [cells[number][ranks] for number, ranks in enumerate(degrees)]
        return step_seconds(chosen, message_s, update_s_per_byte)

    owt = tuple(
        degree if degree in options else 1
        for degree, options in zip(wide(ground), choices, strict=True)
    )
    starts = list(dict.fromkeys([(1,) * len(cells), owt]))
    return search_placements(starts, choices, seconds_of, proposals=proposals)


def _may_gain(cell: Cell, whole: Cell, message_s: MessageSeconds, update_s_per_byte: float) -> bool:
    """Tell whether a cell may be faster than the data-parallel one.

    Its borders and its slower computing stand in every step's way; all that it can save is the sum
    of the gradient and the update.
    """
    if cell.gradient_axis == 1:
        return True
    lost_s = cell.whole_forward_s + cell.take_s + cell.backward_s + cell.give_s
    lost_s -= whole.forward_s + whole.backward_s
    saved_s = message_s(1, whole.gradient_bytes)
    return lost_s < saved_s + update_s_per_byte * (whole.weight_bytes - cell.weight_bytes)


class OperatorsSettings(ParallelSettings):
    """Each linear layer or convolution is split over as many ranks as it says, or data-parallel.

    `skindx plan` finds such an assignment (FlexFlow: Jia et al. 2018, arXiv 1807.05358); a layer
    is split by its outputs, as under owt, among groups of neighbours.
    """

    kind: Literal["operators"] = "operators"
    degrees: dict[str, Annotated[int, Field(ge=2, le=4096)]] = Field(min_length=1)
    """Layers by name -> ranks that share out their outputs, which divide the number of ranks; all
    others are data-parallel."""

    in_groups: ClassVar[bool] = False
    price: ClassVar[type[ParallelForm] | None] = OperatorsForm

    def group_size(self, ranks: int) -> int:
        """Return all ranks. Raises UserError for a degree that does not divide them."""
        for layer, degree in self.degrees.items():
            if ranks % degree:
                raise UserError(
                    f"engine.parallel.degrees: {layer} is split over {degree} ranks, which do not "
                    f"divide the {ranks} there are; change engine.ranks, or make the plan again "
                    "for as many."
                )
        return ranks
