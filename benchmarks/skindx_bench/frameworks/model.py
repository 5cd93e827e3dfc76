"""The model of an iteration by its processes, fitted to each framework.

Shi et al. 2018 (arXiv 1805.03812), equation of the iteration without prefetching: it reads, copies,
computes forward and backward, communicates and updates; of the communication of a framework that
sends while backward goes on, only what backward does not hide. Communication is a latency a round
and a time a byte: a framework that sends each tensor by itself pays the latency for each of them.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from skindx.core.cost.collectives import Cost
from skindx_bench.frameworks.stages import COMPILED
from skindx_bench.frameworks.traffic import Traffic

Floats = npt.NDArray[np.float64]

_ALPHAS_S = np.concatenate([[0.0], np.geomspace(1e-5, 1e-1, 400)])
_SLOWER = np.geomspace(1.0, 30.0, 200)
"""Times by which a byte may take longer than the link alone: a processor that is shared copies it,
too. No framework is faster than the link."""
_DOUBT = 0.02
"""Relative error for which a byte may be taken to be slower by a factor of e. Few networks cannot
tell many messages from slow bytes; bytes then cost what the link says."""


@dataclass(frozen=True)
class Point:
    """A measured iteration, and the stages of one rank alone with as many images."""

    network: str
    ranks: int
    traffic: Traffic
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

    Ranks that share cores compute at a share of their speed, also what an exchange computes.
    """
    shared = max(1.0, point.ranks / cores)
    found = {name: shared * seconds for name, seconds in point.alone.items()}
    hidden = found.get("backward", 0.0) if hides else 0.0
    waited = _waited(point.traffic, link.alpha_s, link.beta_s_per_byte, hidden)
    found["communicate"] = found.get("communicate", 0.0) + float(waited)
    return found


def _waited(
    sent: Traffic, alpha_s: float | Floats, beta_s: float | Floats, hidden: float
) -> float | Floats:
    """Return the seconds of communication less those that are hidden; the last message never is."""
    whole = sent.rounds * alpha_s + sent.volume * beta_s
    if not hidden:
        return whole
    last = sent.last_rounds * alpha_s + sent.last_volume * beta_s
    return np.maximum(last, whole - hidden)


def fit_link(points: Sequence[Point], cores: int, byte_s: float, *, hides: bool) -> Cost:
    """Return the link (alpha, beta) with the least mean relative error of the iterations.

    `byte_s` is what a byte takes on the bare link. All of a grid are tried: what backward hides
    bends the sum, so that no corner is the optimum.
    """
    nothing = Cost(0.0, 0.0)
    alphas_A1, betas_B = _ALPHAS_S[:, None], byte_s * _SLOWER
    error_AB = np.zeros((len(_ALPHAS_S), len(_SLOWER)))
    for point in points:
        alone = predict(point, nothing, cores, hides=False)
        hidden = alone.get("backward", 0.0) if hides else 0.0
        step_AB = sum(alone.values()) + _waited(point.traffic, alphas_A1, betas_B, hidden)
        error_AB += np.abs(step_AB / point.step_s - 1)
    error_AB = error_AB / max(1, len(points)) + _DOUBT * np.log(_SLOWER)
    alpha, beta = np.unravel_index(error_AB.argmin(), error_AB.shape)
    return Cost(float(_ALPHAS_S[alpha]), float(betas_B[beta]))


def left_out(points: Sequence[Point], cores: int, byte_s: float, *, hides: bool) -> list[Predicted]:
    """Predict the iterations of each network by a link fitted to those of all others.

    Empty where there is no other network.
    """
    found = []
    for name in dict.fromkeys(point.network for point in points):
        others = [point for point in points if point.network != name]
        if not others:
            continue
        link = fit_link(others, cores, byte_s, hides=hides)
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
