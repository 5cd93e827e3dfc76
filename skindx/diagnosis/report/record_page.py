"""The first page of the printed report: a record that one can file.

It has whose it is, next step, reason, both errors of the advice, the set, the model's scope, the
photos, and at its foot a clinician's finding, name and signature.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from importlib.metadata import version
from typing import TYPE_CHECKING

from skindx.core.seven_points import QUESTIONS
from skindx.diagnosis import answer_texts, decision_texts
from skindx.diagnosis.advice_figures import combined
from skindx.diagnosis.case import FactsAdded, answers_words, facts_list, nouns, person_with
from skindx.diagnosis.case_actions import by_login, standing
from skindx.diagnosis.checklist_advice import (
    checklist_short,
    checklist_words,
    is_met,
    urgency_given,
)
from skindx.diagnosis.filing import (
    Filing,
    NoteChange,
    agreement_with,
    photo_dates,
    possible,
    record_lines,
    status_sentence,
)
from skindx.diagnosis.record import (
    CaseAnswer,
    Diagnosis,
    Photo,
    PhotoView,
    unreviewed,
)
from skindx.diagnosis.report.pdf_sheet import Sheet
from skindx.diagnosis.report.record_tables import conditions_table, decides
from skindx.diagnosis.scope import as_on_the_page, missing_cancers
from skindx.taxonomy import Urgency
from skindx.texts.catalogue import joined, text

if TYPE_CHECKING:
    from PIL import Image

NOTICE_FILL, NEUTRAL_FILL = (255, 243, 214), (238, 240, 243)
FILL: dict[Urgency, tuple[int, int, int]] = {
    "urgent": (252, 226, 224),
    "soon": (255, 238, 205),
    "routine": (226, 240, 232),
    "unknown": (226, 234, 244),
}
_NOTED = {
    "written": "record_note_written",
    "changed": "record_note_changed",
    "removed": "record_note_removed",
}
_ROWS, _ROWS_AMENDED = 7, 4
"""Conditions on page 1; the technical basis has all."""
_PHOTO_MM, _LEAST_PHOTO_MM, _SMALLEST_PHOTO_MM = 125, 40, 24
"""Height of the photos on page 1, which fill the room that the words leave: the most, that for
which letters become smaller, and the least."""
_DONE = 3
"""Entries of what was done that stand on page 1, the last ones; the technical basis has all."""
SHORT_NOTE = 300
"""Characters of a note that stand on page 1; a longer one stands in the technical basis."""

Outline = Callable[[Photo, PhotoView], "Image.Image"]


def record_page(
    sheet: Sheet,
    answer: CaseAnswer,
    when: datetime,
    filing: Filing,
    outlined: Outline,
    *,
    is_short: bool = False,
) -> bool:
    """Write page 1; `outlined` draws the boxes of a photo.

    `is_short`: no technical basis follows, so that it says where that is and what answered.

    Return whether all is on one page, with photos large enough: not where the sheet's letters are
    too large for so many words.
    """
    diagnosis = answer.diagnosis
    heading = text("paper_heading")
    if filing.number:
        heading = text("paper_heading_version", number=str(filing.number))
    sheet.text(heading, 16, bold=True)
    amended = filing.status == "amended"
    sheet.text(status_sentence(filing, when), 9 if amended else 10, bold=not amended)
    if amended:
        sheet.text(text("record_sign_anew"), bold=True)
    sheet.text(text("record_hand_over"), 9)
    warnings = answer_texts.warnings(diagnosis)
    # The rest of the notice is for whoever is no clinician.
    notice = joined(text("notice_tool"), unreviewed(), *warnings)
    sheet.text(notice, 9, bold=True, fill=NOTICE_FILL)
    sheet.lines(_facts(diagnosis, filing, when))
    if sheet.lacking:
        sheet.text(text("paper_letters"), bold=True)
    if one := filing.recorded:
        named = text("record_line", name=text("record_recorded"), value=one.history)
        sheet.text(named, 11, bold=True, fill=FILL["unknown"])
    if filing.found_elsewhere:
        sheet.text(filing.found_elsewhere, 11, bold=True, fill=FILL["unknown"])
    if filing.untreated:
        sheet.text(filing.untreated, 11, bold=True, fill=FILL["urgent"])
    compared = agreement_with(diagnosis, one) if one else ""
    if weight := joined(filing.contradicts, compared, filing.weight):
        sheet.text(weight, 10, bold=True, fill=NOTICE_FILL)
    _step(sheet, diagnosis, filing)
    is_full = bool(filing.recorded or filing.found_elsewhere or warnings)
    # Of a lesion whose diagnosis is confirmed, conditions that are no answer stand behind alone.
    unread = filing.is_advice_past and diagnosis.abstained
    _set(sheet, diagnosis, 0 if unread else _ROWS_AMENDED if is_full else _ROWS)
    scope = answer_texts.scope(diagnosis)
    said = [joined(scope[0], diagnosis.learned_images)] if scope else []
    said += _remarks(diagnosis)
    beside = said if len(diagnosis.photos) == 1 else []
    for words in said if not beside else ():
        sheet.text(words)
    if is_short:
        source, software = diagnosis.source, version("skindx")
        names = {"version": software, "name": source.name, "day": source.created[:10]}
        digest = (source.digest or source.version)[:16]
        sheet.text(text("record_short_basis", digest=digest, **names), 8, faint=True)
    place = person_with(diagnosis.patient, filing.added).place
    dates = enumerate(photo_dates(diagnosis), 1)
    captions = [photo_caption(number, date, place) for number, date in dates]
    room = sheet.room_above_signature()
    height = max(_SMALLEST_PHOTO_MM, min(_PHOTO_MM, room))
    views = zip(diagnosis.photos, answer.views, strict=True)
    sheet.strip([outlined(photo, view) for photo, view in views], captions, height, beside)
    sign_off(sheet, filing)
    return sheet.pages == 1 and room >= _LEAST_PHOTO_MM


def sign_off(sheet: Sheet, filing: Filing) -> None:
    """Write what a clinician fills in: a finding, what was decided, and a signature."""
    ticks = [text(key) for key in ("record_referred", "record_follow_up", "record_excision")]
    who, *lines = map(text, ("record_clinician", "record_signed", "record_signature"))
    signs = ((who, filing.clinician), *((line, "") for line in lines))
    sheet.sign_off(text("record_finding"), ticks, signs)


def _step(sheet: Sheet, diagnosis: Diagnosis, filing: Filing) -> None:
    """Write the advice, its reason and its errors; in small where a diagnosis took its place."""
    step = diagnosis.next_step
    past = filing.is_advice_past
    heading = text("record_advised" if past else "step_heading")
    timed = step.urgency != "unknown" and not is_met(diagnosis)
    tier = f" ({answer_texts.step_name(diagnosis)})" if timed else ""
    sheet.heading(f"{heading}{tier}")
    fill = NEUTRAL_FILL if past else FILL[urgency_given(diagnosis)]
    if filing.past:
        sheet.text(filing.past, 10, bold=True, fill=fill)
        sheet.text(text("record_advice_was", advice=step.advice), 9, faint=True)
    else:
        sheet.text(step.parts[0], 10 if past else 12, bold=True, fill=fill)
    unsure = answer_texts.unsure(diagnosis)
    short = "" if filing.is_advice_past else checklist_short(diagnosis)
    because = joined(step.because, short, combined(diagnosis), _unknown_cancer(diagnosis))
    errors = joined(*decision_texts.errors(diagnosis))
    reasons = [(step.parts[1], False), (unsure, True), (because, False)]
    if answer_texts.suspected(diagnosis):
        reasons = [(because, True), (unsure, False), (step.parts[1], False)]
    if past:  # the clinician's diagnosis has taken its place
        told = [words for words, _ in reasons if not (filing.past and words == step.parts[1])]
        said = (*told, text("cannot_rule_out"), errors)
        sheet.text(joined(*said), 9, faint=True)
    else:
        for words, bold in reasons:
            if words:
                sheet.text(words, bold=bold)
        sheet.text(text("cannot_rule_out"), bold=True)
        sheet.text(errors)


def _unknown_cancer(diagnosis: Diagnosis) -> str:
    """Return which urgent cancer the model cannot name; "" of an urgent step, or where said."""
    step, names = diagnosis.next_step, missing_cancers(diagnosis)
    if step.urgency == "urgent" or not names:
        return ""
    said = text("no_wait_unknown", names=names)
    return "" if said in step.because else said


def _remarks(diagnosis: Diagnosis) -> list[str]:
    """Return the limits of the photos' quality, those of several photos once."""
    found: dict[tuple[str, ...], list[str]] = {}
    for number, photo in enumerate(diagnosis.photos, 1):
        found.setdefault(photo.remarks, []).append(str(number))
    return [
        joined(*remarks, text("record_photos", numbers=numbers))
        if len(numbers) > 1
        else joined(f"{text('photo_label', number=int(numbers[0]))}.", *remarks)
        for remarks, numbers in found.items()
        if remarks
    ]


