"""Compute the results of an evaluation from predictions: plain values, no files, no models.

A dataset with other classes is joined by key, name or code; images of other classes are counted.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import starmap
from typing import Any, Literal

import numpy as np

from skindx.core.errors import UserError
from skindx.data.box import Box
from skindx.data.manifest import Record
from skindx.evaluation.answers import Answers, Contamination, Ints
from skindx.evaluation.breakdown import (
    Breakdown,
    CancerMisses,
    UrgentMisses,
    breakdowns,
    cancer_misses,
    groups_among,
    share,
    urgent_misses,
)
from skindx.evaluation.elsewhere import Elsewhere
from skindx.evaluation.figures import (
    LEVEL,
    SEED,
    Scores,
    measure_scores,
    observed_over_expected,
    plain,
)
from skindx.evaluation.guarantee_scores import (
    SetScores,
    UrgentRiskScores,
    set_scores,
    urgent_scores,
)
from skindx.evaluation.input_effects import (
    Assisted,
    KnownFacts,
    measure_assistance,
    measure_known_facts,
)
from skindx.evaluation.member_gains import FigureGain, member_gains, networks_of
from skindx.evaluation.questions import QuestionScore, question_scores
from skindx.evaluation.served_scores import (
    Majority,
    OodScore,
    ServedScore,
    SpectrumScore,
    majority_of,
    modality_alone,
    refused_images,
    score_modality,
    score_ood,
    served_scores,
    spectrum_scores,
)
from skindx.metrics import (
    DetectionScore,
    Interval,
    ReliabilityBin,
    RiskPoint,
    confusion_CC,
    mean_average_precision,
    reliability_bins,
    risk_curve,
)
from skindx.models.ensemble import Prediction
from skindx.models.urgent_risk import Question, not_useful
from skindx.taxonomy import SkinClass, Taxonomy

How = Literal["key", "name", "code", "none"]


@dataclass(frozen=True, slots=True)
class ClassMatch:
    """A class of the dataset and the bundle's class that means the same, by its key."""

    label: str
    key: str
    """"" when the bundle has none, or several that it could be."""
    how: How
    pictures: int


@dataclass(frozen=True, slots=True)
class External:
    """The scored part of a dataset with other classes; the rest is only counted."""

    matches: tuple[ClassMatch, ...]
    left_out: int
    """Images of classes that the bundle does not know."""
    absent: tuple[str, ...]
    """Names of the bundle's classes that no scored image shows."""


def join_taxonomies(
    records: Sequence[Record], theirs: Taxonomy | None, ours: Taxonomy, bundle: str
) -> tuple[list[Record], External | None]:
    """Return the records whose class the bundle knows, under its keys, and what was left out.

    The second is None when dataset and bundle have the same classes. Raises UserError when the
    bundle knows none of the dataset's.
    """
    counts = Counter(record.label for record in records)
    matches = [_match(label, n, theirs, ours) for label, n in sorted(counts.items())]
    key_of = {match.label: match.key for match in matches if match.key}
    if not key_of:
        raise UserError(
            f"{bundle} has none of the classes of the dataset ({', '.join(sorted(counts)[:5])}) "
            f"by key, name or code among its own {len(ours.classes)}; give a dataset with some of "
            "the bundle's classes."
        )
    known = [
        replace(record, label=key_of[record.label]) for record in records if record.label in key_of
    ]
    same = all(match.how == "key" for match in matches)
    if same and (theirs is None or set(theirs.keys) == set(ours.keys)):
        return known, None
    shown = {record.label for record in known}
    absent = tuple(skin_class.name for skin_class in ours.classes if skin_class.key not in shown)
    return known, External(tuple(matches), len(records) - len(known), absent)


