"""Thresholds of the urgent risk, fitted on calibration images, which nothing else looked at."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skindx.data.manifest import Record
from skindx.metrics import share_interval
from skindx.models.calibration.conformal import ALL, MeasuredShare, skin_type_group
from skindx.models.calibration.urgent_risk import (
    MISS_RATES,
    RiskLevel,
    UrgentRisk,
    rank_of,
    urgent_risks,
)
from skindx.taxonomy import Taxonomy

# N = images, C = classes

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def fit_risk_on_records(
    probabilities_NC: Floats, records: Sequence[Record], taxonomy: Taxonomy
) -> UrgentRisk | None:
    """Fit on the probabilities of calibration images; None where they are too few."""
    number = {key: index for index, key in enumerate(taxonomy.keys)}
    # Which image of a lesion counts is left to its hash: no order of the manifest chooses it.
    order = sorted(range(len(records)), key=lambda n: records[n].sha256)
    return fit_urgent_risk(
        probabilities_NC[order],
        np.array([number[records[n].label] for n in order], dtype=np.intp),
        urgent_C=np.array([skin_class.urgency == "urgent" for skin_class in taxonomy.classes]),
        groups=[records[n].group for n in order],
        skin_types=[records[n].skin_type for n in order],
    )


def fit_urgent_risk(
    probabilities_NC: Floats,
    truth_N: NDArray[np.integer],
    *,
    urgent_C: Bools,
    groups: ArrayLike | None = None,
    skin_types: Sequence[int | None] | None = None,
    miss_rates: Sequence[float] = MISS_RATES,
) -> UrgentRisk | None:
    """Fit a threshold for each miss rate that the urgent lesions are enough for.

    A miss rate r needs 1 / r - 1 lesions: 49 for 0.02, 19 for 0.05, 9 for 0.1. None when there are
    too few for any. Of each group (images of one lesion or patient) the first image counts: one
    image a group makes lesions independent, which the guarantee rests on, so the order must not
    depend on the images' content. Raises ValueError for what does not fit.
    """
    if probabilities_NC.ndim != 2 or truth_N.shape != probabilities_NC.shape[:1]:
        raise ValueError(
            f"need probabilities (N, C) and truth (N), got {probabilities_NC.shape}, "
            f"{truth_N.shape}"
        )
    if not np.isfinite(probabilities_NC).all():
        raise ValueError("probabilities must be finite")
    n = len(truth_N)
    columns = tuple(np.flatnonzero(urgent_C).tolist())
    groups_N = np.arange(n) if groups is None else np.asarray(groups)
    types_N = np.array(
        [skin_type or 0 for skin_type in skin_types] if skin_types is not None else [0] * n
    )
    risk_N, urgent_N = urgent_risks(probabilities_NC, columns), urgent_C[truth_N]
    among = {ALL: urgent_N}
    for skin_type in np.unique(types_N[types_N > 0]).tolist():
        among[skin_type_group(skin_type)] = urgent_N & (types_N == skin_type)
    risks = {name: np.sort(risk_N[_one_a_group(of_N, groups_N)]) for name, of_N in among.items()}
    levels = []
    for miss_rate in sorted(miss_rates):
        ranks = {name: rank_of(len(risk_G), miss_rate) for name, risk_G in risks.items()}
        if ranks[ALL]:
            thresholds = {g: float(risks[g][rank - 1]) for g, rank in ranks.items() if rank}
            sent_on = _share_from(thresholds[ALL], risk_N[~urgent_N], groups_N[~urgent_N])
            levels.append(RiskLevel(miss_rate=miss_rate, thresholds=thresholds, sent_on=sent_on))
    if not levels:
        return None
    used = {name for level in levels for name in level.thresholds}
    lesions = {name: len(risk_G) for name, risk_G in risks.items() if name in used}
    return UrgentRisk(urgent_columns=columns, lesions=lesions, levels=tuple(levels))


def _one_a_group(of_N: Bools, groups_N: NDArray[np.generic]) -> NDArray[np.intp]:
    """Return the places of the first image of each group among some of the images."""
    places = np.flatnonzero(of_N)
    _, first = np.unique(groups_N[places], return_index=True)
    chosen: NDArray[np.intp] = places[first]
    return chosen


def _share_from(
    threshold: float, risk_N: Floats, groups_N: NDArray[np.generic]
) -> MeasuredShare | None:
    """Return the share of risks at or above a threshold, with an interval over groups."""
    if not len(risk_N):
        return None
    found = share_interval(risk_N >= threshold, groups_N)
    return MeasuredShare(value=found.value, low=found.low, high=found.high, pictures=len(risk_N))
