"""Search of placements by a Markov chain, as FlexFlow does (Jia et al. 2018, arXiv 1807.05358)."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, islice

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
        found = known.get(degrees)
        if found is None:
            found = known[degrees] = seconds_of(degrees)
        return found

    free = [number for number, own in enumerate(choices) if len(own) > 1]
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
