"""Turns of the compared frameworks, and the figures that are computed of them."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import Field

from skindx.core.settings_base import Settings
from skindx_bench.frameworks.graph import Shapes
from skindx_bench.frameworks.model import (
    ARMS,
    Predicted,
    StepPoint,
    left_out,
    stage_errors,
    traffic,
)
from skindx_bench.harness.result import Figure, median, ratio

ArmName = Literal[
    "plain",
    "ddp",
    "fsdp2",
    "deepspeed",
    "skindx dense",
    "skindx fused",
    "skindx factored",
    "skindx gtopk",
    "fabric",
    "jax",
    "tensorflow",
]


class Config(Settings):
    """The same training by each framework, each rank in a network namespace of its own."""

    arms: tuple[ArmName, ...] = Field(get_args(ArmName), min_length=1)
    networks: tuple[Literal["alexnet", "googlenet", "resnet50", "mobilenetv2"], ...] = Field(
        ("alexnet", "googlenet", "resnet50", "mobilenetv2"), min_length=1
    )
    ranks: int = Field(4, ge=1, le=16)
    """Of each framework, one a node."""
    fewer_ranks: tuple[Annotated[int, Field(ge=1, le=16)], ...] = (1, 2)
    """For scaling; each divides `ranks`."""
    rate_mbit: float = Field(1000, gt=0)
    """Of each rank's link."""
    batch: int = Field(8, ge=1)
    """Images of a rank in a step, at `ranks` and in weak scaling."""
    side: int = Field(64, ge=32)
    classes: int = Field(10, ge=2)
    rounds: int = Field(3, ge=2)
    """Turns of each framework; in each it sets the network up again."""
    steps: int = Field(3, ge=1)
    """Timed in each round, after one that is not."""
    loss_steps: int = Field(10, ge=2)
    """Of the round before, in which losses are compared; not timed."""
    opening: bool = True
    """Start each framework once alone, for its time to the first step and its memory."""
    learning_rate: float = Field(0.0001, gt=0)
    """Small: rounding alone moves the losses of ResNet-50 apart at 0.001, on few images a rank."""
    tolerance: float = Field(1e-5, gt=0)
    """Relative difference up to which two losses are equal; gTop-k's is larger on each network."""
    density: float = Field(0.001, gt=0, le=1)
    """Of gTop-k."""
    shrink: int = Field(1, ge=1)
    """Divides the widths of all networks, for tests."""
    environments: Path | None = None
    """Folder of the other frameworks' environments; none: `skindx/frameworks` in the user's cache.

    What is missing there is installed from the package index.
    """
    limit_s: float = Field(600, gt=0)
    """Seconds after which a framework that gives no answer is left out."""
    kept: Path | None = None
    """A file of all turns: a run with the same one goes on from there, also with other arms and
    networks."""
    html: Path | None = None


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
class FrameworkTurns:
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


FRAME, PAYLOAD = 1514, 1448
"""Bytes of a full frame as the link counts them, and of the gradients in it (TCP over IPv4)."""

REFERENCE = "plain"
"""Whose losses the others must have."""


def figures_of(settings: Config, found: FrameworkTurns, cores: int) -> dict[str, Figure]:
    """Return the figures that what was found is enough for."""
    return {
        **_ratios(settings, found),
        **_differences(settings, found),
        **_errors(settings, found, cores),
        **_steps(settings, found),
    }


def parts_of(settings: Config, found: FrameworkTurns, cores: int) -> dict[str, dict[str, Any]]:
    """Return plain values by framework and network, at all ranks."""
    parts: dict[str, dict[str, Any]] = {}
    for name in settings.networks:
        for arm, case in found.cases(settings.ranks, settings.batch, name).items():
            turns, opening = found.turns[case], found.openings.get(case)
            parts[f"{name}, {arm}"] = {
                "status": "partial" if arm in found.missing else "measured",
                "seconds": found.step_s(case),
                "stages": found.stages(case),
                "stages_over_step": statistics.median(turn.stages_share for turn in turns),
                "first_step_s": opening.first_step_s if opening else None,
                "memory_mb": opening.peak_mb if opening else None,
                "losses": list(found.losses[case]),
                "loss_difference": difference(settings, found, case),
                "speed_ups": speed_ups(settings, found, case),
                "model": _model(settings, found, case, cores),
            }
    for arm, why in found.missing.items():
        parts[arm] = {"status": "left out", "seconds": 0.0, "why": why}
    return parts


def difference(settings: Config, found: FrameworkTurns, case: Case) -> float | None:
    """Return how far a case's losses are from those of one process; None: that has none."""
    reference = found.losses.get(case._replace(arm=REFERENCE))
    return None if reference is None else loss_difference(found.losses[case], reference)


def equal(settings: Config, found: FrameworkTurns, case: Case) -> bool:
    """Whether a case takes the steps of one process, as far as that was measured."""
    apart = difference(settings, found, case)
    return ARMS[case.arm].lossless and (apart is None or apart <= settings.tolerance)


