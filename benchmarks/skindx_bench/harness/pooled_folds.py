"""Several folds as one: evaluations of disjoint test images, each by its own predictor."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from skindx.core.errors import UserError
from skindx.evaluation.answers import Answers, Floats, Ints, Strings, read_predictions
from skindx.evaluation.figures import FIGURES, LEVEL, Scores, measure_scores, plain
from skindx.metrics import Interval


@dataclass(frozen=True, slots=True)
class FoldFigure:
    """One figure over folds: each fold's, their mean and standard deviation, and the pooled one.

    `pooled` is measured on the images of all folds together, its interval resamples their
    groups. `deviation` is NaN for a single fold.
    """

    folds: tuple[float, ...]
    mean: float
    deviation: float
    pooled: Interval


@dataclass(frozen=True, slots=True)
class Pooled:
    """The headline figures of the ensembles over all folds, by the keys of FIGURES.

    Those of the balanced rule are left out: the bundle of each fold has a mix of its own.
    """

    pictures: int
    groups: int
    draws: int
    level: float
    figures: dict[str, FoldFigure]

    @property
    def scores(self) -> Scores:
        """The pooled figures, as an evaluation has them."""
        return Scores("pooled", **{key: figure.pooled for key, figure in self.figures.items()})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; a figure that is not defined is None."""
        values: dict[str, Any] = plain(self)
        return values


def pool(evaluations: Sequence[Path], *, draws: int = 1000) -> Pooled:
    """Pool the folders that `skindx evaluate` wrote, one a fold.

    Raises UserError for no folder, for one that is no evaluation, for other classes, and for
    folds that share an image or a group.
    """
    return pool_answers(
        [read_predictions(folder) for folder in evaluations], evaluations, draws=draws
    )


def pool_answers(folds: Sequence[Answers], names: Sequence[object], *, draws: int = 1000) -> Pooled:
    """Pool the predictions of all folds; `names` are for error messages."""
    _check_folds(folds, names)
    truth_N, groups_N, ensemble_NC = images_of_all(folds)
    pooled = measure_scores("pooled", ensemble_NC, truth_N, groups_N, draws=draws).figures
    figures = {}
    for key in pooled:
        values = tuple(FIGURES[key].make(fold.ensemble_NC, fold.truth_N).value for fold in folds)
        deviation = statistics.stdev(values) if len(values) > 1 else float("nan")
        figures[key] = FoldFigure(values, statistics.fmean(values), deviation, pooled[key])
    return Pooled(len(truth_N), len(np.unique(groups_N)), draws, LEVEL, figures)


def images_of_all(folds: Sequence[Answers]) -> tuple[Ints, Strings, Floats]:
    """Return truth_N, groups_N and the ensembles' probabilities_NC, one fold after another."""
    return (
        np.concatenate([fold.truth_N for fold in folds]),
        np.concatenate([fold.groups_N for fold in folds]),
        np.concatenate([fold.ensemble_NC for fold in folds]),
    )


def _check_folds(folds: Sequence[Answers], names: Sequence[object]) -> None:
    if not folds:
        raise UserError("there is no evaluation to pool; give one folder a fold.")
    owner_of: dict[str, dict[str, int]] = {"image": {}, "group": {}}
    for number, (fold, name) in enumerate(zip(folds, names, strict=True)):
        if [one.key for one in fold.classes] != [one.key for one in folds[0].classes]:
            raise UserError(f"{name} has other classes than {names[0]}; pool folds of one dataset.")
        for kind, values_N in (("image", fold.sha256_N), ("group", fold.groups_N)):
            for value in np.unique(values_N):
                owner = owner_of[kind].setdefault(str(value), number)
                if owner != number:
                    raise UserError(
                        f"the {kind} {value} is in both {names[owner]} and {name}; "
                        "pool evaluations of disjoint test folds."
                    )
