"""What the product does with labelled images, as it is served, and whether that is useful yet.

Next steps, abstentions and refusals come first: a user gets these, whatever the probabilities are
worth. Images that histology confirmed stand apart from the rest: follow-up confirms what nobody
doubted, and a test of such easy images makes every figure better than it is in a clinic (spectrum
bias: Ransohoff and Feinstein 1978; STARD-AI asks for the reference standard).

N = images, C = classes
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from skindx.core.seven_points import answers_from, seven_points
from skindx.data.manifest import Record
from skindx.evaluation.answers import Answers
from skindx.evaluation.breakdown import (
    LEAST_GROUPS,
    LEAST_IMAGES,
    Bools,
    FalseAlarms,
    UrgentMisses,
    called_positive,
    groups_among,
    missed_of,
    raised_of,
    share,
)
from skindx.evaluation.figures import LEVEL, SEED
from skindx.imaging.photo_gates import RATE
from skindx.metrics import Interval, Ranked, Statistic, confidence_interval, share_interval
from skindx.models.ensemble import Prediction
from skindx.models.urgent_risk import urgent_risks
from skindx.taxonomy.lexicon import site_of

STEPS = ("urgent", "soon", "unknown", "routine", "none")
"""Urgencies of the next step; none: the photo is refused, so there is no answer."""
ALONE = " (modality alone)"
"""End of the name of a row of images that the check of modality alone refuses."""
_HISTOLOGY = re.compile(r"hist|biops|pathol", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ServedScore:
    """What was done with the images of some classes; shares are of all these images.

    Of urgent classes 1 minus the share of `urgent` is one kind of error, of the other classes the
    share of `urgent` is the other kind.
    """

    name: str
    n: int
    groups: int
    steps: dict[str, int]
    """How many images got which next step, by STEPS; a refused image has none."""
    rates: dict[str, Interval]
    """Shares of these images by next step, with intervals."""
    abstained: int
    """Answered images without a condition that is named with confidence."""
    abstained_rate: Interval

    @property
    def alone(self) -> bool:
        """Whether the row counts the images that the check of modality alone refuses."""
        return self.name.endswith(ALONE)


@dataclass(frozen=True, slots=True)
class Majority:
    """The commonest class: who always names it is right for the share `top1` of the images."""

    key: str
    name: str
    n: int
    groups: int
    top1: Interval


@dataclass(frozen=True, slots=True)
class SpectrumScore:
    """The figures of images whose label was confirmed in one way, or in any."""

    name: str
    n: int
    groups: int
    majority: Majority
    top1: Interval
    auroc: Interval
    """AUROC of one class against the rest, averaged over the classes that these images show."""
    urgent_auroc: Interval
    """AUROC of the urgent risk; NaN without images of both kinds."""
    urgent: UrgentMisses | None
    """Urgent images whose next step is not urgent, refused ones included; None: no such image."""
    others: FalseAlarms | None
    """Images of other classes whose next step is urgent; None: no such image."""


@dataclass(frozen=True, slots=True)
class OodScore:
    """The share refused, beside the share of images like the calibration images that may be.

    A dataset of the bundle's own kind stays near `promised`; one of another camera or of other
    conditions should be refused more often.
    """

    refused: Interval
    promised: float
    n: int


def score_ood(records: Sequence[Record], predictions: Sequence[Prediction]) -> OodScore | None:
    """Return how many are refused; None for a bundle without a check.

    Images of one group count as one.
    """
    checks = [prediction.ood for prediction in predictions if prediction.ood]
    if not checks or len(checks) < len(predictions):
        return None
    out_N = np.array([check.p_value <= check.rate for check in checks])
    groups = [record.group for record in records]
    return OodScore(share_interval(out_N, groups), checks[0].rate, len(checks))


def score_modality(records: Sequence[Record], predictions: Sequence[Prediction]) -> OodScore | None:
    """Return how many are refused as of the other modality; None for a bundle without the check."""
    if not predictions or any(one.other_modality is None for one in predictions):
        return None
    out_N = np.array([one.other_modality for one in predictions])
    return OodScore(share_interval(out_N, [one.group for one in records]), RATE, len(out_N))


def refused_images(answers: Answers, predictions: Sequence[Prediction] = ()) -> Bools:
    """Return which images are refused, as out of distribution or of the other modality."""
    refused_N = np.zeros(len(answers), dtype=bool)
    if answers.ood_N is not None and answers.ood_rate is not None:
        refused_N |= answers.ood_N <= answers.ood_rate
    for row, prediction in enumerate(predictions):
        refused_N[row] |= bool(prediction.other_modality)
    return refused_N


def modality_alone(answers: Answers, predictions: Sequence[Prediction]) -> Bools:
    """Return which images the check of modality refuses, and nothing else."""
    other_N = np.array([bool(one.other_modality) for one in predictions], dtype=bool)
    return other_N & ~refused_images(answers) if len(other_N) else np.zeros(len(answers), bool)


def served_scores(
    answers: Answers, refused_N: Bools, alone_N: Bools | None = None
) -> tuple[ServedScore, ...]:
    """Count next steps among urgent images, among the others and among all.

    Where people were asked about lesions, the images with answers follow, without and with the
    7-point checklist; then the images `alone_N`, which the check of modality alone refuses, with
    the next steps that they have where a person says how the photo was taken. Empty without next
    steps, as in the evaluation of an older version.
    """
    if answers.steps is None:
        return ()
    unrefused_N = np.array(answers.steps)
    steps_N = np.where(refused_N, "none", unrefused_N)
    abstained_N = np.zeros(len(answers), dtype=bool)
    if answers.abstained_N is not None:
        abstained_N = answers.abstained_N & ~refused_N
    urgent_N, every_N = answers.urgent_C[answers.truth_N], np.ones(len(answers), dtype=bool)
    kinds = [
        ("urgent classes", urgent_N, steps_N),
        ("other classes", ~urgent_N, steps_N),
        ("all", every_N, steps_N),
    ]
    asked_N, refers_N = _by_checklist(answers)
    raised_N = np.where(refers_N, "urgent", steps_N)
    for name, of_N in (("urgent classes", urgent_N), ("other classes", ~urgent_N)):
        kinds += [
            (f"{name} with answers", of_N & asked_N, steps_N),
            (f"{name} by the checklist too", of_N & asked_N, raised_N),
        ]
    if alone_N is not None:
        kinds += [(f"{name}{ALONE}", of_N & alone_N, unrefused_N) for name, of_N, _ in kinds[:2]]
    return tuple(
        ServedScore(
            name,
            int(of_N.sum()),
            groups_among(of_N, answers),
            {step: int((said_N[of_N] == step).sum()) for step in STEPS},
            {step: share(said_N == step, of_N, answers) for step in STEPS},
            int(abstained_N[of_N].sum()),
            share(abstained_N, of_N, answers),
        )
        for name, of_N, said_N in kinds
        if of_N.any()
    )


def _by_checklist(answers: Answers) -> tuple[Bools, Bools]:
    """Return of which images an item of the checklist is known, and which it refers."""
    texts = answers.facts.get("answers", ("",) * len(answers))
    sites = answers.facts.get("site", ("",) * len(answers))
    scores = [
        seven_points(answers_from(said or ""), site_of(site or ""))
        for said, site in zip(texts, sites, strict=True)
    ]
    known = [score.known > 0 for score in scores]
    return np.array(known, dtype=bool), np.array([score.refers for score in scores], dtype=bool)


def majority_of(answers: Answers) -> Majority:
    """Return the commonest class, of equals the first."""
    commonest = int(np.bincount(answers.truth_N, minlength=len(answers.classes)).argmax())
    of_N, info = answers.truth_N == commonest, answers.classes[commonest]
    every_N, groups = np.ones(len(answers), dtype=bool), groups_among(of_N, answers)
    return Majority(info.key, info.name, int(of_N.sum()), groups, share(of_N, every_N, answers))


def spectrum_scores(answers: Answers, refused_N: Bools, *, draws: int) -> tuple[SpectrumScore, ...]:
    """Measure images with histology, those confirmed in all other ways, and all.

    Empty unless histology confirmed enough images, and another way some.
    """
    ways = answers.facts.get("confirmed_by", ("",) * len(answers))
    histology_N = np.array([bool(_HISTOLOGY.search(way or "")) for way in ways])
    groups = groups_among(histology_N, answers)
    if histology_N.sum() < LEAST_IMAGES or groups < LEAST_GROUPS or histology_N.all():
        return ()
    other = "follow-up and other ways" if any("follow" in way for way in ways) else "other ways"
    every_N = np.ones(len(answers), dtype=bool)
    kinds = (("histology", histology_N), (other, ~histology_N), ("all", every_N))
    return tuple(_spectrum(name, of_N, answers, refused_N, draws) for name, of_N in kinds)


def _spectrum(
    name: str, of_N: Bools, answers: Answers, refused_N: Bools, draws: int
) -> SpectrumScore:
    part = answers.some(of_N)
    urgent_N = part.urgent_C[part.truth_N]
    risk_N = urgent_risks(part.ensemble_NC, np.flatnonzero(part.urgent_C).tolist())
    called_N = (
        np.array(part.steps) == "urgent"
        if part.steps is not None
        else called_positive(part, part.urgent_C, part.urgent_risk)
    ) & ~refused_N[of_N]

    def interval(measure: Statistic | Ranked) -> Interval:
        return confidence_interval(measure, part.groups_N, draws=draws, level=LEVEL, seed=SEED)

    return SpectrumScore(
        name,
        len(part),
        len(np.unique(part.groups_N)),
        majority_of(part),
        interval(Statistic.share(part.right_N)),
        interval(Ranked.auroc(part.ensemble_NC, part.truth_N)),
        interval(
            Ranked.auroc(np.column_stack([1 - risk_N, risk_N]), urgent_N.astype(np.intp), [1])
        ),
        missed_of(urgent_N & ~called_N, urgent_N, part),
        raised_of(called_N & ~urgent_N, ~urgent_N, part),
    )