def _match(label: str, images: int, theirs: Taxonomy | None, ours: Taxonomy) -> ClassMatch:
    """Match by key, then by name or synonym, then by a code that stands for one class in both."""
    if label in ours.keys:
        return ClassMatch(label, label, "key", images)
    their = theirs.find(label) if theirs else None
    by_name = _only(ours.find(word) for word in (label, *((their.name,) if their else ())))
    if by_name is None and theirs and their:
        by_synonym = (ours.find(word) for word in their.synonyms)
        by_theirs = (
            one
            for one in ours.classes
            if any(theirs.find(word) == their for word in (one.key, one.name, *one.synonyms))
        )
        by_name = _only([*by_synonym, *by_theirs])
    if by_name:
        return ClassMatch(label, by_name.key, "name", images)
    if theirs and their and their.icd10 and _bearers(theirs, their.icd10) == [their]:
        bearers = _bearers(ours, their.icd10)
        if len(bearers) == 1:
            return ClassMatch(label, bearers[0].key, "code", images)
    return ClassMatch(label, "", "none", images)


def _only(classes_or_none: Iterable[SkinClass | None]) -> SkinClass | None:
    """Return the class that is found, None when there is none or more than one."""
    classes = {skin_class.key: skin_class for skin_class in classes_or_none if skin_class}
    return next(iter(classes.values())) if len(classes) == 1 else None


def _bearers(taxonomy: Taxonomy, code: str) -> list[SkinClass]:
    return [skin_class for skin_class in taxonomy.classes if skin_class.icd10 == code]


@dataclass(frozen=True, slots=True)
class ClassScore:
    """How many of a class's `n` images are found; intervals count each group once.

    `called` counts the images of other classes that were given this name.
    """

    key: str
    name: str
    urgency: str
    n: int
    found: int
    sensitivity: Interval
    called: int
    specificity: Interval
    groups: int
    """Lesions, patients or clusters of copies that the `n` images are of."""
    observed_over_expected: Interval
    """Images of the class over the sum of its probabilities; 1 is calibrated, above 1 the class is
    commoner than the probabilities say."""


