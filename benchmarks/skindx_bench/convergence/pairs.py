"""Two arms of a study, paired run by run: the difference, and how sure it is."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.evaluation.answers import Answers
from skindx.evaluation.figures import FIGURES, LEVEL, SEED
from skindx.evaluation.predictor_comparison import align
from skindx.metrics import Interval, Measure, bootstrap_interval
from skindx.metrics.measures import Redraw
from skindx.metrics.share_intervals import Floats, Ints
from skindx_bench.convergence.arms import member_name

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
