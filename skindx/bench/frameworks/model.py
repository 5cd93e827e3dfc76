"""The model of an iteration by its processes, fitted to each framework.

Shi et al. 2018 (arXiv 1805.03812), equation of the iteration without prefetching: it reads, copies,
computes forward and backward, communicates and updates; of the communication of a framework that
sends while backward goes on, only what backward does not hide.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from skindx.bench.frameworks.stages import COMPILED
from skindx.planning.cost import Cost, ring

BUCKET_BYTES = 25 << 20
"""Of a framework that sends while backward goes on: what is left when it ends is at most this."""

_ALPHAS_S = np.concatenate([[0.0], np.geomspace(1e-5, 1e-1, 33)])
_BETAS = np.concatenate([[0.0], np.geomspace(1e-10, 1e-6, 161)])


@dataclass(frozen=True)
class Point:
    """A measured iteration, and the stages of one rank alone with as many images."""

    network: str
    ranks: int
    gradient_bytes: int
    step_s: float
    alone: Mapping[str, float]
    """Seconds of each stage on one rank that has the machine for itself."""


@dataclass(frozen=True)
class Predicted:
    """An iteration by the model that was fitted to the other networks."""

    point: Point
    stages: Mapping[str, float]

    @property
    def step_s(self) -> float:
        """The sum of the stages."""
        return sum(self.stages.values())

    @property
    def error(self) -> float:
        """Relative to what was measured."""
        return self.step_s / self.point.step_s - 1


def predict(point: Point, link: Cost, cores: int, *, hides: bool) -> dict[str, float]:
    """Return the seconds of each stage.

    Ranks that share cores compute at a share of their speed; an all-reduce is a ring.
    """
    shared = max(1.0, point.ranks / cores)
    found = {name: shared * seconds for name, seconds in point.alone.items()}
    cost = ring(link, point.ranks)
    whole = cost(point.gradient_bytes)
    if hides:
        last = cost(min(point.gradient_bytes, BUCKET_BYTES))
        whole = max(last, whole - found.get("backward", 0.0))
    found["communicate"] = whole if point.ranks > 1 else 0.0
    return found


def fit_link(points: Sequence[Point], cores: int, *, hides: bool) -> Cost:
    """Return the link (alpha, beta) with the least sum of relative errors of the iterations.

    All of a grid are tried: what backward hides bends the sum, so that no corner is the optimum.
    """
    best, link = float("inf"), Cost(0.0, 0.0)
    for alpha in _ALPHAS_S:
        for beta in _BETAS:
            tried = Cost(float(alpha), float(beta))
            error = sum(
                abs(sum(predict(point, tried, cores, hides=hides).values()) / point.step_s - 1)
                for point in points
            )
            if error < best:
                best, link = error, tried
    return link


def left_out(points: Sequence[Point], cores: int, *, hides: bool) -> list[Predicted]:
    """Predict the iterations of each network by a link fitted to those of all others.

    Empty where there is no other network.
    """
    found = []
    for name in dict.fromkeys(point.network for point in points):
        others = [point for point in points if point.network != name]
        if not others:
            continue
        link = fit_link(others, cores, hides=hides)
        found += [
            Predicted(point, predict(point, link, cores, hides=hides))
            for point in points
            if point.network == name
        ]
    return found


def stage_errors(
    predicted: Sequence[Predicted], measured: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """Return, by stage, the mean difference of prediction and measurement over the iteration.

    Empty where a framework compiles its stages into one.
    """
    if any(COMPILED in stages for stages in measured):
        return {}
    names = list(dict.fromkeys(name for stages in measured for name in stages))
    return {
        name: statistics.fmean(
            abs(one.stages.get(name, 0.0) - stages[name]) / one.point.step_s
            for one, stages in zip(predicted, measured, strict=True)
        )
        for name in names
        if predicted
    }
