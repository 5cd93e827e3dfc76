"""An answer in sentences and codes, as a report in every clinical format repeats it.

The order is that of the printed report: notice, next step and abstention before any condition.

A condition has a SNOMED CT code here only where one concept means it beyond doubt: a class that
holds more than one disease (Bowen's disease with actinic keratosis, benign keratosis, vascular
lesion) has none, nor has one of which we were not sure. No clinician has reviewed the table; what
is written with these codes says so. Places follow DICOM PS3.16, context groups 4029 and 8134.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path

from skindx.core.text import printable
from skindx.diagnosis import answer_texts, decision_texts
from skindx.diagnosis.advice_figures import Metrics
from skindx.diagnosis.case import facts_list
from skindx.diagnosis.case_actions import entries_by_day
from skindx.diagnosis.checklist_advice import checklist_short, is_met
from skindx.diagnosis.filing import (
    NOT_FILED,
    Filing,
    RecordLine,
    agreement_with,
    possible,
    record_lines,
    status_sentence,
    urgent_first,
)
from skindx.diagnosis.record import Candidate, Diagnosis
from skindx.diagnosis.record_figures import UrgentRisk
from skindx.diagnosis.scope import knows, shown_tier
from skindx.models.conformal import Share
from skindx.models.urgent_risk import Question
from skindx.taxonomy import advice_for, normalise
from skindx.taxonomy.lexicon import Site, site_table
from skindx.texts.catalogue import joined, percent, text, word

SNOMED, SNOMED_URI = "SCT", "http://snomed.info/sct"
ICD10, ICD10_URI, ICD10_OID = (
    "I10C",
    "http://hl7.org/fhir/sid/icd-10-cm",
    "2.16.840.1.113883.6.90",
)
"""ICD-10-CM as DICOM, FHIR and an object identifier name it."""


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


def sections(
    diagnosis: Diagnosis,
    metrics: Metrics,
    when: datetime,
    filing: Filing = NOT_FILED,
    *,
    study_date: str | None = None,
) -> tuple[Section, ...]:
    """Return the whole answer and its record; `metrics` are the bundle's own (`Bundle.metrics`).

    It was given at `when`, in local time. `study_date` is that of the photo's file, "" where the
    file gives none; None: the report is of no study.
    """
    one = filing.recorded
    compared = agreement_with(diagnosis, one) if one else ""
    said = filing.found_elsewhere, filing.untreated, filing.contradicts, compared, filing.weight
    recorded = joined(*said)
    record = [line.sentence for line in record_lines(diagnosis, filing, when)]
    if study_date is not None:
        recorded = joined(recorded, text("sr_unverified") if filing.status == "amended" else "")
        record.append(RecordLine("study", text("record_study"), study_date).sentence)
    done = [one.in_full for _, one in entries_by_day(filing.actions)]
    parts = [
        ("notice", "notice_heading", [diagnosis.notice, *answer_texts.warnings(diagnosis)]),
        ("record", "record_heading", [status_sentence(filing, when), recorded, *record]),
        (
            "next-step",
            "record_advised" if filing.is_advice_past else "step_heading",
            next_step(diagnosis),
        ),
        (
            "conditions",
            "resembles" if diagnosis.abstained else "all_conditions",
            _conditions(diagnosis),
        ),
        (
            "photos",
            "photos_heading",
            [
                joined(
                    text("refused_photo", number=number),
                    photo.boxes_found,
                    *photo.remarks,
                    text("heat_off") if photo.heat_off else "",
                )
                for number, photo in enumerate(diagnosis.photos, 1)
            ],
        ),
    ]
    if done:
        parts.append(("done", "done_heading", done))
    if facts := facts_list(diagnosis.patient):
        given = [text("facts_given", facts=facts), diagnosis.use_of_facts]
        parts.append(("given-facts", "facts_heading", given))
    rests_on = (*decision_texts.decided(diagnosis), *answer_texts.basis(diagnosis, metrics))
    parts.append(("basis", "basis_heading", [text("codes_not_reviewed"), *rests_on]))
    return tuple(
        Section(code, text(heading), tuple(map(printable, filter(None, sentences))))
        for code, heading, sentences in parts
    )


def next_step(diagnosis: Diagnosis) -> list[str]:
    """Return what to do, why, that the model abstains if it does, and what is not ruled out."""
    step, unsure = diagnosis.next_step, answer_texts.unsure(diagnosis)
    errors = joined(*decision_texts.errors(diagnosis))
    because = joined(step.because, checklist_short(diagnosis))
    reasons = [because, unsure] if answer_texts.suspected(diagnosis) else [unsure, because]
    return [step.advice, *reasons, text("cannot_rule_out"), errors]


_HAD_ADVISED = {
    "urgent": "record_had_urgent",
    "urgent_cancer": "record_had_urgent",
    "soon": "record_had_soon",
    "soon_cancer": "record_had_soon",
    "routine": "record_had_routine",
}
"""Keys of what was advised before a clinician recorded a confirmed diagnosis, by the advice."""
MOST_WORDS = 60
"""Words of a conclusion: who reads a list of reports reads no more."""


def conclusion(diagnosis: Diagnosis, filing: Filing = NOT_FILED) -> str:
    """Return the answer in at most MOST_WORDS words, which the longest names do not exceed.

    The conditions are named where they fit, urgent ones first, or else counted. What a clinician
    recorded comes first.
    """
    named = urgent_first(possible(diagnosis))
    has_set = any(one.in_set for one in named)
    names = [one.name for one in named]
    listed, short = joined(answer_texts.suspected(diagnosis), answer_texts.unsure(diagnosis)), ""
    if diagnosis.abstained:
        short = text("record_no_condition")
    elif names:
        key = "record_conclusion" if has_set else "record_conclusion_likely"
        listed = text(key, names=names)
        short = text("record_conclusion_count", count=len(names))
    recorded, advice = filing.elsewhere or filing.recorded, diagnosis.next_step.advice
    if recorded and filing.is_advice_past:  # its place is before the software's answer
        had = (said for key, said in _HAD_ADVISED.items() if advice_for(key) == advice)
        other = "record_had_urgent" if is_met(diagnosis) else "record_had_other"
        advice = text(next(had, other))
        listed, short = agreement_with(diagnosis, recorded), ""
    parts = {
        "recorded": _recorded(filing, 12),
        "advice": advice,
        "conditions": listed,
        "no_disease": text("cannot_rule_out"),
        "notice": "" if recorded else text("notice_tool"),
    }
    if _words(parts) > MOST_WORDS:
        parts["conditions"] = short
    if _words(parts) > MOST_WORDS:  # an advice that is not ours, of an older version
        parts["notice"] = ""
        parts["conditions"] = ""
    return joined(*parts.values())


def _recorded(filing: Filing, most: int) -> str:
    """Return what a clinician recorded, with so many words of its name."""
    if not (one := filing.elsewhere or filing.recorded):
        return ""
    key = "record_conclusion_elsewhere" if filing.elsewhere else "record_conclusion_recorded"
    return text(key, name=_first(one.words, most), how=one.basis)


def _first(name: str, most: int) -> str:
    words = name.split()
    return name if len(words) <= most else f"{' '.join(words[:most])} …"


def _words(parts: Mapping[str, str]) -> int:
    return len(joined(*parts.values()).split())


@dataclass(frozen=True)
class RiskFigure:
    """One number behind a risk, a share from 0 to 1; with its interval where it was measured."""

    code: str
    name: str
    value: float
    interval: Share | None = None


def risk_is_sure(diagnosis: Diagnosis, risk: UrgentRisk) -> bool:
    """Return whether a risk may be reported: an abstention doubts it, and it may then only warn.

    From the threshold on it stays; below, it would reassure falsely. Of a case that the model
    learned nothing about it says nothing at all.
    """
    return not diagnosis.beyond and (risk.is_reached or not diagnosis.abstained)


def risk_figures(risk: UrgentRisk, question: Question) -> list[RiskFigure]:
    """Return the threshold, both of its errors, and the predictive values that are known."""
    keys = _RISK_NAMES[question]
    split = risk.measured_on
    figures = [
        RiskFigure("threshold", text(keys["threshold"]), risk.threshold),
        RiskFigure("accepted-misses", text(keys["accepted-misses"]), risk.miss_rate),
        RiskFigure("misses-bound", text(keys["misses-bound"]), risk.bound),
        RiskFigure("confidence", text("risk_confidence"), risk.confidence),
    ]
    if risk.sent_on:
        name = text(keys["calibration-called"])
        figures.append(RiskFigure("calibration-called", name, risk.sent_on.value, risk.sent_on))
    for code, key, share in (
        ("missed", "risk_missed", risk.measured_missed),
        ("called", "risk_called", risk.measured_sent_on),
    ):
        if share:
            figures.append(RiskFigure(code, text(key, split=split), share.value, share))
    for code, key, value in (
        ("prevalence", "risk_prevalence", risk.prevalence),
        ("ppv", "risk_ppv", risk.ppv),
        ("npv", "risk_npv", risk.npv),
    ):
        if value is not None:
            figures.append(RiskFigure(code, text(key), value))
    return figures


_RISK_NAMES: dict[Question, dict[str, str]] = {
    "urgent_risk": {
        "risk": "risk_urgent",
        "threshold": "risk_urgent_from",
        "reached": "risk_urgent_reached",
        "accepted-misses": "risk_urgent_missed",
        "misses-bound": "risk_urgent_bound",
        "calibration-called": "risk_urgent_called",
    },
    "soon_risk": {
        "risk": "risk_soon",
        "threshold": "risk_soon_from",
        "reached": "risk_soon_reached",
        "accepted-misses": "risk_soon_missed",
        "misses-bound": "risk_soon_bound",
        "calibration-called": "risk_soon_called",
    },
}
"""Keys of the names of a question's figures."""