def _facts(diagnosis: Diagnosis, filing: Filing, when: datetime) -> list[tuple[str, str]]:
    """Return the lines of page 1: whose the answer is, of when and where, and what was noted.

    The heading has the version, and the technical basis all earlier diagnoses.
    """
    alone = replace(filing, recorded=None, version=0)
    lines = [
        (one.label, one.value)
        for one in record_lines(diagnosis, alone, when)
        if one.code != "recorded-before" and not (filing.recorded and one.code == "taken-back")
    ]
    known = person_with(diagnosis.patient, filing.added)
    if (place := known.place) and known.laterality:
        lines = [one for one in lines if one[0] != text("record_side")]
        lines = [(a, place if a == text("record_site") else b) for a, b in lines]
    lines += _recorded(filing)
    person = known.model_copy(update=dict.fromkeys(("site", "laterality", *QUESTIONS)))
    lines.append((text("record_person"), ", ".join(facts_list(person))))
    if later := [one for one in filing.added if one not in filing.at_keeping]:
        lines.append((text("record_facts_added"), joined(*map(_added, later))))
    if said := answers_words(diagnosis.patient):
        told = checklist_short(diagnosis) and not filing.is_advice_past  # below the advice
        score = [] if told else checklist_words(diagnosis)[:1]
        lines.append((text("record_asked"), joined(*said, *score)))
    if filing.note:
        short = len(filing.note) <= SHORT_NOTE
        lines.append((text("record_note"), filing.note if short else text("record_note_below")))
    if changed := filing.note_changed:
        noted = _when_and_who(changed)
        if filing.is_note_older:
            noted = text("record_note_older", noted=noted)
        lines.append((text(_NOTED[changed.what]), noted))
    if fits := filing.note_fits:
        lines.append((text("record_note_fits"), _when_and_who(fits)))
    if done := standing(filing.actions):
        shown, more = done[-_DONE:], len(done) - _DONE
        rest = text("record_done_more", n=more) if more > 0 else ""
        lines.append((text("record_done"), joined(*(one.words for one in shown), rest)))
    return with_absent(lines)


