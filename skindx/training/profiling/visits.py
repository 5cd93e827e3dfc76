"""Line, points and spread from repeated measurements of a network."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, variance

from skindx.planning.cluster import Collective, Kind, Link
from skindx.planning.cost import fit

_LARGEST = 5
"""Sizes whose spread counts: what is nearly all latency varies more, and is little of a step."""

_STUDENT = {2: 3.84, 3: 1.775, 4: 1.431, 5: 1.296, 6: 1.225, 7: 1.181, 8: 1.152}
"""Visits -> quantile 0.95 of Student's distribution with one degree less, over the normal one's."""


@dataclass(frozen=True)
class Visit:
    """Seconds of the calls of a collective, in order."""

    seconds: dict[int, list[float]]
    """By bytes."""
    cpu_s_per_byte: float

    @property
    def samples(self) -> list[tuple[int, float]]:
        """All of them as (bytes, seconds)."""
        return [(size, once) for size, times in self.seconds.items() for once in times]

    @property
    def medians(self) -> dict[int, float]:
        """One for each size."""
        return {size: median(times) for size, times in self.seconds.items()}


def collective_of(
    kind: Kind, nodes: int, ranks_per_node: int, visits: Sequence[Visit]
) -> Collective:
    """Return the line through all that was timed, and its points."""
    samples = [pair for visit in visits for pair in visit.samples]
    line = fit(samples)
    points = rising(
        [(size, median(s for known, s in samples if known == size)) for size in visits[0].seconds]
    )
    return Collective(
        collective=kind,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        alpha_s=line.alpha_s,
        beta_s_per_byte=max(line.beta_s_per_byte, 1e-15),
        spread=from_visit_to_visit([visit.medians for visit in visits]),
        points=points,
        cpu_s_per_byte=median(visit.cpu_s_per_byte for visit in visits),
    )


def link_of(visits: Sequence[Visit]) -> Link:
    """Return the line of two ranks that swap while the other ranks wait."""
    line = fit([pair for visit in visits for pair in visit.samples])
    return Link(
        alpha_s=line.alpha_s,
        beta_s_per_byte=max(line.beta_s_per_byte, 1e-15),
        spread=from_visit_to_visit([visit.medians for visit in visits]),
    )


def from_visit_to_visit(visits: Sequence[Mapping[int, float]]) -> float:
    """Return how far a later visit will be from the mean of these: standard deviation over mean.

    A training runs at another time than its plan's measurement: what a network does from call to
    call is averaged out, what it does from minute to minute is not. So it is the deviation of
    visits from their mean, for the middle one of the largest sizes that all of them timed (a single
    call that was disturbed is no drift), and once more for the mean itself, which is no surer than
    its visits are many. Sizes vary together, so that few visits know little of their own deviation:
    it is widened as Student's distribution is over the normal one at 90 %.
    """
    common = sorted(set.intersection(*(set(visit) for visit in visits)))[-_LARGEST:]
    squares = [variance([math.log(visit[size]) for visit in visits]) for size in common]
    widened = _STUDENT.get(len(visits), 1.0)
    return min(10.0, widened * math.sqrt(median(squares) * (1 + 1 / len(visits))))


def rising(points: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Return points that never fall: neighbours that do are averaged (isotonic regression)."""
    pools: list[tuple[float, list[int]]] = []
    for size, seconds in points:
        pools.append((seconds, [size]))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (second, later), (first, earlier) = pools.pop(), pools.pop()
            count = len(earlier) + len(later)
            mean = (first * len(earlier) + second * len(later)) / count
            pools.append((mean, earlier + later))
    return tuple((size, seconds) for seconds, sizes in pools for size in sizes)
