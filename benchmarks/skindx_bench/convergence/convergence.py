"""Does a training still learn as well? Arms of a study, paired over seeds and folds."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from skindx.core.errors import JobError
from skindx.core.settings_base import Settings
from skindx.data.manifest import read_manifest, split_of
from skindx.data.splits.fold_view import fold_view
from skindx.evaluation.answers import PREDICTIONS, Answers, read_predictions
from skindx.training.config.run import TrainSettings
from skindx.training.run import unfinished
from skindx_bench.convergence.arms import Study, arm_settings, member_name
from skindx_bench.convergence.pairs import JUDGED, compare_arms, measure
from skindx_bench.convergence.result import figures_of, notes_of, plain_values
from skindx_bench.convergence.tables import Run, write_tables
from skindx_bench.harness.result import MEANS, Result
from skindx_bench.harness.runs import read_history, run_skindx
from skindx_bench.harness.stopping import end_on_sigterm
from skindx_bench.presets import preset

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
    if unfinished(run, data, training):
        shutil.rmtree(evaluation, ignore_errors=True)
        training.save(home / "train.yaml")
        run_skindx("train", data, "--config", home / "train.yaml", "--out", run)
        if left := unfinished(run, data, training):
            # A training that is asked to stop saves and ends well.
            raise JobError(f"{', '.join(left)} was stopped; run the same command again to go on")
    evaluated = read_predictions(evaluation) if (evaluation / PREDICTIONS).is_file() else None
    if evaluated is None or not names <= set(evaluated.members):
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
