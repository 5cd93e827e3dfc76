"""Arms of a convergence study, paired run by run: differences, intervals, tables and curves."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from skindx.core.atomic_files import write_csv, write_text
from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.evaluation.answers import Answers
from skindx.evaluation.figures import FIGURES, LEVEL, SEED
from skindx.evaluation.predictor_comparison import align
from skindx.metrics import Interval, Measure, bootstrap_interval
from skindx.metrics.measures import Redraw
from skindx.metrics.share_intervals import Floats, Ints
from skindx.training.config.ensemble import EnsembleSettings
from skindx.training.config.run import TrainSettings
from skindx_bench.harness.result import markdown_table, new_plot, write_plot

ArmName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]


class Study(Settings):
    """`training` holds what all arms share, `arms` by name what each of them has instead."""

    training: dict[str, Any]
    """A training run of one member, as in `skindx train --config`."""
    arms: dict[ArmName, dict[str, Any]] = Field(min_length=2)
    compare: tuple[tuple[ArmName, ArmName], ...] = ()
    """Pairs of an arm and its baseline; none: every arm with the first one."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        for pair in self.compare:
            for name in pair:
                if name not in self.arms:
                    raise ValueError(
                        f"compare names {name!r}, but the arms are {', '.join(self.arms)}"
                    )
            if pair[0] == pair[1]:
                raise ValueError(f"compare sets {pair[0]!r} against itself; name two arms")
        return self

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Each arm that is compared, and its baseline."""
        first, *others = self.arms
        return self.compare or tuple((arm, first) for arm in others)


def member_name(seed: int) -> str:
    """Return the name of an arm's member with this seed."""
    return f"seed-{seed}"


def arm_settings(study: Study, seeds: Sequence[int], origin: str) -> dict[str, TrainSettings]:
    """Return the training of each arm: one member a seed, in one run. Raises UserError."""
    made = {}
    for name, changes in study.arms.items():
        where = f"{origin}, arm {name}"
        settings = TrainSettings.parse(overlay(study.training, changes), where)
        more = settings.reused or settings.detector
        if len(settings.members) != 1 or settings.members[0].fold is not None or more:
            raise UserError(
                f"{where}: an arm trains one member on the folds of the study; give `members` one "
                "entry without a fold, and no reused and no detector."
            )
        (member,) = settings.members
        members = tuple(
            member.model_copy(update={"name": member_name(seed), "seed": seed}) for seed in seeds
        )
        # Seeds stand side by side: an ensemble that drops or weighs members would hide some.
        change = {"name": name, "members": members, "ensemble": EnsembleSettings()}
        made[name] = settings.model_copy(update=change)
    return made


