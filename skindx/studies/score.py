"""From predictions to figures: pure, no files, no models."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.data.boxes import Box
from skindx.data.manifest import Record
from skindx.metrics import (
    DetectionScore,
    Interval,
    Statistic,
    bootstrap_interval,
    confusion_CC,
    effective_size,
    mean_average_precision,
    paired_interval,
    reliability_bins,
    wilson_interval,
)
from skindx.models.prediction import Prediction
from skindx.studies.results import (
    ClassInfo,
    ClassScore,
    Difference,
    Evaluation,
    Scores,
    UrgentMisses,
)

LEVEL = 0.95
SEED = 0

# N = pictures, C = classes, M = members

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


def score(
    records: Sequence[Record],
    predictions: Sequence[Prediction],
    classes: Sequence[ClassInfo],
    members: Sequence[str],
    *,
    draws: int = 1000,
) -> Evaluation:
    """Measure an ensemble and its members; every label must be a class's key.

    Intervals are of 95 % and resample groups; one seed, so every figure sees the same draws.
    """
    number = {each.key: i for i, each in enumerate(classes)}
    truth_N = np.array([number[record.label] for record in records], dtype=np.intp)
    groups_N = np.array([record.group for record in records])
    ensemble_NC = np.stack([each.probabilities_C for each in predictions])
    members_NMC = np.stack([each.member_probabilities_MC for each in predictions])
    k = min(5, len(classes))

    def scores(name: str, probabilities_NC: Floats) -> Scores:
        measured = (
            Statistic.top_k(probabilities_NC, truth_N, 1),
            Statistic.top_k(probabilities_NC, truth_N, k),
            Statistic.balanced_accuracy(probabilities_NC, truth_N),
            Statistic.calibration_error(probabilities_NC, truth_N),
        )
        return Scores(
            name,
            *(
                bootstrap_interval(each, groups_N, draws=draws, level=LEVEL, seed=SEED)
                for each in measured
            ),
        )

    member_scores = tuple(scores(name, members_NMC[:, m]) for m, name in enumerate(members))
    counts_CC = confusion_CC(ensemble_NC, truth_N)
    return Evaluation(
        pictures=len(records),
        groups=len(np.unique(groups_N)),
        draws=draws,
        level=LEVEL,
        k=k,
        ensemble=scores("ensemble", ensemble_NC),
        members=member_scores,
        difference=_difference(ensemble_NC, members_NMC, truth_N, groups_N, members, draws=draws),
        classes=_class_scores(classes, counts_CC, truth_N, groups_N),
        confusion=tuple(tuple(int(count) for count in row) for row in counts_CC),
        reliability=reliability_bins(ensemble_NC, truth_N),
        urgent=_urgent_misses(classes, counts_CC, truth_N, groups_N),
        has_detector=any(each.boxes is not None for each in predictions),
        detector=_detector(records, predictions),
    )


def _difference(
    ensemble_NC: Floats,
    members_NMC: Floats,
    truth_N: Ints,
    groups_N: NDArray[Any],
    members: Sequence[str],
    *,
    draws: int,
) -> Difference | None:
    if len(members) < 2:
        return None
    top1_M = [Statistic.top_k(members_NMC[:, m], truth_N, 1).value for m in range(len(members))]
    best = int(np.argmax(top1_M))
    best_NC = members_NMC[:, best]

    def paired(first: Statistic, second: Statistic) -> Interval:
        return paired_interval(first, second, groups_N, draws=draws, level=LEVEL, seed=SEED)

    return Difference(
        members[best],
        paired(Statistic.top_k(ensemble_NC, truth_N, 1), Statistic.top_k(best_NC, truth_N, 1)),
        paired(
            Statistic.balanced_accuracy(ensemble_NC, truth_N),
            Statistic.balanced_accuracy(best_NC, truth_N),
        ),
    )


def _class_scores(
    classes: Sequence[ClassInfo],
    counts_CC: NDArray[np.int64],
    truth_N: Ints,
    groups_N: NDArray[Any],
) -> tuple[ClassScore, ...]:
    def one(number: int, info: ClassInfo) -> ClassScore:
        n, found = int(counts_CC[number].sum()), int(counts_CC[number, number])
        interval = _share(found, n, groups_N[truth_N == number])
        return ClassScore(info.key, info.name, info.urgency, n, found, interval)

    return tuple(one(number, info) for number, info in enumerate(classes))


def _urgent_misses(
    classes: Sequence[ClassInfo],
    counts_CC: NDArray[np.int64],
    truth_N: Ints,
    groups_N: NDArray[Any],
) -> UrgentMisses | None:
    urgent_C = np.array([each.urgency == "urgent" for each in classes])
    n = int(counts_CC[urgent_C].sum())
    if n == 0:
        return None
    missed = int(counts_CC[urgent_C][:, ~urgent_C].sum())
    return UrgentMisses(n, missed, _share(missed, n, groups_N[urgent_C[truth_N]]))


def _share(hits: int, n: int, groups: NDArray[Any]) -> Interval:
    """Return hits / n with Wilson's interval for as many trials as the groups are worth."""
    share = hits / n if n else float("nan")
    return wilson_interval(share, effective_size(groups), level=LEVEL)


def _detector(
    records: Sequence[Record], predictions: Sequence[Prediction]
) -> DetectionScore | None:
    pairs = [
        (_lesions(record.boxes), _lesions(prediction.boxes))
        for record, prediction in zip(records, predictions, strict=True)
        if record.boxes is not None and prediction.boxes is not None
    ]
    return mean_average_precision([truth for truth, _ in pairs], [found for _, found in pairs])


def _lesions(boxes: Sequence[Box]) -> list[Box]:
    """Drop the classes of boxes: the detector finds lesions, the ensemble names them."""
    return [dataclasses.replace(box, label="lesion") for box in boxes]
