"""The result of a convergence study as figures, plain values and notes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skindx.metrics import Interval
from skindx.training.config.run import TrainSettings
from skindx_bench.convergence.pairs import Compared
from skindx_bench.convergence.tables import Run, speed, verdict
from skindx_bench.harness.clock import Figure

_SHORT = {"balanced_accuracy": "balanced", "top1": "top1"}


def figures_of(compared: Sequence[Compared]) -> dict[str, Figure]:
    """Return the differences in points with the outer bounds of both intervals."""
    return {
        f"{pair.arm}_minus_{pair.baseline}_{_SHORT[pair.key]}": Figure(
            100 * pair.over_both.value,
            "points",
            len(pair.runs_R),
            (100 * pair.lower, 100 * max(pair.over_runs.high, pair.over_both.high)),
        )
        for pair in compared
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
                "baseline": pair.baseline,
                "figure": pair.key,
                "difference": pair.over_both.value,
                "interval_runs_and_pictures": bounds(pair.over_both),
                "interval_runs": bounds(pair.over_runs),
                "loses_less_than_margin": verdict(pair, margin),
            }
            for pair in compared
            if pair.arm == arm
        ],
    }


def notes_of(
    training: TrainSettings, compared: Sequence[Compared], margin: float, of: str, out: Path
) -> tuple[str, ...]:
    """Return notes on what was measured; `of` describes the images."""
    member, engine = training.members[0], training.engine
    verdicts = "; ".join(
        f"{pair.arm} against {pair.baseline}: " + ("yes" if verdict(pair, margin) else "not shown")
        for pair in compared
        if pair.key == "balanced_accuracy"
    )
    return (
        of,
        f"{member.model} at {member.preprocess.size} px on {engine.ranks} ranks. Differences: mean "
        "over the runs, each paired by seed and fold; in brackets the outer bounds of two 95 % "
        "intervals, Student's over the runs and the bootstrap over runs and groups of images.",
        f"Balanced accuracy, a loss below {margin:g} points: {verdicts}.",
        f"Tables and curves: {out}/convergence.md, .csv, .png.",
    )