def overlay(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `changes` in it, mapping by mapping.

    Anything else replaces what was there, and so does a mapping of another `kind`.
    """
    merged = dict(base)
    for key, change in changes.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(change, Mapping) and _one_kind(old, change):
            merged[key] = overlay(old, change)
        else:
            merged[key] = change
    return merged


def _one_kind(old: Mapping[str, Any], change: Mapping[str, Any]) -> bool:
    return "kind" not in change or old.get("kind") == change["kind"]


# N = test images of all folds, G = their groups, D = bootstrap draws, R = runs

JUDGED = ("balanced_accuracy", "top1")


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of an arm minus its baseline's, run by run (fold by fold, seed by seed)."""

    arm: str
    baseline: str
    key: str
    runs_R: tuple[float, ...]
    over_runs: Interval
    """Student's interval of the mean of the runs, each one number."""
    over_both: Interval
    """Bootstrap interval of the same mean over runs and groups of images."""
    learned: float
    """Balanced accuracy of the baseline above guessing, mean of the runs."""

    @property
    def lower(self) -> float:
        """The less favourable of the two lower bounds."""
        return min(self.over_runs.low, self.over_both.low)


@dataclass(frozen=True, slots=True)
class MeanOfRuns(Measure):
    """The mean over runs of a figure that each run has on its own part of the images.

    A bootstrap draws runs as well, with replacement: a training by another seed, on another fold,
    would have come out otherwise. Runs of one fold meet the same draw of its images. Noise of
    the images that shows between folds is drawn twice, which widens the interval.
    """

    runs: tuple[tuple[NDArray[np.intp], Measure], ...]
    """For each run the images that it was tested on, and its figure there."""
    low: float = -1.0
    high: float = 1.0
    biased: bool = False

    @property
    def images(self) -> int:
        """How many images all runs were tested on."""
        return 1 + max(int(rows.max()) for rows, _ in self.runs)

    @property
    def value(self) -> float:
        """The mean of the runs as they are."""
        return statistics.fmean(measure.value for _, measure in self.runs)

    def redraw(self, index_N: Ints, groups: int) -> Redraw:
        """Prepare every run for the same draws of groups."""
        random, count = np.random.default_rng(SEED), len(self.runs)
        parts = [measure.redraw(index_N[rows], groups) for rows, measure in self.runs]

        def values_D(weights_DG: Floats) -> Floats:  # noqa: N802
            # A draw without any image of a (small) fold has no value, and does not count.
            with np.errstate(invalid="ignore"):
                values_RD = np.stack([part(weights_DG) for part in parts])
            picked_RD = random.integers(count, size=values_RD.shape)
            mean_D: Floats = np.take_along_axis(values_RD, picked_RD, axis=0).mean(axis=0)
            return mean_D

        return values_D


def compare_arms(
    names: tuple[str, str],
    arms: tuple[Sequence[Answers], Sequence[Answers]],
    seeds: Sequence[int],
    *,
    draws: int,
) -> list[Compared]:
    """Compare an arm with its baseline by the answers of both on every fold's test images.

    Raises UserError when the two did not answer the same images.
    """
    folds = [(first, align(first, second, names)) for first, second in zip(*arms, strict=True)]
    groups_N = np.concatenate([first.groups_N for first, _ in folds])
    return [_compare(names, key, folds, groups_N, seeds=seeds, draws=draws) for key in JUDGED]


def _compare(
    names: tuple[str, str],
    key: str,
    folds: Sequence[tuple[Answers, Answers]],
    groups_N: NDArray[np.str_],
    *,
    seeds: Sequence[int],
    draws: int,
) -> Compared:
    runs, start = [], 0
    for first, second in folds:
        rows = np.arange(start, start + len(first))
        start += len(first)
        runs += [(rows, measure(first, key, seed) - measure(second, key, seed)) for seed in seeds]
    mean = MeanOfRuns(tuple(runs))
    both = bootstrap_interval(mean, groups_N, draws=draws, level=LEVEL, seed=SEED)
    runs_R = tuple(figure.value for _, figure in runs)
    return Compared(*names, key, runs_R, student_interval(runs_R), both, _learned(folds, seeds))


def _learned(folds: Sequence[tuple[Answers, Answers]], seeds: Sequence[int]) -> float:
    above_guessing = [
        measure(base, "balanced_accuracy", seed).value - 1 / len(np.unique(base.truth_N))
        for _, base in folds
        for seed in seeds
    ]
    return statistics.fmean(above_guessing)


def measure(answers: Answers, key: str, seed: int) -> Measure:
    """Return a headline figure of the member with this seed."""
    member = answers.members.index(member_name(seed))
    return FIGURES[key].make(answers.members_NMC[:, member], answers.truth_N)


def student_interval(values_R: Sequence[float], level: float = LEVEL) -> Interval:
    """Return the mean of at least two values and Student's interval (1908) around it."""
    from scipy.stats import t

    mean, count = statistics.fmean(values_R), len(values_R)
    half = float(t.ppf((1 + level) / 2, count - 1)) * statistics.stdev(values_R) / count**0.5
    return Interval(mean, mean - half, mean + half)


# R = runs, E = epochs

History = Sequence[Mapping[str, float]]

_CURVES = {"loss": "training loss", "val_balanced": "balanced accuracy on validation, %"}


@dataclass(frozen=True, slots=True)
class Run:
    """One training of an arm: its test figures by the keys of JUDGED, and its history."""

    arm: str
    fold: int
    seed: int
    figures: Mapping[str, float]
    history: History


def verdict(compared: Compared, margin: float) -> bool:
    """Whether both intervals exclude a loss of `margin` percentage points or more.

    False for a baseline that has learned less than the margin: it has nothing to lose.
    """
    return compared.lower > -margin / 100 and compared.learned > margin / 100


def write_tables(
    out: Path, runs: Mapping[str, Sequence[Run]], compared: Sequence[Compared], margin: float
) -> None:
    """Write convergence.md, convergence.csv (one row a run) and convergence.png into `out`."""
    write_text(out / "convergence.md", markdown(runs, compared, margin))
    rows = [
        (run.arm, run.fold, run.seed, *(run.figures[key] for key in JUDGED), len(run.history))
        for own in runs.values()
        for run in own
    ]
    write_csv(out / "convergence.csv", ("arm", "fold", "seed", *JUDGED, "epochs"), rows)
    histories = {arm: [run.history for run in own] for arm, own in runs.items()}
    _draw(out / "convergence.png", histories)


def markdown(runs: Mapping[str, Sequence[Run]], compared: Sequence[Compared], margin: float) -> str:
    """Return two tables: how each arm does, and each arm against its baseline."""
    titles = [FIGURES[key].title for key in JUDGED]
    headings = ("arm", "runs", *(f"{title}, %" for title in titles), "images/s")
    rows = [
        (
            arm,
            str(len(own)),
            *(_spread([run.figures[key] for run in own]) for key in JUDGED),
            f"{speed(own):.0f}",
        )
        for arm, own in runs.items()
    ]
    return f"{markdown_table(headings, rows)}\n{_comparisons(compared, margin)}"


def _comparisons(compared: Sequence[Compared], margin: float) -> str:
    headings = (
        "arm minus baseline", "figure", "points [95 %, runs and images]", "[95 %, runs]",
        f"loses less than {margin:g} points",
    )  # fmt: skip
    rows = [
        (
            f"{pair.arm} − {pair.baseline}",
            FIGURES[pair.key].title,
            f"{100 * pair.over_both.value:+.2f} {_bounds(pair.over_both)}",
            _bounds(pair.over_runs),
            "yes" if verdict(pair, margin) else "not shown",
        )
        for pair in compared
    ]
    return markdown_table(headings, rows)


def _bounds(interval: Interval) -> str:
    return f"[{100 * interval.low:+.2f}, {100 * interval.high:+.2f}]"


def _spread(values_R: Sequence[float]) -> str:
    return f"{100 * statistics.fmean(values_R):.1f} ± {100 * statistics.stdev(values_R):.1f}"


def speed(runs: Sequence[Run]) -> float:
    """Return the median speed of an arm's epochs, training images a second."""
    return statistics.median(row["pictures_per_s"] for run in runs for row in run.history)


def curve_RE(histories: Sequence[History], key: str) -> NDArray[np.float64]:  # noqa: N802
    """Return one figure of every run's epochs; runs of one arm have as many."""
    return np.array([[row.get(key, np.nan) for row in history] for history in histories])


def _draw(path: Path, arms: Mapping[str, Sequence[History]]) -> None:
    """Draw loss and validation by epoch: the mean of each arm's runs, one deviation around it."""
    figure = new_plot(10, 4.2)
    for axes, (key, title) in zip(figure.subplots(1, len(_CURVES)), _CURVES.items(), strict=True):
        for number, (arm, histories) in enumerate(arms.items()):
            values_RE = curve_RE(histories, key) * (1 if key == "loss" else 100)
            mean_E, band_E = values_RE.mean(axis=0), values_RE.std(axis=0)
            epochs_E = np.arange(1, len(mean_E) + 1)
            colour = f"C{number}"
            axes.plot(epochs_E, mean_E, color=colour, label=f"{arm} ({len(histories)} runs)")
            axes.fill_between(
                epochs_E, mean_E - band_E, mean_E + band_E, color=colour, alpha=0.18, linewidth=0
            )
        axes.set_xlabel("epoch")
        axes.set_ylabel(title)
        axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    write_plot(path, figure)