def with_absent(lines: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return lines of which those without a value are named in one, save the first.

    That is for the patient, whose name can be written on it.
    """
    absent = [label for label, value in lines[1:] if not value]
    given = [lines[0], *(one for one in lines[1:] if one[1])]
    return [*given, (text("record_absent"), ", ".join(absent))] if absent else given


def photo_caption(number: int, *facts: str) -> str:
    """Return which photo one is, and what is known of its date and place."""
    return ", ".join(filter(None, (text("photo_label", number=number), *facts)))


def _added(one: FactsAdded) -> str:
    """Return which facts were added, when and by whom, in a sentence."""
    said = {"facts": nouns(one.given), "when": one.when}
    if one.by:
        return text("record_facts_added_by", who=by_login(one.by), **said)
    return text("record_facts_added_on", **said)


def _when_and_who(change: NoteChange) -> str:
    if change.who:
        return text("record_when_who", when=change.when, who=change.who)
    return text("record_seconds", when=change.when)


def _recorded(filing: Filing) -> list[tuple[str, str]]:
    """Return what was confirmed last, if another stands, what stood before, and why it changed.

    What stands has a box below.
    """
    last, stands = filing.last_confirmed, filing.recorded
    before = filing.earlier[-1] if filing.earlier else None
    lines = []
    if last and last is not stands:
        lines.append((text("record_last_confirmed"), last.history))
    if stands and not stands.when:
        lines.append((text("record_on"), text("record_unknown")))
    if before and before is not last:
        lines.append((text("record_before"), before.history))
    if before and before.reason:
        lines.append((text("record_why"), before.reason))
    return lines


def _set(sheet: Sheet, diagnosis: Diagnosis, rows: int) -> None:
    """Write the first `rows` conditions in the page's order, or what the photo resembles.

    Those that are also possible stand among those of the set, which are marked.
    """
    if diagnosis.abstained:
        sheet.text(text("record_no_condition"), bold=True)
        named = diagnosis.listed
        if not rows:
            return
        sheet.text(text("resembles"), 10, bold=True)
    else:
        listed = (*possible(diagnosis), *diagnosis.outside)
        named = tuple(one for one in as_on_the_page(diagnosis) if one in listed)
        ranked = [one for one in diagnosis.candidates if one in listed]
        heading = "record_set" if list(named) == ranked else "record_set_named"
        sheet.text(text(heading), 10, bold=True)
    several = len(named) > 1 and any(decides(diagnosis, one) for one in named)
    says_named = bool(diagnosis.outside) or several
    table, widths = conditions_table(diagnosis, named[:rows], says_named=says_named)
    sheet.table(table, widths, faint=bool(diagnosis.abstained))
    if (rest := len(named) - rows) > 0 and not diagnosis.abstained:
        sheet.text(text("record_more", n=rest), faint=True)
    # Why a bundle has no sets is technical.
    has_sets = diagnosis.promise is not None or diagnosis.abstained
    promise = answer_texts.set_sentence(diagnosis) if has_sets else text("set_unknown")
    spots = (
        answer_texts.less_sure(diagnosis),
        *answer_texts.weak_spots(diagnosis),
        *answer_texts.doubts(diagnosis),
    )
    also = text("record_also_means") if diagnosis.outside else ""
    if said := joined(also, *spots, promise):
        sheet.text(said)