def risk_name(question: Question) -> str:
    """Return what the risk of a question is called."""
    return text(_RISK_NAMES[question]["risk"])


def reached_name(question: Question) -> str:
    """Return what it means that a risk reaches its threshold."""
    return text(_RISK_NAMES[question]["reached"])


def _conditions(diagnosis: Diagnosis) -> list[str]:
    rows = []
    for candidate in diagnosis.listed:
        tier = shown_tier(diagnosis, candidate) or "unknown"
        code = text("code", name=candidate.icd10) if candidate.icd10 else ""
        facts = ", ".join(fact for fact in (code, "" if tier == "unknown" else word(tier)) if fact)
        in_set = f", {text('in_set')}" if candidate.in_set and not diagnosis.abstained else ""
        named = f"{word(candidate.name)} ({facts})" if facts else word(candidate.name)
        rows.append(f"{named}: {percent(candidate.probability)}{in_set}.")
    known = (knows(diagnosis.known), answer_texts.learned_from(diagnosis))
    rest = [*known, *answer_texts.unknown(diagnosis)]
    if diagnosis.abstained:
        return [*rows, *rest]
    weak = [answer_texts.less_sure(diagnosis), *answer_texts.weak_spots(diagnosis)]
    return [*rows, answer_texts.set_sentence(diagnosis), *weak, diagnosis.agreement, *rest]
