"""Does a training still learn as well? Arms of a study, paired over seeds and folds."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from skindx.core.errors import JobError
from skindx.core.settings_base import Settings
from skindx.data.manifest import read_manifest, split_of
from skindx.evaluation.answers import PREDICTIONS, Answers, read_predictions
from skindx.metrics import Interval
from skindx.training.config.run import TrainSettings
from skindx.training.run import unfinished
from skindx_bench.harness.result import MEANS, Figure, Result
from skindx_bench.harness.training import end_on_sigterm, preset, read_history, run_skindx
from skindx_bench.honesty.ood import fold_view
from skindx_bench.train.convergence_pairs import (
    JUDGED,
    Compared,
    Run,
    Study,
    arm_settings,
    compare_arms,
    measure,
    member_name,
    speed,
    verdict,
    write_tables,
)

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


SMALLEST = ("use=[0]", "seeds=[0, 1]", "draws=50")


class Config(Settings):
    """Arms, data and repetitions; finished trainings in `out` are reused."""

    dataset: Path = Path("runs/isic9/data")
    config: Path = preset("convergence")
    """The study: `training`, `arms`, `compare`."""
    out: Path | None = None
    """None: runs/NAME, by the name of the config."""
    folds: int = Field(3, ge=2)
    use: tuple[int, ...] = Field((0, 1, 2), min_length=1)
    """Folds to test on, of 0 .. folds - 1; two thirds of the rest of a fold are trained on."""
    seeds: tuple[int, ...] = Field((0, 1, 2), min_length=1)
    margin: float = Field(3.0, gt=0)
    """A loss of so many percentage points would count."""
    draws: int = Field(2000, ge=1)

    @model_validator(mode="after")
    def _twice(self) -> Self:
        if len(set(self.use)) < len(self.use) or len(set(self.seeds)) < len(self.seeds):
            raise ValueError("use and seeds name each fold and seed once")
        if len(self.use) * len(self.seeds) < 2:
            raise ValueError("one run has no spread; give two seeds or two folds at least")
        return self


def run(settings: Config) -> Result:
    """Train and evaluate every arm on every fold; write tables and curves to OUT."""
    end_on_sigterm()
    study = Study.load(settings.config)
    arms = arm_settings(study, settings.seeds, str(settings.config))
    out = settings.out or Path("runs") / settings.config.stem
    answers: dict[str, list[Answers]] = {name: [] for name in arms}
    runs: dict[str, list[Run]] = {name: [] for name in arms}
    for fold in settings.use:
        data = fold_view(settings.dataset, out / "folds" / f"{fold}", fold, settings.folds)
        for name, training in arms.items():
            home = out / "arms" / name / f"fold-{fold}"
            evaluated = _evaluated(home, data, training)
            answers[name].append(evaluated)
            runs[name] += [_run(name, fold, seed, home, evaluated) for seed in settings.seeds]
    compared = [
        difference
        for pair in study.pairs
        for difference in compare_arms(
            pair, (answers[pair[0]], answers[pair[1]]), settings.seeds, draws=settings.draws
        )
    ]
    write_tables(out, runs, compared, settings.margin)
    return Result(
        "convergence",
        figures_of(compared),
        notes=notes_of(
            next(iter(arms.values())),
            compared,
            settings.margin,
            _dataset_note(settings, out, next(iter(answers.values()))),
            out,
        ),
        models={
            name: plain_values(name, own, compared, settings.margin) for name, own in runs.items()
        },
        headings=MEANS,
    )


def _evaluated(home: Path, data: Path, training: TrainSettings) -> Answers:
    """Train what is missing of an arm on one fold, and return its answers on the test images.

    Raises UserError when something else was trained there, JobError when a training was stopped.
    """
    run, evaluation = home / "run", home / "evaluation"
    names = {member.name for member in training.members}
    missing = unfinished(run, data, training)
    if missing:
        shutil.rmtree(evaluation, ignore_errors=True)
    evaluated = read_predictions(evaluation) if (evaluation / PREDICTIONS).is_file() else None
    if evaluated is None or not names <= set(evaluated.members):
        if missing or not (run / "bundle").is_dir():  # a kill may have come before it was packed
            training.save(home / "train.yaml")
            run_skindx("train", data, "--config", home / "train.yaml", "--out", run)
            if left := unfinished(run, data, training):
                # A training that is asked to stop saves and ends well.
                raise JobError(
                    f"{', '.join(left)} was stopped; run the same command again to go on"
                )
        run_skindx("evaluate", run / "bundle", data, "--out", evaluation)
        evaluated = read_predictions(evaluation)
    return evaluated


def _run(arm: str, fold: int, seed: int, home: Path, evaluated: Answers) -> Run:
    figures = {key: measure(evaluated, key, seed).value for key in JUDGED}
    return Run(arm, fold, seed, figures, read_history(home / "run", member_name(seed)))


def _dataset_note(settings: Config, out: Path, evaluated: Sequence[Answers]) -> str:
    trained = [
        len(split_of(read_manifest(out / "folds" / f"{fold}"), "train")) for fold in settings.use
    ]
    return (
        f"{settings.dataset.resolve().parent.name}: folds {', '.join(map(str, settings.use))} of "
        f"{settings.folds}, whole groups only, {sum(map(len, evaluated))} test images in all, "
        f"{min(trained)} to {max(trained)} to train on; seeds "
        f"{', '.join(map(str, settings.seeds))}. Settings: {settings.config.name}."
    )
