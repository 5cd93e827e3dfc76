"""An answer in sentences and codes, as a report in every clinical format repeats it.

The order is that of the printed report: notice, next step and abstention before any condition.

A condition has a SNOMED CT code here only where one concept means it beyond doubt: a class that
holds more than one disease (Bowen's disease with actinic keratosis, benign keratosis, vascular
lesion) has none, nor has one of which we were not sure. No clinician has reviewed the table; what
is written with these codes says so. Places follow DICOM PS3.16, context groups 4029 and 8134.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from skindx.core.text import printable
from skindx.diagnosis.answer_report import basis
from skindx.diagnosis.case import patient_facts
from skindx.diagnosis.guarantees import guarantee, risk_guarantee
from skindx.diagnosis.record import CANNOT_RULE_OUT, Candidate, Diagnosis, UrgentRisk, percent
from skindx.diagnosis.scope import Scope, lacks, shown_tier
from skindx.models.conformal import Share
from skindx.models.urgent_risk import QUESTION_WORDS, Question
from skindx.taxonomy import normalise
from skindx.taxonomy.lexicon import Site, site_table

SNOMED, SNOMED_URI = "SCT", "http://snomed.info/sct"
ICD10, ICD10_URI, ICD10_OID = (
    "I10C",
    "http://hl7.org/fhir/sid/icd-10-cm",
    "2.16.840.1.113883.6.90",
)
"""ICD-10-CM as DICOM, FHIR and an object identifier name it."""
NOT_REVIEWED = "The SNOMED CT codes were not clinically reviewed."


@dataclass(frozen=True)
class Concept:
    """A code and its meaning; its system is that of the table it stands in."""

    code: str
    meaning: str


@cache
def conditions() -> Mapping[str, Concept]:
    """Return SNOMED CT disorders by the normalised name of a class.

    The file has one a line: its code, its name, and the names of our classes where they are others.
    """
    table: dict[str, Concept] = {}
    for line in (Path(__file__).parent / "conditions.txt").read_text("utf-8").splitlines():
        code, _, names = line.partition(" ")
        meaning, *others = names.split(" = ")
        table |= {normalise(name): Concept(code, meaning) for name in others or [meaning]}
    return table


@cache
def sites() -> Mapping[Site, Concept]:
    """Return SNOMED CT body structures; `palm or sole` is no single one."""
    return {
        site: Concept(*row.concept.split(" ", 1))
        for site, row in site_table().items()
        if row.concept
    }


def snomed(candidate: Candidate) -> Concept | None:
    """Return the SNOMED CT disorder of a condition; None where none is certain."""
    return conditions().get(normalise(candidate.name))


@dataclass(frozen=True)
class Section:
    """A heading and its sentences, printable and not escaped."""

    code: str
    """The same in every report, whatever the heading says."""
    heading: str
    sentences: tuple[str, ...]


def sections(diagnosis: Diagnosis, metrics: dict[str, Any] | None) -> tuple[Section, ...]:
    """Return the whole answer; `metrics` are the bundle's own (`Bundle.metrics`)."""
    source = diagnosis.source
    parts = [
        ("notice", "Notice", [diagnosis.notice, source.learned_from]),
        ("next-step", "Next step", next_step(diagnosis)),
        ("conditions", *_conditions(diagnosis)),
        (
            "photos",
            "Photos",
            [
                " ".join((f"Photo {number}: {photo.boxes_found}", *photo.remarks))
                for number, photo in enumerate(diagnosis.photos, 1)
            ],
        ),
    ]
    if facts := patient_facts(diagnosis.patient):
        given = "; ".join(f"{name}: {value}" for name, value in facts)
        parts.append(
            (
                "given-facts",
                "Information given about the person",
                [f"{given}.", diagnosis.use_of_facts],
            )
        )
    parts.append(("basis", "Basis of this answer", [NOT_REVIEWED, *basis(diagnosis, metrics)]))
    return tuple(
        Section(code, heading, tuple(printable(text) for text in texts if text))
        for code, heading, texts in parts
    )


def next_step(diagnosis: Diagnosis) -> list[str]:
    """Return what to do and why, what is not ruled out, and that the model abstains if it does."""
    step = diagnosis.next_step
    unsure = f"The model does not know. {diagnosis.abstained}" if diagnosis.abstained else ""
    return [step.advice, step.because, CANNOT_RULE_OUT, risk_guarantee(diagnosis), unsure]


def possible(diagnosis: Diagnosis) -> tuple[Candidate, ...]:
    """Return the conditions that the answer names: its set, or without sets the leading ones.

    None where the model abstains.
    """
    if diagnosis.abstained:
        return ()
    in_set = tuple(candidate for candidate in diagnosis.candidates if candidate.in_set)
    return in_set or diagnosis.candidates[: diagnosis.next_step.classes]


@dataclass(frozen=True)
class RiskFigure:
    """One number behind a risk, a share from 0 to 1; with its interval where it was measured."""

    code: str
    name: str
    value: float
    interval: Share | None = None


def risk_is_sure(diagnosis: Diagnosis, risk: UrgentRisk) -> bool:
    """Return whether a risk may be reported: an abstention doubts it, and it may then only warn.

    From the threshold on it stays; below, it would reassure falsely.
    """
    return risk.is_reached or not diagnosis.abstained


def risk_figures(risk: UrgentRisk, question: Question) -> list[RiskFigure]:
    """Return the threshold, both of its errors, and the predictive values that are known."""
    condition, called = QUESTION_WORDS[question]
    split = risk.measured_on
    figures = [
        RiskFigure("threshold", f"{called} from this risk on", risk.threshold),
        RiskFigure("accepted-misses", f"{condition} lesions below it, on average", risk.miss_rate),
        RiskFigure("misses-bound", f"{condition} lesions below it, 95 % bound", risk.bound),
        RiskFigure("confidence", "confidence in the accepted misses", risk.confidence),
    ]
    for code, name, share in (
        ("calibration-called", f"other calibration images called {called}", risk.sent_on),
        ("missed", f"{condition} conditions missed, {split} images", risk.measured_missed),
        ("called", f"others called {called}, {split} images", risk.measured_sent_on),
    ):
        if share:
            figures.append(RiskFigure(code, name, share.value, share))
    for code, name, value in (
        ("prevalence", f"prevalence of {condition} conditions", risk.prevalence),
        ("ppv", "positive predictive value at this prevalence", risk.ppv),
        ("npv", "negative predictive value at this prevalence", risk.npv),
    ):
        if value is not None:
            figures.append(RiskFigure(code, name, value))
    return figures


def _conditions(diagnosis: Diagnosis) -> tuple[str, list[str]]:
    rows = []
    for candidate in diagnosis.candidates:
        tier = shown_tier(diagnosis, candidate)
        code = f"ICD-10-CM {candidate.icd10}" if candidate.icd10 else ""
        facts = ", ".join(text for text in (code, tier) if text)
        in_set = ", in the set" if candidate.in_set and not diagnosis.abstained else ""
        named = f"{candidate.name} ({facts})" if facts else candidate.name
        rows.append(f"{named}: {percent(candidate.probability)}{in_set}.")
    rest = [Scope(diagnosis.known).text, lacks(diagnosis.unknown_urgent)]
    if diagnosis.abstained:
        return "What it resembles most (not an answer)", rows + rest
    return "What it may be", [*rows, guarantee(diagnosis), diagnosis.agreement, *rest]
