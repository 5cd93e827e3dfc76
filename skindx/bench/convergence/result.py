"""What a convergence study found, as a bench tells it: figures, plain values, sentences."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skindx.bench.convergence.pairs import Compared
from skindx.bench.convergence.tables import Run, speed, verdict
from skindx.bench.harness.clock import Figure
from skindx.metrics import Interval
from skindx.training.config.run import TrainSettings

_SHORT = {"balanced_accuracy": "balanced", "top1": "top1"}


def figures_of(compared: Sequence[Compared]) -> dict[str, Figure]:
    """Return the differences in points with the outer bounds of both intervals."""
    return {
        f"{each.arm}_minus_{each.baseline}_{_SHORT[each.key]}": Figure(
            100 * each.over_both.value,
            "points",
            len(each.runs_R),
            (100 * each.lower, 100 * max(each.over_runs.high, each.over_both.high)),
        )
        for each in compared
    }


def plain_values(
    arm: str, runs: Sequence[Run], compared: Sequence[Compared], margin: float
) -> dict[str, Any]:
    """Return plain values of an arm for JSON."""

    def bounds(interval: Interval) -> list[float]:
        return [interval.low, interval.high]

    return {
        "runs": [{"fold": run.fold, "seed": run.seed, **run.figures} for run in runs],
        "pictures_per_s": speed(runs),
        "against": [
            {
                "baseline": each.baseline,
                "figure": each.key,
                "difference": each.over_both.value,
                "interval_runs_and_pictures": bounds(each.over_both),
                "interval_runs": bounds(each.over_runs),
                "loses_less_than_margin": verdict(each, margin),
            }
            for each in compared
            if each.arm == arm
        ],
    }


def notes_of(
    training: TrainSettings, compared: Sequence[Compared], margin: float, of: str, out: Path
) -> tuple[str, ...]:
    """Return sentences on what was measured; `of` says on which images."""
    member, engine = training.members[0], training.engine
    verdicts = "; ".join(
        f"{each.arm} against {each.baseline}: " + ("yes" if verdict(each, margin) else "not shown")
        for each in compared
        if each.key == "balanced_accuracy"
    )
    return (
        of,
        f"{member.model} at {member.preprocess.size} px on {engine.ranks} ranks. Differences: mean "
        "over the runs, each paired by seed and fold; in brackets the outer bounds of two 95 % "
        "intervals, Student's over the runs and the bootstrap over runs and groups of images.",
        f"Balanced accuracy, a loss below {margin:g} points: {verdicts}.",
        f"Tables and curves: {out}/convergence.md, .csv, .png.",
    )
