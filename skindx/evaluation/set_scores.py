"""Coverage and size of conformal sets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.evaluation.answers import Answers
from skindx.evaluation.breakdown import UNKNOWN, order, skin_type_name
from skindx.evaluation.headline import LEVEL, SEED
from skindx.evaluation.misses import FalseAlarms, UrgentMisses, share
from skindx.metrics import Interval, Statistic, confidence_interval

# N = images, C = classes


@dataclass(frozen=True, slots=True)
class SetScore:
    """How often the sets of some images hold the true class, and how many classes they hold."""

    name: str
    n: int
    coverage: Interval
    size: float
    """Mean number of classes; NaN without images."""
    promised: float | None = None
    """The coverage that was promised for just these images; None: nothing was."""


@dataclass(frozen=True, slots=True)
class SetScores:
    """The conformal sets of a predictor; `level` is the coverage that they were made for."""

    level: float
    coverage: Interval
    size: Interval
    single: float
    """Share of images whose set names one class."""
    by_group: tuple[SetScore, ...]
    """Images of urgent classes, of the others, and of each skin type that the manifest knows."""
    urgent_missed: UrgentMisses | None
    """Images of urgent classes whose set holds no urgent class; None without such images."""
    false_alarms: FalseAlarms | None
    """Images of other classes whose set holds an urgent one; None where no class is urgent."""
    by_urgency: tuple[SetScore, ...]
    by_class: tuple[SetScore, ...]


def set_scores(answers: Answers, *, draws: int) -> SetScores | None:
    """Measure the sets; None for a predictor without any."""
    if answers.sets_NC is None or answers.level is None:
        return None
    sets_NC, truth_N = answers.sets_NC, answers.truth_N
    coverage, size = (
        confidence_interval(statistic, answers.groups_N, draws=draws, level=LEVEL, seed=SEED)
        for statistic in (Statistic.set_coverage(sets_NC, truth_N), Statistic.set_size(sets_NC))
    )
    size_N = sets_NC.sum(axis=1)
    held_N = sets_NC[np.arange(len(truth_N)), truth_N]

    def some(name: str, among_N: NDArray[Any], promised: float | None = None) -> SetScore:
        mean = float(size_N[among_N].mean()) if among_N.any() else float("nan")
        covered = share(held_N & among_N, among_N, answers)
        return SetScore(name, int(among_N.sum()), covered, mean, promised)

    urgency_N = np.array([skin_class.urgency for skin_class in answers.classes])[truth_N]
    return SetScores(
        answers.level,
        coverage,
        size,
        float((size_N == 1).mean()),
        tuple(some(*group) for group in _groups(answers, urgency_N == "urgent")),
        _urgent_missed(sets_NC, urgency_N == "urgent", answers),
        _false_alarms(sets_NC, urgency_N != "urgent", answers),
        tuple(some(name, urgency_N == name) for name in _present(urgency_N)),
        tuple(some(skin_class.name, truth_N == i) for i, skin_class in enumerate(answers.classes)),
    )


def _groups(
    answers: Answers, urgent_N: NDArray[np.bool_]
) -> Iterator[tuple[str, NDArray[np.bool_], float | None]]:
    """Yield the groups that thresholds may be fitted for: name, images, promised coverage."""
    # Without thresholds of their own urgent and other classes are promised nothing by themselves.
    apart = answers.urgent_level is not None
    if urgent_N.any():
        yield "urgent classes", urgent_N, answers.urgent_level
        yield "other classes", ~urgent_N, answers.level if apart else None
    types_N = np.array([skin_type_name(skin_type) for skin_type in answers.skin_types])
    for name in order(types_N.tolist()):
        if name != UNKNOWN:
            fitted = name in {skin_type_name(skin_type) for skin_type in answers.fitted_types}
            yield f"skin type {name}", types_N == name, answers.level if fitted else None


def _urgent_missed(
    sets_NC: NDArray[np.bool_], urgent_N: NDArray[np.bool_], answers: Answers
) -> UrgentMisses | None:
    if not urgent_N.any():
        return None
    urgent_C = np.array([skin_class.urgency == "urgent" for skin_class in answers.classes])
    missed_N = urgent_N & ~sets_NC[:, urgent_C].any(axis=1)
    rate = share(missed_N, urgent_N, answers)
    return UrgentMisses(int(urgent_N.sum()), int(missed_N.sum()), rate)


def _false_alarms(
    sets_NC: NDArray[np.bool_], other_N: NDArray[np.bool_], answers: Answers
) -> FalseAlarms | None:
    urgent_C = np.array([skin_class.urgency == "urgent" for skin_class in answers.classes])
    if not other_N.any() or not urgent_C.any():
        return None
    raised_N = other_N & sets_NC[:, urgent_C].any(axis=1)
    return FalseAlarms(int(other_N.sum()), int(raised_N.sum()), share(raised_N, other_N, answers))


def _present(urgency_N: NDArray[np.str_]) -> Sequence[str]:
    return [name for name in ("urgent", "soon", "routine", "unknown") if name in urgency_N]