def speed_ups(settings: Config, found: FrameworkTurns, case: Case) -> dict[str, dict[str, float]]:
    """Return P t(1) / t(P) at one batch a rank (weak), and t(1) / t(P) at one batch in all."""
    total = settings.batch * settings.ranks
    speed: dict[str, dict[str, float]] = {"weak": {}, "strong": {}}
    for ranks in sorted({*settings.fewer_ranks, settings.ranks}):
        for scaling, batch, alone, factor in (
            ("weak", settings.batch, settings.batch, ranks),
            ("strong", total // ranks, total, 1),
        ):
            one = found.step_s(case._replace(ranks=1, batch=alone))
            taken = found.step_s(case._replace(ranks=ranks, batch=batch))
            if one and taken:
                speed[scaling][str(ranks)] = factor * one / taken
    return speed


def _ratios(settings: Config, found: FrameworkTurns) -> dict[str, Figure]:
    """Return how much faster our fastest lossless arm is than the fastest of the others."""
    best: dict[str, Figure] = {}
    more: dict[str, Figure] = {}
    for name in settings.networks:
        cases = found.cases(settings.ranks, settings.batch, name)
        seconds = {
            arm: [turn.step_s for turn in found.turns[case]]
            for arm, case in cases.items()
            if arm not in found.missing
            and not ARMS[arm].alone
            and (equal(settings, found, case) or not ARMS[arm].lossless)
        }
        rounds = min(map(len, seconds.values()), default=0)
        if rounds < 2:
            continue
        seconds = {arm: taken[:rounds] for arm, taken in seconds.items()}
        lossless = {arm: statistics.median(seconds[arm]) for arm in seconds if ARMS[arm].lossless}
        ours = [arm for arm in lossless if ARMS[arm].ours]
        others = [arm for arm in lossless if not ARMS[arm].ours]
        if not ours or not others:
            continue
        own = min(ours, key=lossless.__getitem__)
        other = min(others, key=lossless.__getitem__)
        best[f"{name}: skindx_over_best"] = ratio(seconds[own], seconds[other])
        for arm in others:
            more[f"{name}: skindx_over_{arm}"] = ratio(seconds[own], seconds[arm])
        for arm in seconds:
            if not ARMS[arm].lossless:
                key = f"{name}: lossy {arm.removeprefix('skindx ')}_over_best"
                more[key] = ratio(seconds[arm], seconds[other])
    if not best:
        return {}
    return {
        "skindx_over_best": min(best.values(), key=lambda figure: figure.value),
        **best,
        **more,
    }


def _differences(settings: Config, found: FrameworkTurns) -> dict[str, Figure]:
    """Return the worst of what is checked in each case: losses, and the sum of the stages."""
    apart, shares = [], []
    for case, turns in found.turns.items():
        if case.ranks == settings.ranks and ARMS[case.arm].lossless:
            distance = difference(settings, found, case)
            if distance is not None and case.arm != REFERENCE:
                apart.append(distance)
        # Of the turns the median: a rank that has to wait for a core between two stages adds to
        # neither.
        shares.append(statistics.median(abs(turn.stages_share - 1) for turn in turns))
    figures = {}
    if apart:
        figures["loss_difference"] = _worst(apart, "of the loss")
    if shares:
        figures["stages_difference"] = _worst(shares, "of the iteration")
    return figures


def _worst(values: list[float], unit: str) -> Figure:
    return Figure(max(values), unit, len(values), (min(values), max(values)))


def _errors(settings: Config, found: FrameworkTurns, cores: int) -> dict[str, Figure]:
    figures = {}
    for arm in settings.arms:
        predicted = predictions(settings, found, arm, cores)
        if errors := [abs(one.error) for one in predicted]:
            mean, spread = statistics.fmean(errors), (min(errors), max(errors))
            figures[f"{arm}: model error"] = Figure(mean, "of the iteration", len(errors), spread)
    return figures


def _points(settings: Config, found: FrameworkTurns, arm: str) -> dict[Case, StepPoint]:
    """Return the cases of an arm on several ranks whose one-rank case is known as well."""
    points = {}
    for case in found.turns:
        if case.arm != arm or case.ranks == 1 or ARMS[arm].alone:
            continue
        alone = _alone(settings, found, case)
        taken = found.step_s(case)
        if alone and taken:
            layers, how = found.layers[case.network], ARMS[arm].sending
            sent = traffic(how, layers, case.ranks, settings.density, case.batch)
            points[case] = StepPoint(case.network, case.ranks, sent, taken, alone)
    return points


def _alone(settings: Config, found: FrameworkTurns, case: Case) -> dict[str, float] | None:
    """Return the stages of one rank with as many images, between the two that were timed."""
    small = case._replace(ranks=1, batch=settings.batch)
    large = small._replace(batch=settings.batch * settings.ranks)
    if small not in found.turns or large not in found.turns:
        return None
    low, high = found.stages(small), found.stages(large)
    span = large.batch - small.batch
    share = (case.batch - small.batch) / span if span else 0.0
    return {name: low[name] + share * (high[name] - low[name]) for name in low}


def predictions(settings: Config, found: FrameworkTurns, arm: str, cores: int) -> list[Predicted]:
    """Return the iterations of an arm by the model that the other networks were fitted to."""
    points = _points(settings, found, arm)
    return left_out(list(points.values()), cores, _byte_s(settings), hides=ARMS[arm].hides)


def _byte_s(settings: Config) -> float:
    """Return the seconds of a byte on the link, with its share of the headers."""
    return 8 / (settings.rate_mbit * 1e6) * FRAME / PAYLOAD


def _model(
    settings: Config, found: FrameworkTurns, case: Case, cores: int
) -> dict[str, Any] | None:
    points = _points(settings, found, case.arm)
    if case not in points:
        return None
    predicted = predictions(settings, found, case.arm, cores)
    own = [one for one in predicted if one.point is points[case]]
    if not own:
        return None
    return {
        "step_s": own[0].step_s,
        "error": own[0].error,
        "stages": dict(own[0].stages),
        "stage_errors": stage_errors(own, [found.stages(case)]),
    }


def _steps(settings: Config, found: FrameworkTurns) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for case, turns in found.turns.items():
        if len(turns) > 1:
            where: Mapping[str, Any] = case._asdict()
            key = "{network}, {arm}, {ranks} x {batch} images".format(**where)
            figures[key] = median([turn.step_s for turn in turns], "s")
    return figures
