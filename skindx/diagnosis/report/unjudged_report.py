"""The record of photos that were not judged: why, and what the answers about the lesion ask for.

A refusal says nothing about the lesion, and neither does this record: it has no probability, no
condition and no error rate. A clinician can file with it what the photo showed, the checklist that
was answered, and the own finding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from skindx.core.errors import UserError
from skindx.core.seven_points import QUESTIONS
from skindx.diagnosis.case import Case, Patient, answers_words, facts_list
from skindx.diagnosis.checklist_advice import checklist_of, referred, unanswered_step
from skindx.diagnosis.filing import NOT_FILED, Filing, dated
from skindx.diagnosis.photo_checks import LONGEST_SIDE, VIEW_QUALITY, Refused, open_photo
from skindx.diagnosis.record import unreviewed
from skindx.diagnosis.report import PdfPart
from skindx.diagnosis.report.answer_report import opened
from skindx.diagnosis.report.patient_page import patient_refusal_page
from skindx.diagnosis.report.pdf_sheet import Sheet
from skindx.diagnosis.report.record_page import (
    FILL,
    NOTICE_FILL,
    photo_caption,
    sign_off,
    with_absent,
)
from skindx.diagnosis.scope import shared_reason
from skindx.imaging.photo_date import day_of, unbelieved
from skindx.imaging.resize import small_jpeg
from skindx.texts.catalogue import joined, speaking, text, word

if TYPE_CHECKING:
    from PIL import Image

_MOST_MM = 90
"""Greatest height of the photos."""


@dataclass(frozen=True)
class UnjudgedPhoto:
    """One photo of a case that was refused."""

    why: str
    """Why it was refused, in sentences; "": it was not, but another one of the case was."""
    jpeg: bytes = b""
    """The photo as an answer would show it; empty where its file cannot be read."""
    taken: str = ""
    """Its own date, as in `Photo.taken`."""


@dataclass(frozen=True)
class UnjudgedCase:
    """A case that has no answer."""

    photos: tuple[UnjudgedPhoto, ...]
    patient: Patient
    language: str


def unjudged(case: Case, error: Refused, day: str = "") -> UnjudgedCase:
    """Return what a record needs of a refused case; `day` is when a person says it was taken.

    Each photo is decoded in a process of its own, since nothing is known of its file.
    """
    whys = {one.photo: one.message for one in error.refusals}
    photos = []
    for place, data in enumerate(case.photos):
        jpeg, taken = b"", ""
        try:
            decoded = open_photo(data, place, needed=LONGEST_SIDE, apart=True)
            jpeg = small_jpeg(decoded.pixels_HWC, LONGEST_SIDE, quality=VIEW_QUALITY)
            when = day_of(decoded.taken)
            taken = "" if when and unbelieved(when) else decoded.taken
        except UserError:  # its refusal says so
            pass
        photos.append(UnjudgedPhoto(whys.get(place, ""), jpeg, day or taken))
    return UnjudgedCase(tuple(photos), case.patient, case.language)


def unjudged_pdf(
    case: UnjudgedCase, when: datetime, filing: Filing = NOT_FILED, part: PdfPart = "full"
) -> bytes:
    """Return the record as PDF; `when` the photos were refused.

    It has one page where it fits, and a sheet of paper for the patient. Without a technical basis
    the short one is the same.

    Raises UserError without fpdf2.
    """
    with speaking(case.language):
        return _sheet(case, when, filing, part).pdf_bytes()


def _sheet(case: UnjudgedCase, when: datetime, filing: Filing, part: PdfPart) -> Sheet:
    count, patient = len(case.photos), case.patient
    shown = [
        (opened(photo.jpeg), photo_caption(number, dated(photo.taken), patient.place))
        for number, photo in enumerate(case.photos, 1)
        if photo.jpeg
    ]
    heading = text("unjudged_heading", n=count)
    facts = (text("footer_unjudged", when=when), text("footer_preliminary"))
    names = filing.patient or text("footer_patient")
    sheet = Sheet(heading, when, (names, " · ".join(facts)))
    if part != "patient":
        _record(sheet, case, when, filing, shown)
    whose = [
        (text("patient_who"), filing.patient),
        (text("patient_spot"), patient.place),
        (text("unjudged_when"), text("record_day", when=when)),
    ]
    first = shown[0][0] if shown else None
    patient_refusal_page(sheet, patient, whose, photo=first, count=count, filing=filing, when=when)
    return sheet


def _record(
    sheet: Sheet,
    case: UnjudgedCase,
    when: datetime,
    filing: Filing,
    shown: Sequence[tuple["Image.Image", str]],
) -> None:
    """Write the record; `shown` are the photos that can be printed, with their captions."""
    count, patient = len(case.photos), case.patient
    sheet.text(text("unjudged_heading", n=count), 16, bold=True)
    sheet.text(text("record_preliminary"), 10, bold=True)
    sheet.text(text("record_hand_over"), 9)
    notice = joined(text("notice_tool"), unreviewed())
    sheet.text(notice, 9, bold=True, fill=NOTICE_FILL)
    sheet.lines(_facts(case, when, filing))
    asks, refers = referred(patient), patient.seven_points.refers
    tier = f" ({text('step_urgent')})" if refers else ""
    sheet.heading(f"{text('step_heading')}{tier}")
    fill = FILL["urgent" if refers else "soon" if asks else "unknown"]
    advice = asks or text("advice_now")
    sheet.text(advice, 12, bold=True, fill=fill)
    if asks:
        sheet.text(text("unjudged_by_answers"))
    if sooner := unanswered_step(patient).sooner:
        sheet.text(sooner)
    no_answer = (text("unjudged_no_answer"), text("not_judged"), text("cannot_rule_out"))
    sheet.text(joined(*no_answer), bold=True)
    sheet.heading(text("unjudged_why"))
    shared = shared_reason([photo.why for photo in case.photos], count)
    if shared:
        sheet.text(shared)
    for number, photo in enumerate(case.photos, 1):
        label = f"{text('photo_label', number=number)}." if count > 1 else ""
        missing = "" if photo.jpeg else text("unjudged_no_picture")
        why = "" if shared else photo.why or text("unjudged_beside")
        if why or missing:
            sheet.text(joined(label, why, missing))
    if shown:
        images, captions = zip(*shown, strict=True)
        height = max(24, min(_MOST_MM, sheet.room_above_signature()))
        sheet.strip(images, captions, height)
    sign_off(sheet, filing)


def _facts(case: UnjudgedCase, when: datetime, filing: Filing) -> list[tuple[str, str]]:
    """Return whose photos they are, of when and where, and what was answered."""
    patient, dates = case.patient, [dated(one.taken) for one in case.photos]
    known = [one or text("record_undated") for one in dates] if any(dates) else []
    person = patient.model_copy(update=dict.fromkeys(("site", "laterality", *QUESTIONS)))
    lines = [
        (text("record_patient"), filing.patient),
        (text("unjudged_when"), text("record_time", when=when)),
        (text("record_photo", n=len(dates)), "; ".join(known)),
        (text("record_site"), word(patient.site or "")),
        (text("record_side"), word(patient.laterality or "")),
        (text("record_person"), ", ".join(facts_list(person))),
    ]
    if said := answers_words(patient):
        score = [] if patient.seven_points.refers else checklist_of(patient)
        lines.append((text("record_asked"), joined(*said, *score)))
    return with_absent(lines)
