"""From predictions to figures: pure, no files, no models."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from skindx.data.box import Box
from skindx.data.manifest import Record
from skindx.evaluation.answers import Answers
from skindx.evaluation.breakdown import breakdowns
from skindx.evaluation.external import External
from skindx.evaluation.headline import FIGURES, LEVEL, SEED, measure_scores
from skindx.evaluation.misses import cancer_misses, share, urgent_misses
from skindx.evaluation.results import ClassScore, Difference, Evaluation
from skindx.evaluation.set_scores import set_scores
from skindx.evaluation.urgent_scores import urgent_scores
from skindx.metrics import (
    DetectionScore,
    Interval,
    Measure,
    confusion_CC,
    mean_average_precision,
    paired_interval,
    reliability_bins,
    risk_curve,
)
from skindx.models.ensemble import Prediction

# N = images, C = classes, M = members


def score(
    answers: Answers,
    *,
    draws: int = 1000,
    has_detector: bool = False,
    detector: DetectionScore | None = None,
    external: External | None = None,
) -> Evaluation:
    """Measure an ensemble and its members; `detector` is what `score_boxes` found.

    Intervals are of 95 % and resample groups; one seed, so every figure sees the same draws.
    """
    truth_N, ensemble_NC = answers.truth_N, answers.ensemble_NC
    members = tuple(
        measure_scores(name, answers.members_NMC[:, m], truth_N, answers.groups_N, draws=draws)
        for m, name in enumerate(answers.members)
    )
    counts_CC = confusion_CC(ensemble_NC, truth_N)
    return Evaluation(
        pictures=len(answers),
        groups=len(np.unique(answers.groups_N)),
        draws=draws,
        level=LEVEL,
        k=min(5, len(answers.classes)),
        ensemble=measure_scores("ensemble", ensemble_NC, truth_N, answers.groups_N, draws=draws),
        members=members,
        difference=_difference(answers, draws=draws),
        classes=_class_scores(answers),
        confusion=tuple(tuple(int(count) for count in row) for row in counts_CC),
        reliability=reliability_bins(ensemble_NC, truth_N),
        risk_curve=risk_curve(ensemble_NC, truth_N),
        urgent=urgent_misses(answers),
        cancers=cancer_misses(answers),
        sets=set_scores(answers, draws=draws),
        urgent_risk=urgent_scores(answers),
        breakdowns=breakdowns(answers, draws=draws),
        has_detector=has_detector,
        detector=detector,
        external=external,
    )


def _difference(answers: Answers, *, draws: int) -> Difference | None:
    if len(answers.members) < 2:
        return None

    def measure(key: str, member: int | None) -> Measure:
        said_NC = answers.ensemble_NC if member is None else answers.members_NMC[:, member]
        return FIGURES[key].make(said_NC, answers.truth_N)

    top1_M = [measure("top1", m).value for m in range(len(answers.members))]
    best = int(np.argmax(top1_M))

    def paired(key: str) -> Interval:
        ours, theirs = measure(key, None), measure(key, best)
        return paired_interval(ours, theirs, answers.groups_N, draws=draws, level=LEVEL, seed=SEED)

    return Difference(answers.members[best], paired("top1"), paired("balanced_accuracy"))


def _class_scores(answers: Answers) -> tuple[ClassScore, ...]:
    scores = []
    for number, info in enumerate(answers.classes):
        own_N, called_N = answers.truth_N == number, answers.predicted_N == number
        found_N, false_N = own_N & called_N, ~own_N & called_N
        scores.append(
            ClassScore(
                info.key,
                info.name,
                info.urgency,
                int(own_N.sum()),
                int(found_N.sum()),
                share(found_N, own_N, answers),
                int(false_N.sum()),
                share(~own_N & ~called_N, ~own_N, answers),
            )
        )
    return tuple(scores)


def score_boxes(
    records: Sequence[Record], predictions: Sequence[Prediction]
) -> DetectionScore | None:
    """Score the detector on images with drawn boxes; None without a detector or a drawn box."""
    pairs = [
        (_lesions(record.boxes), _lesions(prediction.boxes))
        for record, prediction in zip(records, predictions, strict=True)
        if record.boxes is not None and prediction.boxes is not None
    ]
    return mean_average_precision([truth for truth, _ in pairs], [found for _, found in pairs])


def _lesions(boxes: Sequence[Box]) -> list[Box]:
    """Drop the classes of boxes: the detector finds lesions, the ensemble names them."""
    return [dataclasses.replace(box, label="lesion") for box in boxes]