@dataclass(frozen=True, slots=True)
class Confusion:
    """How many images of one class were given another's name; a share of the class's images."""

    truth: str
    predicted: str
    n: int
    rate: Interval


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Everything measured on one split; `k` is 5, or the number of classes if that is less."""

    not_useful: tuple[str, ...]
    """Why the bundle is not useful yet, in sentences; empty where nothing measured says so."""
    served: tuple[ServedScore, ...]
    """Next steps, abstentions and refusals of urgent images, of the others and of all; empty where
    the answers know no next step."""
    spectrum: tuple[SpectrumScore, ...]
    """Images with histology, those confirmed in other ways, and all; empty where the manifest does
    not tell them apart."""
    majority: Majority
    """The commonest class, which a predictor that looks at nothing would name."""
    pictures: int
    """Number of images."""
    groups: int
    """Number of patients, lesions or sets of copies, over which intervals are taken."""
    draws: int
    """Number of bootstrap draws of an interval."""
    level: float
    """Level of the intervals, 0.95."""
    k: int
    ensemble: Scores
    """Headline figures of the answers as they are served."""
    members: tuple[Scores, ...]
    """Headline figures of each member."""
    gains: tuple[FigureGain, ...]
    """What the ensemble gains over its members, a figure each; empty for one member."""
    classes: tuple[ClassScore, ...]
    """Images, sensitivity, specificity and observed over expected of each class."""
    confusion: tuple[tuple[int, ...], ...]
    """Rows are true classes, columns predicted ones, in the order of `classes`."""
    confusions: tuple[Confusion, ...]
    """The commonest mistakes, at most eight."""
    reliability: tuple[ReliabilityBin, ...]
    """Accuracy by confidence, in bins of equal width."""
    risk_curve: tuple[RiskPoint, ...]
    """Error when only the more confident images are answered."""
    urgent: UrgentMisses | None
    """Missed urgent images; None when no image is of an urgent class."""
    cancers: tuple[CancerMisses, ...]
    """Melanoma, squamous and basal cell carcinoma missed by the likeliest class."""
    sets: SetScores | None
    """Figures of the conformal sets; None for a bundle without such sets."""
    urgent_risk: UrgentRiskScores | None
    """Figures of the urgent risk; None for a bundle without a threshold of it."""
    soon_risk: UrgentRiskScores | None
    """Figures of the risk of urgent and soon classes together."""
    questions: tuple[QuestionScore, ...]
    """Both questions of urgency and melanoma, where there are images of both kinds."""
    breakdowns: tuple[Breakdown, ...]
    """Figures by skin type, age, sex, site, source and how the label was confirmed."""
    has_detector: bool
    """Whether the bundle finds boxes."""
    detector: DetectionScore | None
    """Figures of the detector; None without a detector or without an image with a drawn box."""
    external: External | None
    """Facts of a dataset with other classes; None when it has the bundle's classes."""
    assisted: Assisted | None = None
    """Effect of boxes; None for a bundle without a fusion weight."""
    seen: int = 0
    """Images that were left out, because the bundle was made from them."""
    contamination: Contamination = field(default_factory=Contamination)
    """Images that were left out as such or as copies of such."""
    ood: OodScore | None = None
    """Refusals of the out-of-distribution check; None for a bundle without one."""
    known_facts: KnownFacts | None = None
    """Effect of age, sex and place; None where no answer uses one."""
    modality: OodScore | None = None
    """Refusals of the check for photos of the other modality; None for a bundle without one."""
    elsewhere: Elsewhere | None = None
    """Changes against the bundle's own dataset; None where they were not asked for."""

    def risk(self, question: Question) -> UrgentRiskScores | None:
        """Return what was measured of the thresholds of a question."""
        return {"urgent_risk": self.urgent_risk, "soon_risk": self.soon_risk}[question]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; a figure that is not defined is None."""
        values: dict[str, Any] = plain(self)
        return values


# N = images, C = classes, M = members


def score(
    answers: Answers,
    *,
    draws: int = 1000,
    has_detector: bool = False,
    detector: DetectionScore | None = None,
    external: External | None = None,
    validation: Answers | None = None,
    predictions: Sequence[Prediction] = (),
) -> Evaluation:
    """Measure an ensemble and its members; `detector` is what `score_boxes` found.

    `validation` are the same predictor's answers to validation images, which choose the better
    member. Without them the gain over each stands. `predictions` of the same images say which are
    refused as of the other modality.

    Intervals are of 95 % and resample groups; one seed, so every figure sees the same draws.
    """
    truth_N, ensemble_NC = answers.truth_N, answers.ensemble_NC
    scores = partial(
        measure_scores,
        truth_N=truth_N, groups_N=answers.groups_N, mix_C=answers.mix_C, draws=draws,
    )  # fmt: skip
    counts_CC = confusion_CC(ensemble_NC, truth_N)
    refused_N = refused_images(answers, predictions)
    served = served_scores(answers, refused_N, modality_alone(answers, predictions))
    sets = set_scores(answers, draws=draws)
    questions = question_scores(answers, draws=draws)
    return Evaluation(
        not_useful=_not_useful(answers, served, sets, questions),
        served=served,
        spectrum=spectrum_scores(answers, refused_N, draws=draws),
        majority=majority_of(answers),
        pictures=len(answers),
        groups=len(np.unique(answers.groups_N)),
        draws=draws,
        level=LEVEL,
        k=min(5, len(answers.classes)),
        ensemble=scores("ensemble", ensemble_NC),
        members=tuple(starmap(scores, networks_of(answers).items())),
        gains=member_gains(answers, validation, draws=draws),
        classes=_class_scores(answers, draws),
        confusion=tuple(tuple(int(count) for count in row) for row in counts_CC),
        confusions=_confusions(answers, counts_CC),
        reliability=reliability_bins(ensemble_NC, truth_N, answers.groups_N, level=LEVEL),
        risk_curve=risk_curve(ensemble_NC, truth_N, answers.groups_N, level=LEVEL),
        urgent=urgent_misses(answers),
        cancers=cancer_misses(answers),
        sets=sets,
        urgent_risk=urgent_scores(answers),
        soon_risk=urgent_scores(answers, "soon_risk"),
        questions=questions,
        breakdowns=breakdowns(answers, draws=draws),
        has_detector=has_detector,
        detector=detector,
        external=external,
    )


def measure(
    records: Sequence[Record],
    predictions: Sequence[Prediction],
    answers: Answers,
    *,
    draws: int,
    external: External | None = None,
    seen: int = 0,
    validation: Answers | None = None,
) -> Evaluation:
    """Measure the answers, the boxes and the refusals of the same images."""
    evaluation = score(
        answers,
        draws=draws,
        has_detector=any(prediction.boxes is not None for prediction in predictions),
        detector=score_boxes(records, predictions, draws=draws),
        external=external,
        validation=validation,
        predictions=predictions,
    )
    return replace(
        evaluation,
        assisted=measure_assistance(answers, predictions, draws=draws),
        known_facts=measure_known_facts(answers, predictions, draws=draws),
        seen=seen,
        ood=score_ood(records, predictions),
        modality=score_modality(records, predictions),
    )


def _not_useful(
    answers: Answers,
    served: Sequence[ServedScore],
    sets: SetScores | None,
    questions: Sequence[QuestionScore],
) -> tuple[str, ...]:
    """Return why the bundle is not useful yet; without next steps its thresholds are judged."""
    urgent = next((one.operating for one in questions if one.key == "urgent_risk"), None)
    called = next((one.rates["urgent"] for one in served if one.name == "other classes"), None)
    if called is None and urgent:
        spared = urgent.specificity
        called = Interval(1 - spared.value, 1 - spared.high, 1 - spared.low)
    names = {one.key: one.name for one in answers.classes}
    counts = answers.calibration_images or {}
    return not_useful(
        others_urgent=called if answers.urgent_C.any() else None,
        all_classes=sets.every_class if sets else None,
        over_refer_all=urgent.over_refer_all if urgent else None,
        images={names[key]: count for key, count in counts.items() if key in names},
        urgent=[one.name for one in answers.classes if one.urgency == "urgent"],
    )


def _class_scores(answers: Answers, draws: int) -> tuple[ClassScore, ...]:
    scores = []
    for number, info in enumerate(answers.classes):
        of_class_N, called_N = answers.truth_N == number, answers.predicted_N == number
        right_N, false_N = of_class_N & called_N, ~of_class_N & called_N
        scores.append(
            ClassScore(
                info.key,
                info.name,
                info.urgency,
                int(of_class_N.sum()),
                int(right_N.sum()),
                share(right_N, of_class_N, answers),
                int(false_N.sum()),
                share(~of_class_N & ~called_N, ~of_class_N, answers),
                groups_among(of_class_N, answers),
                observed_over_expected(answers, [number], draws=draws),
            )
        )
    return tuple(scores)


def _confusions(answers: Answers, counts_CC: Ints) -> tuple[Confusion, ...]:
    wrong_CC = counts_CC * ~np.eye(len(counts_CC), dtype=bool)
    sizes_C = np.maximum(counts_CC.sum(axis=1), 1)

    def one(truth: int, predicted: int) -> Confusion:
        of_class_N = answers.truth_N == truth
        rate = share(answers.predicted_N == predicted, of_class_N, answers)
        names = (answers.classes[truth].name, answers.classes[predicted].name)
        return Confusion(*names, int(wrong_CC[truth, predicted]), rate)

    pairs = [(int(truth), int(predicted)) for truth, predicted in np.argwhere(wrong_CC)]
    pairs.sort(key=lambda pair: (-wrong_CC[pair], -wrong_CC[pair] / sizes_C[pair[0]]))
    return tuple(one(*pair) for pair in pairs[:8])


def score_boxes(
    records: Sequence[Record], predictions: Sequence[Prediction], *, draws: int
) -> DetectionScore | None:
    """Score the detector on images with drawn boxes; None without a detector or a drawn box."""
    pairs = [
        (_lesions(record.boxes), _lesions(prediction.boxes), record.group)
        for record, prediction in zip(records, predictions, strict=True)
        if record.boxes is not None and prediction.boxes is not None
    ]
    truth, detected, groups = zip(*pairs, strict=True) if pairs else ((), (), ())
    return mean_average_precision(truth, detected, groups, draws=draws, level=LEVEL, seed=SEED)


def _lesions(boxes: Sequence[Box]) -> list[Box]:
    """Drop the classes of boxes: the detector finds lesions, the ensemble names them."""
    return [dataclasses.replace(box, label="lesion") for box in boxes]
