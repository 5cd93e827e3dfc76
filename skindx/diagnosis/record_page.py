"""The first pages of the printed report: a record that one can file, and a page for the patient.

The record has whose it is, next step, reason, both errors of the advice, the set, and lines for a
clinician's name and signature. The page for the patient repeats the advice in everyday words.
"""

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from skindx.diagnosis import answer_texts
from skindx.diagnosis.filing import (
    Filing,
    photo_dates,
    possible,
    record_lines,
    status_sentence,
    tier_of,
    urgent_first,
)
from skindx.diagnosis.pdf_sheet import Sheet
from skindx.diagnosis.record import CaseAnswer, Diagnosis, Photo, PhotoView
from skindx.taxonomy import Urgency
from skindx.texts.catalogue import joined, percent, text

if TYPE_CHECKING:
    from PIL import Image

NOTICE_FILL = (255, 243, 214)
_FILL: dict[Urgency, tuple[int, int, int]] = {
    "urgent": (252, 226, 224),
    "soon": (255, 238, 205),
    "routine": (226, 240, 232),
    "unknown": (226, 234, 244),
}
_STEPS: dict[Urgency, str] = {
    "urgent": "step_urgent",
    "soon": "step_soon",
    "routine": "step_routine",
    "unknown": "step_unknown",
}
"""Keys of the tiers beside the heading of the next step."""
_ROWS, _ROWS_AMENDED = 5, 3
"""Conditions of the set on page 1; the technical basis has all."""
_PHOTO_MM, _PHOTO_SMALL_MM = 46, 34
"""Height of the photos on page 1, the smaller one where warnings take room."""

Outline = Callable[[Photo, PhotoView], "Image.Image"]


def record_page(
    sheet: Sheet, answer: CaseAnswer, when: datetime, filing: Filing, outlined: Outline
) -> None:
    """Write page 1; `outlined` draws the boxes of a photo."""
    diagnosis = answer.diagnosis
    sheet.text(text("paper_heading"), 16, bold=True)
    sheet.text(status_sentence(filing), 10, bold=True)
    warnings = answer_texts.warnings(diagnosis)
    sheet.text(joined(diagnosis.notice, *warnings), 9, bold=True, fill=NOTICE_FILL)
    sheet.lines([(one.label, one.value) for one in record_lines(diagnosis, filing, when)])
    if sheet.lacking:
        sheet.text(text("paper_letters"), bold=True)
    captions = [
        text("photo_label", number=number) + (f", {date}" if date else "")
        for number, date in enumerate(photo_dates(diagnosis), 1)
    ]
    views = zip(diagnosis.photos, answer.views, strict=True)
    height = _PHOTO_SMALL_MM if warnings or filing.recorded else _PHOTO_MM
    sheet.strip([outlined(photo, view) for photo, view in views], captions, height)
    if filing.recorded:
        sheet.text(text("recorded_counts"), 10, bold=True, fill=NOTICE_FILL)
    step = diagnosis.next_step
    heading = text("record_advised" if filing.recorded else "step_heading")
    sheet.heading(f"{heading} ({text(_STEPS[step.urgency])})")
    sheet.text(step.advice, 12, bold=True, fill=_FILL[step.urgency])
    sheet.text(step.because)
    sheet.text(text("cannot_rule_out"), bold=True)
    sheet.text(" ".join(answer_texts.errors(diagnosis)))
    _set(sheet, diagnosis, _ROWS_AMENDED if filing.recorded else _ROWS)
    sheet.signature([text("record_clinician"), text("record_signature")])


def _set(sheet: Sheet, diagnosis: Diagnosis, rows: int) -> None:
    """Write the first `rows` conditions that are named, urgent ones first, or that none is."""
    if unsure := answer_texts.unsure(diagnosis):
        sheet.text(joined(unsure, text("record_no_condition")), bold=True)
        return
    named = urgent_first(possible(diagnosis))
    has_set = any(one.in_set for one in named)
    sheet.text(text("record_set" if has_set else "record_leading"), 10, bold=True)
    sheet.table(
        [
            (one.name, one.icd10 or "–", tier_of(diagnosis, one), percent(one.probability))
            for one in named[:rows]
        ],
        (60, 14, 14, 12),
        headed=False,
    )
    if (rest := len(named) - rows) > 0:
        sheet.text(text("record_more", n=rest), faint=True)
    sheet.text(answer_texts.set_sentence(diagnosis), faint=True)


def patient_half(sheet: Sheet, diagnosis: Diagnosis, filing: Filing) -> None:
    """Write half a page in everyday words, on a page of its own."""
    sheet.page()
    sheet.text(text("patient_heading"), 14, bold=True)
    named = text("patient_knows", n=len(diagnosis.known)) if diagnosis.known else ""
    looked = text("patient_looked", n=len(diagnosis.photos))
    recorded = filing.recorded
    advice: tuple[str, ...]
    if recorded:
        advice = (text("patient_recorded", name=recorded.name), text("patient_follow"))
    else:
        no_name = text("patient_no_name") if diagnosis.abstained else ""
        advised = diagnosis.next_step.advice
        advice = (advised, text("patient_clinician"), no_name, text("patient_wait"))
    cannot = ("patient_cannot_touch", "patient_cannot_wrong", "patient_cannot_well")
    come = ("patient_come_today", "patient_come_spot", "patient_ask")
    for heading, sentences in (
        ("patient_looked_heading", (looked, named, "" if recorded else text("patient_alone"))),
        ("patient_recorded_heading" if recorded else "patient_advice_heading", advice),
        ("patient_cannot_heading", tuple(map(text, cannot))),
        ("patient_come_heading", tuple(map(text, come))),
    ):
        sheet.gap()
        sheet.text(text(heading), 11.5, bold=True)
        sheet.text(joined(*sentences), 11)
    sheet.rule()
