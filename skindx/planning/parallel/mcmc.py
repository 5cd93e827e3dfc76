"""Search of placements by a Markov chain, as FlexFlow does (Jia et al. 2018, arXiv 1807.05358)."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Degrees = tuple[int, ...]

PROPOSALS = 1000
"""In all, shared out over the starts."""
TEMPERATURE = 0.01
"""Of the time of a start: what is that much slower is accepted once in e times."""


@dataclass(frozen=True)
class Searched:
    """What a search found."""

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
    min(1, exp((t_old - t_new) / T)). From the best one it goes downhill, operator by operator, as
    long as that helps. The same seed finds the same.
    """
    known: dict[Degrees, float] = {}

    def price(degrees: Degrees) -> float:
        found = known.get(degrees)
        if found is None:
            found = known[degrees] = seconds_of(degrees)
        return found

    free = [number for number, own in enumerate(choices) if len(own) > 1]
    rng = random.Random(seed)  # noqa: S311 (a search, no secret)
    for start in starts:
        now, now_s = start, price(start)
        temperature_s = TEMPERATURE * now_s
        for _ in range(proposals // len(starts) if free else 0):
            number = rng.choice(free)
            degree = rng.choice([other for other in choices[number] if other != now[number]])
            tried = (*now[:number], degree, *now[number + 1 :])
            tried_s = price(tried)
            if tried_s <= now_s or rng.random() < _chance(now_s - tried_s, temperature_s):
                now, now_s = tried, tried_s
    best = min(known, key=known.__getitem__)
    best = _downhill(best, choices, free, price)
    return Searched(best, known[best], len(known))


def _chance(gain_s: float, temperature_s: float) -> float:
    return math.exp(gain_s / temperature_s) if temperature_s else 0.0


def _downhill(
    best: Degrees,
    choices: Sequence[Sequence[int]],
    free: Sequence[int],
    price: Callable[[Degrees], float],
) -> Degrees:
    better = True
    while better:
        better = False
        for number in free:
            for degree in choices[number]:
                tried = (*best[:number], degree, *best[number + 1 :])
                if price(tried) < price(best):
                    best, better = tried, True
    return best
