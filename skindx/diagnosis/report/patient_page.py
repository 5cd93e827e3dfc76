"""The page of the printed report for the patient: the advice of page 1 in everyday words.

It holds nothing else, so that it can be handed over alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from skindx.diagnosis.case import Patient
from skindx.diagnosis.checklist_advice import (
    is_met,
    met_by,
    referred,
)
from skindx.diagnosis.filing import (
    Filing,
)
from skindx.diagnosis.record import (
    CaseAnswer,
    Diagnosis,
    unreviewed,
)
from skindx.diagnosis.report.pdf_sheet import Sheet
from skindx.diagnosis.report.record_page import Outline
from skindx.taxonomy import advice_for
from skindx.texts.catalogue import text, word

if TYPE_CHECKING:
    from PIL import Image


def patient_page(
    sheet: Sheet, answer: CaseAnswer, filing: Filing, when: datetime, outlined: Outline
) -> None:
    """Write a page in everyday words: whose it is, of when and which spot, and nothing technical.

    What a clinician recorded comes first, and the program's advice stands where it still counts.
    """
    of_when = "patient_footer_kept" if filing.undated else "patient_footer"
    _own_sheet(sheet, filing, of_when, when)
    sheet.text(text("patient_heading"), 16, bold=True)
    diagnosis, one = answer.diagnosis, filing.elsewhere or filing.recorded
    spot, place = filing.lesion, diagnosis.patient.place
    if spot and place:
        spot = text("patient_spot_named", place=place, spot=spot)
    lines = [
        (text("patient_who"), filing.patient),
        (text("patient_spot"), spot or place),
        (
            text("record_kept" if filing.undated else "record_answered"),
            text("record_day", when=when),
        ),
    ]
    if one:
        found = text("record_day", when=one.when) if one.when else text("record_unknown")
        lines += [(text("record_on"), found)]
        lines += [(text("record_by"), one.clinician)] if one.clinician else []
    sheet.lines(lines, outlined(diagnosis.photos[0], answer.views[0]))
    if filing.status == "amended":
        sheet.text(text("patient_replaces"), 12)
    if filing.others and not (filing.is_confirmed and not filing.contradicts):
        changed = "patient_other" if filing.is_confirmed else "patient_other_doubt"
        sheet.text(text(changed if one else "patient_taken_back"), 12, bold=True)
    clinician = filing.clinician or (one.clinician if one else "")
    books = filing.is_untreated or not filing.is_advice_past
    _write_parts(sheet, _patient_parts(diagnosis, filing), clinician, books=books)


def patient_refusal_page(
    sheet: Sheet,
    patient: Patient,
    facts: Sequence[tuple[str, str]],
    *,
    photo: "Image.Image | None",
    count: int,
    filing: Filing,
    when: datetime,
) -> None:
    """Write the same page about `count` photos that were not judged; `facts` say whose."""
    _own_sheet(sheet, filing, "patient_footer_refused", when)
    sheet.text(text("patient_heading"), 16, bold=True)
    sheet.lines(facts, photo)
    look = "" if referred(patient) else text("patient_unexamined")
    wait = (text("patient_wait"), text("patient_clinician"))
    refused = text("patient_not_judged", n=count), text("patient_refusal_well")
    parts = (
        ("patient_advice_heading", (refused_advice(patient), look, *wait)),
        ("patient_today_heading", (text("patient_come_today"),)),
        ("patient_come_heading", (text("patient_come_spot"),)),
        ("patient_looked_heading", (*refused, text("patient_ask"), unreviewed())),
    )
    _write_parts(sheet, parts, filing.clinician, books=True)


def _own_sheet(sheet: Sheet, filing: Filing, of_when: str, when: datetime) -> None:
    """Begin a sheet that can be handed over: its foot has no word that is for clinicians."""
    names, _ = filing.footer(when)
    notes = text("notes_heading"), text("notes_why")
    version = text("footer_version", number=str(filing.number)) if filing.number else ""
    facts = " · ".join(filter(None, (text(of_when, when=when), version)))
    sheet.own_sheet((names, facts), notes)


def refused_advice(patient: Patient) -> str:
    """Return what the answers ask for without any model, in words for the patient."""
    if not referred(patient):
        return text("patient_unknown")
    if patient.seven_points.refers:
        return text("patient_urgent")
    return text("patient_met", conditions=met_by(patient))


def _write_parts(
    sheet: Sheet,
    parts: Iterable[tuple[str, tuple[str, ...]]],
    clinician: str,
    *,
    books: bool,
) -> None:
    """Write headings with their sentences, and lines to fill in below what to do.

    `books`: one of them is for the day by which the patient has an appointment, or calls.
    """
    for heading, sentences in parts:
        sheet.gap()
        sheet.text(text(heading), 13, bold=True)
        for sentence in filter(None, sentences):
            sheet.text(sentence, 12)
        if heading in ("patient_next_heading", "patient_advice_heading"):
            if books:
                sheet.text(text("patient_call_by"), 12)
            sheet.gap()
            to_fill = [(text("patient_by"), "")] if books else []
            to_fill += [(text("patient_appointment"), "")]
            to_fill += [(text("patient_your_clinician"), clinician)]
            sheet.lines([*to_fill, (text("patient_practice"), "")])


def _patient_parts(diagnosis: Diagnosis, filing: Filing) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield headings and sentences for the patient, in their order."""
    wait = (text("patient_wait"), text("patient_clinician"))
    one, cannot = filing.elsewhere or filing.recorded, text("patient_not_diagnosis")
    is_confirmed = bool(one and one.confirmed_by)
    if one:
        key = "patient_recorded" if is_confirmed else "patient_unconfirmed"
        named = text(key, name=word(one.name))
        yield "patient_recorded_heading", (named, text("patient_explains"))
    if filing.is_advice_past:
        follow = "patient_follow" if is_confirmed else "patient_wait"
        yield "patient_next_heading", (text(follow), text("patient_call"))
    else:
        several = len(diagnosis.photos)
        no_name = text("patient_no_name", n=several) if diagnosis.abstained else ""
        advice = patient_advice(diagnosis)
        look = text("patient_unexamined") if _is_unexamined(diagnosis) else ""
        yield "patient_advice_heading", (advice, look, no_name, *wait)
    yield "patient_today_heading", (text("patient_come_today"),)
    if not filing.is_advice_past:
        yield "patient_come_heading", (text("patient_come_spot"),)
    known = text("patient_knows", n=len(diagnosis.known)) if diagnosis.known else ""
    looked = text("patient_looked", n=len(diagnosis.photos))
    seen = filing.status == "amended" or filing.note or filing.clinician  # a clinician wrote it
    last = (text("patient_ask"), unreviewed())
    if filing.is_advice_past:
        yield "patient_looked_heading", (looked, cannot, *last)
        return
    yield "patient_looked_heading", (looked, known, "" if seen else text("patient_alone"))
    limits = text("patient_cannot_touch", n=len(diagnosis.photos)), text("patient_cannot_wrong")
    yield "patient_cannot_heading", (*limits, cannot, text("patient_cannot_well"), *last)


_PLAIN = {
    "urgent": "patient_urgent",
    "urgent_cancer": "patient_urgent",
    "soon": "patient_soon",
    "soon_cancer": "patient_soon",
    "routine": "patient_routine",
    "unknown": "patient_unknown",
    "soon_without_time": "patient_soon_without_time",
    "soon_now": "patient_soon_without_time",
    "now": "patient_unknown",
    "without_time": "patient_unknown",
}


def patient_advice(diagnosis: Diagnosis) -> str:
    """Return the advice in words for the patient; one of an older version stays as it is."""
    if is_met(diagnosis):
        return text("patient_met", conditions=met_by(diagnosis.patient))
    advice = diagnosis.next_step.advice
    return next((text(plain) for key, plain in _PLAIN.items() if advice_for(key) == advice), advice)


def _is_unexamined(diagnosis: Diagnosis) -> bool:
    """Tell whether the advice leaves it to a clinician's examination when to come."""
    return patient_advice(diagnosis) == text("patient_unknown")
