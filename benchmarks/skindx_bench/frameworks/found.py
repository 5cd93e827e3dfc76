"""What was measured: turns of each framework, and which ones are missing."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from skindx_bench.frameworks.graph import Shapes


class Case(NamedTuple):
    """One framework's training of a network: what is measured in several turns."""

    arm: str
    network: str
    ranks: int
    batch: int
    """Images of a rank."""


@dataclass(frozen=True)
class Turn:
    """Some steps of a case, or the first ones of all."""

    step_s: float
    """Of the slowest rank."""
    stages: Mapping[str, float]
    """Seconds a step, the mean of all ranks."""
    stages_share: float
    """Sum of the stages over the step, of the rank where it is furthest from one."""
    peak_mb: float
    """Largest resident size of a rank, the mean of all."""
    losses: tuple[float, ...]
    """The mean of all ranks, in each step."""


def turn_of(answers: Sequence[Mapping[str, Any]]) -> Turn:
    """Return what the ranks' answers say together."""
    shares = [sum(answer["stages"].values()) / answer["seconds"] for answer in answers]
    return Turn(
        max(answer["seconds"] for answer in answers),
        {
            name: statistics.fmean(answer["stages"].get(name, 0.0) for answer in answers)
            for name in answers[0]["stages"]
        },
        max(shares, key=lambda share: abs(share - 1)),
        statistics.fmean(answer["peak_mb"] for answer in answers),
        tuple(map(statistics.fmean, zip(*(answer["losses"] for answer in answers), strict=True))),
    )


@dataclass(frozen=True)
class Opening:
    """The first network of processes that nothing else has run in."""

    first_step_s: float
    """From the start of the processes to the end of the first step."""
    peak_mb: float
    """Largest resident size of a rank until then, the mean of all."""


@dataclass
class Found:
    """Grows while the bench runs, so that a stopped one keeps what it has."""

    turns: dict[Case, list[Turn]] = field(default_factory=dict)
    losses: dict[Case, tuple[float, ...]] = field(default_factory=dict)
    """Of the first steps."""
    openings: dict[Case, Opening] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Arm -> why it has no figures, or no more of them."""
    layers: dict[str, Shapes] = field(default_factory=dict)
    """Of each network."""

    def parameters(self, network: str) -> int:
        """Return the number of a network's weights."""
        return sum(math.prod(shape) for layer in self.layers[network] for shape in layer)

    def cases(self, ranks: int, batch: int, network: str) -> dict[str, Case]:
        """Return the cases that were measured, by arm."""
        return {
            case.arm: case
            for case in self.turns
            if (case.ranks, case.batch, case.network) == (ranks, batch, network)
        }

    def step_s(self, case: Case) -> float | None:
        """Return the median of a case's turns; None: it was not measured."""
        turns = self.turns.get(case)
        return statistics.median(turn.step_s for turn in turns) if turns else None

    def stages(self, case: Case) -> dict[str, float]:
        """Return the median of each stage."""
        turns = self.turns[case]
        return {
            name: statistics.median(turn.stages.get(name, 0.0) for turn in turns)
            for name in turns[0].stages
        }


def loss_difference(losses: Sequence[float], others: Sequence[float]) -> float:
    """Return the largest relative difference of two rows of losses; infinite where one is none."""
    pairs: Iterable[tuple[float, float]] = zip(losses, others, strict=True)
    found = [abs(one - other) / abs(other) for one, other in pairs]
    return max(found) if all(map(math.isfinite, found)) else float("inf")
