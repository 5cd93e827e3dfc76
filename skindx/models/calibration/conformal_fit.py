"""Thresholds of conformal sets, fitted on calibration images, which nothing else looked at."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skindx.data.manifest import Record
from skindx.metrics import share_interval
from skindx.models.calibration.conformal import (
    ALL,
    LEVEL,
    URGENT_LEVEL,
    Conformal,
    MeasuredShare,
    skin_type_group,
)
from skindx.taxonomy import Taxonomy

ENOUGH = 50
"""A skin type of fewer calibration images is judged by the thresholds of all."""

# N = images, C = classes

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def fit_on_records(
    probabilities_NC: Floats, records: Sequence[Record], taxonomy: Taxonomy, level: float = LEVEL
) -> Conformal:
    """Fit on the probabilities of calibration images, by urgency and by skin type."""
    number = {key: index for index, key in enumerate(taxonomy.keys)}
    return fit_conformal(
        probabilities_NC,
        np.array([number[record.label] for record in records], dtype=np.intp),
        level,
        urgent_C=np.array([skin_class.urgency == "urgent" for skin_class in taxonomy.classes]),
        skin_types=[record.skin_type for record in records],
        groups=[record.group for record in records],
    )


def fit_conformal(
    probabilities_NC: Floats,
    truth_N: NDArray[np.integer],
    level: float = LEVEL,
    *,
    urgent_C: Bools | None = None,
    skin_types: Sequence[int | None] | None = None,
    groups: ArrayLike | None = None,
) -> Conformal:
    """Fit the thresholds; a group's images are those whose true class, or skin type, is of it.

    Of n true classes' probabilities a threshold is the ceil((n + 1) level)-th greatest: with this
    correction a new image's set holds its true class with at least the probability `level`,
    if it is drawn as those were (Vovk et al. 2005). Too few images for the level, 8 or fewer
    at 0.9, put every class into every set. `groups` say which images are of one lesion or
    patient, and so no independent evidence. Raises ValueError for what does not fit.
    """
    if probabilities_NC.ndim != 2 or truth_N.shape != probabilities_NC.shape[:1]:
        raise ValueError(
            f"need probabilities (N, C) and truth (N), got {probabilities_NC.shape}, "
            f"{truth_N.shape}"
        )
    if not np.isfinite(probabilities_NC).all():
        raise ValueError("probabilities must be finite")
    n, classes = probabilities_NC.shape
    urgent_C = np.zeros(classes, dtype=bool) if urgent_C is None else urgent_C
    own_N = probabilities_NC[np.arange(n), truth_N]
    pressing_N: Bools = urgent_C[truth_N]
    types_N = np.array(
        [skin_type or 0 for skin_type in skin_types] if skin_types is not None else [0] * n
    )
    some = {ALL: np.ones(n, dtype=bool)}
    for skin_type in np.unique(types_N[types_N > 0]).tolist():
        if _enough(types_N == skin_type, pressing_N, urgent=bool(urgent_C.any())):
            some[skin_type_group(skin_type)] = types_N == skin_type
    pairs = {g: _pair(own_N[of_N], pressing_N[of_N], level) for g, of_N in some.items()}
    fitted = Conformal(
        level=level,
        pictures=n,
        thresholds={group: pair[0] for group, pair in pairs.items()},
        urgent={g: pair[1] for g, pair in pairs.items()} if pressing_N.any() else {},
        urgent_columns=tuple(np.flatnonzero(urgent_C).tolist()),
        urgent_level=_borne_out(int(pressing_N.sum())) if pressing_N.any() else None,
        group_pictures={g: int(of_N.sum()) for g, of_N in some.items() if g != ALL},
    )
    sets_NC = fitted.sets(probabilities_NC, skin_types)
    missed = urgent_missed(sets_NC, truth_N, urgent_C, groups)
    raised = urgent_raised(sets_NC, truth_N, urgent_C, groups)
    return fitted.model_copy(update={"urgent_missed": missed, "urgent_raised": raised})


def urgent_missed(
    sets_NC: Bools, truth_N: NDArray[np.integer], urgent_C: Bools, groups: ArrayLike | None = None
) -> MeasuredShare | None:
    """Return how often the set of an image of an urgent class holds no urgent class.

    None without such an image.
    """
    pressing_N = urgent_C[truth_N]
    if not pressing_N.any():
        return None
    return _share(~np.asarray(sets_NC[:, urgent_C].any(axis=1)), pressing_N, groups)


def urgent_raised(
    sets_NC: Bools, truth_N: NDArray[np.integer], urgent_C: Bools, groups: ArrayLike | None = None
) -> MeasuredShare | None:
    """Return how often the set of an image of another class holds an urgent class.

    None without such an image, and where no class is urgent.
    """
    other_N = ~urgent_C[truth_N]
    if not urgent_C.any() or not other_N.any():
        return None
    return _share(np.asarray(sets_NC[:, urgent_C].any(axis=1)), other_N, groups)


def _share(hits_N: Bools, among_N: Bools, groups: ArrayLike | None) -> MeasuredShare:
    groups_N = np.arange(len(hits_N)) if groups is None else np.asarray(groups)
    found = share_interval(hits_N[among_N], groups_N[among_N])
    return MeasuredShare(
        value=found.value, low=found.low, high=found.high, pictures=int(among_N.sum())
    )


def _pair(own_N: Floats, pressing_N: Bools, level: float) -> tuple[float, float]:
    """Return the thresholds of other classes and of urgent ones.

    A kind of too few images for the level has no threshold of its own. Both are then at most
    that of all images, so that its coverage still holds.
    """
    urgent_N, other_N = own_N[pressing_N], own_N[~pressing_N]
    together = _threshold(own_N, level)
    if not len(urgent_N):
        return together, together
    urgent = _threshold(urgent_N, _borne_out(len(urgent_N)))
    if min(len(urgent_N), len(other_N)) < _least(level):
        return together, min(together, urgent)
    return _threshold(other_N, level), urgent


def _threshold(own_N: Floats, level: float) -> float:
    place = _place(len(own_N), level)
    return float(np.sort(own_N)[::-1][place - 1]) if place <= len(own_N) else 0.0


def _place(n: int, level: float) -> int:
    # Rounded first: (9 + 1) * 0.9 is 9, and not a hair above it.
    return math.ceil(round((n + 1) * level, 9))


def _least(level: float) -> int:
    """Return the fewest images that bear a level out: 9 for 0.9, 19 for 0.95."""
    return math.ceil(round(level / (1 - level), 9))


def _borne_out(urgent: int) -> float:
    """Return the level of urgent classes, or the highest that so few images support."""
    return min(URGENT_LEVEL, urgent / (urgent + 1))


def _enough(of_N: Bools, pressing_N: Bools, *, urgent: bool) -> bool:
    return bool(
        of_N.sum() >= ENOUGH
        and (not urgent or (of_N & pressing_N).sum() >= _least(URGENT_LEVEL))
        and (of_N & ~pressing_N).sum() >= _least(LEVEL)
    )
