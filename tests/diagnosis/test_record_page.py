"""Page 1 of the printed report, which one can file, and the page for the patient."""

import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from clinical_answers import answered, diagnosed
from hypothesis import given
from hypothesis import strategies as st
from painted_answers import jpeg, plain, rich
from pdf_words import words_of

from skindx.core.seven_points import QUESTIONS
from skindx.diagnosis.case import Case, FactsAdded, Patient
from skindx.diagnosis.case_actions import ActionKind, CaseAction
from skindx.diagnosis.checklist_advice import referred, with_checklist
from skindx.diagnosis.filing import (
    Filing,
    NoteChange,
    RecordedDiagnosis,
    agreement_with,
    record_lines,
    urgent_first,
)
from skindx.diagnosis.record import CaseAnswer, NextStep, PhotoView
from skindx.diagnosis.report import PdfPart, answer_report, pdf_sheet
from skindx.diagnosis.report.answer_report import report_pdf
from skindx.diagnosis.report.patient_page import patient_advice, refused_advice
from skindx.diagnosis.scope import as_on_the_page
from skindx.taxonomy import Urgency, advice_for
from skindx.texts.catalogue import sentences, speaking, text

DEJAVU = pdf_sheet.dejavu
WHEN = datetime(2026, 11, 29, 18, 5, tzinfo=timezone(timedelta(hours=1), "CET"))
NEVUS = RecordedDiagnosis("Nevus (mole)", "D22.9", "histopathology", who="ann", when=WHEN)


def pages(answer: CaseAnswer, filing: Filing | None = None, part: PdfPart = "full") -> list[str]:
    """Return what the record, the patient's page and the pages between say, footers last."""
    words = words_of(report_pdf(answer, None, WHEN, filing or Filing(), part))
    words = words.replace("\\(", "(").replace("\\)", ")")
    first, *between, patient = re.split(r"page \d+ of ?", words)
    return [first, patient, *between]


@pytest.fixture(autouse=True)
def readable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)  # its letters can be read in the file


@pytest.mark.parametrize("abstained", [False, True])
@pytest.mark.parametrize("photos", [1, 3])
def test_page_1_is_a_whole_record_and_the_last_page_is_the_patient_s_alone(
    photos: int, abstained: bool
) -> None:
    answer = answered(photos=photos, abstained=abstained)
    first, second, third, *_ = pages(answer, Filing("P-017"))
    order = ["This report is preliminary", "not a medical device", "P-017",
             "29 November 2026, 18:05 CET", "back", "54 years", "Next step",
             answer.diagnosis.next_step.advice[:20], "cannot rule out any disease",
             "How often this advice is wrong",
             "The model names no condition" if abstained else "What it may be, by probability",
             "Urgency", answer.diagnosis.candidates[1].name, "The model knows 9 conditions",
             f"Photo {photos}", "Clinician's finding", "Referral to", "Follow-up on",
             "Biopsy or excision on", "Clinician Signed on", "Signature"]  # fmt: skip
    places = [first.find(words) for words in order]
    assert -1 not in places, list(zip(order, places, strict=True))
    assert places == sorted(places)
    assert "Technical basis" not in first
    order = ["For the patient", "P-017", "29 November 2026", "What to do", "this spot",
             "When to get help at once", "When to see a clinician", "What was looked at",
             "What the program cannot know"]  # fmt: skip
    places = [second.find(words) for words in order]
    assert -1 not in places
    assert places == sorted(places)
    assert not re.search(r"Technical|ICD|Probab|doctor within|\d %|preliminary", second)
    short = pages(answer, Filing("P-017"), "short")
    assert "The technical basis is in the full report" in short[0]
    assert f"bundle painted of 2026-01-02, digest {'cd' * 8}." in short[0]
    assert (short[1], len(short)) == (second, 3)
    assert "Technical basis" not in " ".join(short)
    assert "Notes" in short[2]
    at_once = second.partition("When to get help at once")[2]
    assert "within days" not in at_once.partition("When to see a clinician")[0]
    assert third.lstrip().startswith("Technical basis")
    assert (text("patient_no_name", n=photos) in second) == abstained


@pytest.mark.parametrize("photos", [1, 2, 3])
def test_the_patient_s_page_is_the_front_of_a_sheet_of_paper(photos: int) -> None:
    """Whoever prints both sides hands nothing else over; a page for notes stands behind page 1."""
    answer = answered(photos=photos)
    parts: tuple[PdfPart, ...] = ("full", "short", "patient")
    for part in parts:
        pdf = report_pdf(answer, None, WHEN, Filing("P-017"), part)
        words = words_of(pdf).partition("For the patient")[0]
        count = len(re.findall(rb"/Type /Page\b", pdf))
        assert count % 2 == 1
        assert len(re.findall(r"page \d+ of", words)) == count - 1
    assert count == 1


def test_nothing_is_invented_where_nobody_gave_it() -> None:
    bare = rich(Case((jpeg(64, 48),)))
    lines = {one.code: one.value for one in record_lines(bare.diagnosis, Filing(), WHEN)}
    assert lines == {"patient": "", "answered": "29 November 2026, 18:05 CET",
                     "photo-date": "", "site": "", "side": ""}  # fmt: skip
    placed = rich(Case((jpeg(64, 48),), Patient(site="arm", laterality="left")))
    lines = {one.code: one.value for one in record_lines(placed.diagnosis, Filing("P"), WHEN)}
    assert (lines["patient"], lines["site"], lines["side"]) == ("P", "arm", "left")


def test_what_nobody_gave_is_one_line_and_leaves_room_for_the_photo(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bare = rich(Case((jpeg(640, 480),)))
    heights: list[float] = []
    strip = pdf_sheet.Sheet.strip

    def noted(self: pdf_sheet.Sheet, *given: Any, **more: Any) -> None:
        heights.extend(given[2:3] if not more else ())  # of page 1, not of the rows of page 3
        strip(self, *given, **more)

    monkeypatch.setattr(pdf_sheet.Sheet, "strip", noted)
    first, *_ = pages(bare)
    absent = "Date of the photo, Place on the body, Side of the body, About the person"
    assert f"Not given {absent}" in first
    assert "Patient (pseudonym or ID) Date of the answer" in first  # with a line to write on
    assert min(heights) >= 70
    assert "seeing a clinician" not in first  # a clinician reads it


def test_page_1_has_no_word_of_the_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = plain(Case((jpeg(64, 48),)), "Wart")
    update = {"no_promise": text("set_none"), "not_useful": ("It calls all of them urgent.",)}
    first, _, *technical = pages(
        replace(answer, diagnosis=answer.diagnosis.model_copy(update=update))
    )
    assert "This model is not useful yet." in first
    assert not re.search("bundle|digest|conformal", first, re.IGNORECASE)
    assert "bundle" in " ".join(technical)


def test_a_photo_with_a_date_has_it_and_one_without_says_so() -> None:
    answer = answered(photos=3)
    photos = tuple(
        photo.model_copy(update={"taken": taken})
        for photo, taken in zip(
            answer.diagnosis.photos, ("2026-05-01", "2026-05-02T10:30:00+02:00", ""), strict=True
        )
    )
    dated = answer.diagnosis.model_copy(update={"photos": photos})
    first, *_ = pages(CaseAnswer(dated, answer.views, answer.thumbnails))
    assert "01 May 2026; 02 May 2026, 10:30 UTC+02:00; not known" in first
    assert "Photo 1, 01 May 2026" in first


def test_an_amended_record_says_who_recorded_what_and_when() -> None:
    first, second, *_ = pages(answered(), Filing("P-017", "forearm", kept=True, recorded=NEVUS))
    for said in ("This report is amended", "Nevus (mole) (D22.9)", "confirmed by histopathology",
                 "ann", "What the software had advised"):  # fmt: skip
        assert said in first
    assert "Next step" not in first
    assert "Follow what your clinician advises" in second
    assert "without an examination of your skin" not in second
    opinion = RecordedDiagnosis("Wart", opinion=True)
    first, second, *_ = pages(answered(), Filing(recorded=opinion))
    assert "clinical opinion, not confirmed" in first
    assert "the software's advice still stands" in first
    assert "Next step" in first  # nothing takes its place
    assert "A dermatologist should see this spot within" in second
    assert "A clinician has recorded Wart, and nothing has confirmed it yet." in second
    assert "Follow what your clinician advises" not in second
    assert "The model named" in first
    assert "and not Wart." in first
    assert "Recorded by" not in first
    assert first.count("not known") == 1  # when it was recorded


MELANOMA = RecordedDiagnosis(
    "Melanoma", "C43.9", "histopathology", who="bob", when=WHEN - timedelta(seconds=9),
    replaced=WHEN, replaced_by="ann",
)  # fmt: skip
CORRECTED = Filing(
    "P-017", "mole on back", kept=True, version=3, recorded=NEVUS, earlier=(MELANOMA,)
)


def test_a_corrected_record_says_what_it_replaces_and_every_page_names_whose_it_is() -> None:
    answer = answered()
    first, second, third, *_ = every = pages(answer, CORRECTED)
    for said in ("skindx report, version 3", "a clinician changed the recorded diagnosis. It "
                 "was amended on 29 November 2026, 18:05:00 CET, by login ann. It "
                 "replaces the report of 29 November 2026, 18:04:51 CET. That report stated "
                 "Melanoma (C43.9). A signature on an earlier version does not count",
                 "Diagnosis before",
                 "Melanoma (C43.9), confirmed by histopathology, recorded 29 November 2026, "
                 "18:04:51 CET, by login bob",
                 "recorded: Nevus (mole) (D22.9), confirmed by histopathology, "
                 "recorded 29 November 2026, 18:05:00 CET, by login ann",
                 "This replaces Melanoma (C43.9), confirmed by histopathology, so "
                 "check the pathology report.",
                 "Clinician's finding"):  # fmt: skip
        assert said in first
    assert "Last confirmed diagnosis" not in first  # the box above has it
    for page in (first, *every[2:]):
        assert "P-017 \xb7 mole on back answered 29 November 2026, 18:05 CET" in page
        assert "amended 29 November 2026, 18:05:00 CET \xb7 version 3" in page
    own = "mole on back For the patient, answer of 29 November 2026 \xb7 version 3"
    assert own in second
    for said in ("Versions of this report", "1 none, the answer alone", "bob", "18:04:51",
                 "3 Nevus"):  # fmt: skip
        assert said in third
    assert "Melanoma" not in second
    assert "This page replaces every earlier page" in second
    assert "An earlier page named another diagnosis, so ask your clinician" in second
    back = replace(CORRECTED, recorded=None, earlier=(MELANOMA, replace(NEVUS, replaced=WHEN)))
    again = pages(answer, back)[1]
    assert "This page replaces every earlier page" in again
    assert "without an examination of your skin" not in again
    assert "A dermatologist should see this spot within" in again
    assert "An earlier page named a diagnosis that was taken back" in again
    weaker = replace(MELANOMA, confirmed_by="", opinion=True)
    surer = pages(answer, replace(CORRECTED, earlier=(weaker,)))
    assert "pathology report" not in surer[0]
    assert "An earlier page named" not in surer[1]  # histopathology has settled it
    assert "may be missing" not in third
    old = replace(CORRECTED, unrecorded=True)
    assert "earlier diagnoses may be missing here" in pages(answer, old)[2]


def test_a_confirmed_diagnosis_that_nothing_confirmed_replaced_stays_named() -> None:
    opinion = replace(NEVUS, confirmed_by="", opinion=True)
    wart = RecordedDiagnosis("Wart", opinion=True, when=WHEN, replaced=WHEN)
    doubted = replace(CORRECTED, recorded=opinion, earlier=(MELANOMA, wart))
    first, second, *_ = pages(answered(), doubted)
    for said in ("Diagnosis that a clinician recorded: Nevus (mole) (D22.9), clinical opinion",
                 "Last confirmed diagnosis Melanoma (C43.9), confirmed by histopathology",
                 "Diagnosis before Wart",
                 "This replaces Melanoma (C43.9), confirmed by histopathology, so check",
                 "so Melanoma (C43.9) stays the last confirmed diagnosis",
                 "What the software had advised"):  # fmt: skip
        assert said in first
    assert "still stands" not in first
    assert "ask your clinician within days which one holds" in second
    assert "What to do" not in second
    back = replace(CORRECTED, recorded=None, earlier=(MELANOMA,))
    first, second, *_ = pages(answered(), back)
    assert "Melanoma (C43.9), confirmed by histopathology, was taken back, so check" in first
    assert "Last confirmed diagnosis Melanoma (C43.9)" in first
    assert "ask your clinician within days what this means" in second


def test_the_patient_reads_the_advice_in_plain_words_about_the_spot() -> None:
    answer = answered()
    for key in ("urgent", "soon", "routine", "unknown", "soon_without_time", "without_time"):
        step = answer.diagnosis.next_step.model_copy(update={"advice": advice_for(key)})
        diagnosis = answer.diagnosis.model_copy(update={"next_step": step})
        second = pages(replace(answer, diagnosis=diagnosis))[1]
        plain = "unknown" if key == "without_time" else key
        assert text(f"patient_{plain}") in second
        assert "lesion" not in second
        is_open = plain == "unknown"
        assert ("If nobody has examined it yet, book an" in second) == is_open
        assert "Appointment needed by (date)" in second
        assert "Your clinician Practice, with the number to call" in second


BARE = diagnosed()
ASKED = st.fixed_dictionaries(
    {}, optional={one: st.sampled_from(["yes", "no"]) for one in QUESTIONS}
)
STEPS: dict[str, Urgency] = {
    "urgent": "urgent", "urgent_cancer": "urgent", "soon": "soon", "soon_cancer": "soon",
    "routine": "routine", "unknown": "unknown", "soon_without_time": "soon",
    "without_time": "unknown",
}  # fmt: skip
WHO_AND_WHEN = {
    "en": ("dermatologist", "clinician", "within days", "next weeks", "next visit", "first free"),
    "es": ("dermatólogo", "profesional", "próximos días", "próximas semanas", "próxima visita",
           "primera cita disponible"),
}  # fmt: skip


def _asked_for(advice: str, language: str) -> set[str]:
    """Return who should see it and by when, as a page says it; nobody named: a clinician."""
    doctor, clinician, *times = WHO_AND_WHEN[language]
    who = doctor if doctor in advice else clinician
    return {who, *(one for one in times if one in advice)}


@given(ASKED, st.sampled_from(sorted(STEPS)), st.sampled_from(["en", "es"]), st.booleans())
def test_who_should_see_it_and_by_when_is_the_same_on_both_pages(
    said: dict[str, Any], key: str, language: str, abstained: bool
) -> None:
    patient = Patient(**said)
    with speaking(language):
        step = NextStep(
            urgency=STEPS[key], advice=advice_for(key), because="It is so.", classes=1,
            decided_by="",
        )  # fmt: skip
        step = with_checklist(step, patient)
        update = {"patient": patient, "next_step": step, "language": language}
        update |= {"abstained": "It is unlike most images."} if abstained else {}
        diagnosis = BARE.model_copy(update=update)
        asked = _asked_for(step.parts[0], language)
        assert asked == _asked_for(patient_advice(diagnosis), language)
        refused = referred(patient)  # nothing was judged
        assert _asked_for(refused, language) == _asked_for(refused_advice(patient), language)


def test_a_note_older_than_the_diagnosis_says_so() -> None:
    older = replace(CORRECTED, note="Flat.", notes=(NoteChange(WHEN - timedelta(days=1), "bob"),))
    assert "by login bob, before the diagnosis was last changed" in pages(answered(), older)[0]
    same = replace(older, notes=(NoteChange(WHEN, "bob"),))
    assert "before the diagnosis" not in pages(answered(), same)[0]
    fits = replace(older, notes=(*older.notes, NoteChange(WHEN, "ann", "fits")))
    first, *_ = pages(answered(), fits)
    assert "before the diagnosis" not in first
    assert "Note found to still fit 29 November 2026, 18:05:00 CET, by login ann" in first
    first, *_ = pages(answered(), replace(fits, notes=fits.notes[1:]))  # no version kept the rest
    assert "Note found to still fit" in first


def test_a_reason_and_facts_that_were_added_are_printed() -> None:
    given = replace(CORRECTED.earlier[0], reason="wrong vial")
    added = FactsAdded(Patient(age=71, site="back"), WHEN, "ann")
    filing = replace(CORRECTED, earlier=(given, *CORRECTED.earlier[1:]), added=(added,))
    known = replace(filing, at_keeping=(added,))  # the lesion's name gave them
    page = pages(answered(), known)[0]
    assert "age 71 years" in page
    assert "Facts added after the answer" not in page
    first, *rest = pages(answered(), filing)
    assert re.search(
        r"The reason given for changing Melanoma \(C43\.9\) was .{1,6}wrong vial", " ".join(rest)
    )
    assert "Reason for the change wrong vial" in first
    assert "This advice is no longer current, because a confirmed diagnosis stands." in first
    assert "no longer current" not in pages(answered())[0]
    assert "age 71 years" in first
    assert "Facts added after the answer 29 November 2026, 18:05:00 CET, by login ann: age" in first


def test_answers_about_the_lesion_stand_apart_with_their_score() -> None:
    patient = Patient(age=54, grew="yes", irregular_shape="yes", itches="no")
    first, *_ = pages(rich(Case((jpeg(64, 48),), patient)))
    assert "About the person age 54 years" in first
    assert "Answers about the lesion Yes: growth and irregular shape. No: itch." in first
    assert first.count("7-point checklist scores 4") == 1


def test_a_change_of_the_note_says_when_and_by_whom() -> None:
    at = WHEN + timedelta(minutes=3)
    filing = Filing(
        "P-1", "arm", kept=True, version=2, note="Flat.", notes=(NoteChange(at, "bob"),)
    )
    first, second, third, *_ = pages(answered(), filing)
    said = "29 November 2026, 18:08:00 CET, by login bob"
    assert f"Note written {said}" in first
    assert "note" not in second
    assert "the note alone was written" in third
    later = NoteChange(at + timedelta(minutes=1), "bob", "changed")
    again = replace(filing, notes=(NoteChange(at, "bob"), later))
    assert "Note last changed 29 November 2026, 18:09:00" in pages(answered(), again)[0]
    first, _, third, *_ = pages(
        answered(), replace(again, note="", notes=(again.notes[0], replace(later, what="removed")))
    )
    assert "Note removed 29 November 2026, 18:09:00" in first
    assert "the note alone was removed" in third
    both = replace(CORRECTED, notes=(NoteChange(WHEN, "ann"),))  # saved together with the diagnosis
    assert "note alone" not in pages(answered(), both)[2]


def test_versions_and_notes_stand_in_the_order_of_time() -> None:
    before, after = WHEN - timedelta(seconds=5), WHEN + timedelta(minutes=2)
    notes = (NoteChange(before, "bob"), NoteChange(after, "ann", "changed"))
    answer = answered()
    third = pages(answer, replace(CORRECTED, note="Flat.", notes=notes))[2]
    order = ["Melanoma (C43.9)", "the note alone was written", "Nevus (mole) (D22.9)",
             "the note alone was changed"]  # fmt: skip
    assert [third.find(one) for one in order] == sorted(third.find(one) for one in order)
    assert -1 not in [third.find(one) for one in order]


def test_the_technical_basis_says_once_what_the_networks_saw_and_has_no_empty_heading() -> None:
    answer = answered(photos=3)
    whole = tuple(
        one.model_copy(update={"square": (0, 0, one.width, one.height)})
        for one in answer.diagnosis.photos
    )
    update = {"photos": whole}
    seen = replace(answer, diagnosis=answer.diagnosis.model_copy(update=update))
    third = " ".join(pages(seen)[2:])
    assert third.count("The networks saw all of these 3 photos.") == 1
    assert "The networks saw the whole photo." not in third
    assert "These photos \xb7 The networks saw" in third
    bare = replace(seen, views=tuple(PhotoView(one.jpeg) for one in answer.views))
    kept = pages(bare, Filing("P-1", kept=True))[2]
    assert "The photos" not in kept
    assert "similar images" not in kept
    assert "A dangerous skin cancer" not in kept


def test_an_advice_without_urgency_bears_no_tier() -> None:
    answer = answered()
    step = answer.diagnosis.next_step.model_copy(update={"urgency": "unknown"})
    unknown = replace(answer, diagnosis=answer.diagnosis.model_copy(update={"next_step": step}))
    assert "Next step (soon: within the next weeks)" in pages(answer)[0]
    assert "Next step (" not in pages(unknown)[0]
    update = {"advice": advice_for("soon_without_time")}
    step = answer.diagnosis.next_step.model_copy(update=update)
    soon = replace(answer, diagnosis=answer.diagnosis.model_copy(update={"next_step": step}))
    assert "Next step (soon: at the first free appointment)" in pages(soon)[0]


def test_an_abstention_lists_urgent_conditions_first_everywhere() -> None:
    diagnosis = diagnosed(abstained=True)
    ranked = [one.urgency == "urgent" for one in diagnosis.listed]
    assert sorted(diagnosis.listed, key=diagnosis.candidates.index) == [*diagnosis.candidates]
    assert ranked == sorted(ranked, reverse=True)
    assert as_on_the_page(diagnosis) == diagnosis.listed
    assert diagnosed().listed == diagnosed().candidates


def test_names_of_files_tell_patients_lesions_and_versions_apart() -> None:
    first = Filing("P-017", "mole on back", version=1)
    assert first.file_name(WHEN, "pdf") == (
        "skindx-P-017-mole-on-back-20261129-180500-preliminary-1.pdf"
    )
    assert CORRECTED.file_name(WHEN, "zip").endswith("-180500-amended-3.zip")
    noted = replace(CORRECTED, version=5)
    assert noted.file_name(WHEN, "pdf").endswith("-amended-3-saved-5.pdf")
    assert noted.footer(WHEN)[1].endswith("version 3")  # the table lists three
    assert (
        Filing('P/0"1\n乾').file_name(WHEN, "pdf") == "skindx-P-0-1-20261129-180500-preliminary.pdf"
    )


def test_the_patient_reads_which_spot_who_recorded_and_what_it_is() -> None:
    told = replace(NEVUS, clinician="Dr A. Keller")
    first, second, *_ = pages(answered(), Filing("P-017", "forearm", kept=True, recorded=told))
    for said in ("Which spot back (forearm)", "Recorded on 29 November 2026",
                 "Recorded by Dr A. Keller", "A clinician has recorded Nevus (mole)",
                 "Your clinician explains the diagnosis to you, and what comes next.",
                 "What comes next", "Your next appointment", "Your clinician Dr A. Keller",
                 "Practice, with the number to call"):  # fmt: skip
        assert said in second
    assert "by Dr A. Keller" in first
    assert "Clinician Signed on Signature" in first
    given = Filing("P-017", clinician="Dr B. Lang")
    first, second, *_ = pages(answered(), given)
    assert "Clinician Dr B. Lang Signed on Signature" in first
    assert "without an examination of your skin" not in second
    assert "login" not in second


def test_a_recorded_melanoma_is_named_on_the_patient_s_page_and_not_denied() -> None:
    now = replace(MELANOMA, replaced=None)
    _, second, *_ = pages(answered(), Filing("P-017", "arm", kept=True, recorded=now))
    assert "A clinician has recorded Melanoma" in second
    assert "The program's answer is not a diagnosis." in second
    for cruel in ("dangerous", "spread early", "This page is not a diagnosis", "can miss a spot",
                  "if a spot is new", "without an examination of your skin"):  # fmt: skip
        assert cruel not in second
    opinion = replace(now, confirmed_by="", opinion=True)
    _, second, *_ = pages(answered(), Filing(recorded=opinion))
    assert "Your clinician explains the diagnosis" in second
    assert "What to do" in second  # nothing confirmed it, so the advice stands


def test_photos_with_the_same_limits_of_quality_share_one_sentence() -> None:
    answer = answered(photos=3)
    small = answer.diagnosis.photos[0].model_copy(update={"remarks": ("The photo is small.",)})
    update = {"photos": (small, answer.diagnosis.photos[1], small)}
    first, *_ = pages(replace(answer, diagnosis=answer.diagnosis.model_copy(update=update)))
    assert "The photo is small. This holds for photos 1 and 3." in first
    assert "Photo 2. A little dark" in first


def test_both_tables_list_conditions_in_the_order_of_the_page() -> None:
    answer = answered()
    least = answer.diagnosis.candidates[2]
    others = tuple(
        one if one is least else one.model_copy(update={"in_set": False})
        for one in answer.diagnosis.candidates
    )
    apart = replace(answer, diagnosis=answer.diagnosis.model_copy(update={"candidates": others}))
    first, _, third, *_ = pages(apart)
    for said, heading in ((first, "conditions that the model names first"), (third, "All cond")):
        listed = said.partition(heading)[2]
        assert 0 < listed.find(least.name) < listed.find(others[0].name)
    first, *_ = pages(answered())
    shown = [one.name for one in answered().diagnosis.candidates[:4]]
    listed = first.partition("What it may be, by probability")[2]
    assert [listed.find(one) for one in shown] == sorted(listed.find(one) for one in shown)


def test_a_full_record_stays_on_page_1() -> None:
    answer = rich(Case(tuple(jpeg(64, 48, seed) for seed in range(3)), Patient(site="back")))
    diagnosis = answer.diagnosis
    many = tuple(
        one.model_copy(update={"in_set": True, "key": f"{one.key}{n}"})
        for one in diagnosis.candidates
        for n in range(3)
    )
    learned = "This model learned from synthetic images. It answers nothing about people."
    update = {
        "candidates": many,
        "knows_urgent": False,
        "not_useful": ("It calls 77.6 % of the images urgent.",) * 2,
        "source": diagnosis.source.model_copy(update={"learned_from": learned}),
    }
    full = CaseAnswer(diagnosis.model_copy(update=update), answer.views, answer.thumbnails)
    note = "Breslow 0.4 mm. " * 18
    filing = Filing("P" * 64, "left forearm", kept=True, recorded=NEVUS, note=note)
    first, *_ = pages(full, filing)
    assert "Breslow" in first
    assert "11 further conditions are" in first
    assert "Signature" in first


@pytest.mark.parametrize("language", ["en", "es"])
@pytest.mark.parametrize("photos", [1, 3])
def test_page_1_is_one_page_in_the_letters_that_are_printed(
    photos: int, language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if DEJAVU() is None:
        pytest.skip("matplotlib brings DejaVu Sans, and is not installed")
    monkeypatch.setattr(pdf_sheet, "dejavu", DEJAVU)
    ends: list[int] = []
    monkeypatch.setattr(answer_report, "_basis", lambda sheet, *more: ends.append(sheet.pages))
    patient = Patient(age=61, site="leg", laterality="left", grew="yes", itches="no")
    with speaking(language):
        answer = rich(Case(tuple(jpeg(64, 48, seed) for seed in range(photos)), patient), "urgent")
    said = answer.diagnosis.model_copy(update={"language": language})
    full = replace(CORRECTED, note="Breslow 0.4 mm. " * 6, notes=(NoteChange(WHEN, "bob"),))
    for filing in (Filing("P-017"), full):
        report_pdf(replace(answer, diagnosis=said), None, WHEN, filing)
    assert set(ends) == {1}


@pytest.mark.parametrize("note", ["Breslow 0.4 mm.", "Breslow 0.4 mm. " * 100])
def test_a_note_is_for_clinicians_and_not_for_the_patient(note: str) -> None:
    first, second, *rest = pages(answered(), Filing("P-017", "arm", kept=True, note=note))
    assert "Breslow" in (first if len(note) < 100 else rest[0])
    assert "no clinician has checked it" not in first
    assert "Clinician's note" in first or "A clinician's note is in" in first
    assert "Breslow" not in second


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Actinic keratosis", "The model put Actinic keratosis first too."),
        ("Basal cell carcinoma", "and named Basal cell carcinoma too."),
        ("Melanoma", "and not Melanoma."),
    ],
)
def test_an_amended_record_says_whether_the_model_named_it(name: str, said: str) -> None:
    diagnosis = answered().diagnosis
    recorded = RecordedDiagnosis(name, confirmed_by="histopathology")
    assert said in agreement_with(diagnosis, recorded)
    by_key = RecordedDiagnosis("another spelling", key=diagnosis.candidates[0].key)
    assert "first too" in agreement_with(diagnosis, by_key)
    unknown = answered(abstained=True).diagnosis
    assert agreement_with(unknown, recorded) == "The model had named no condition."


def test_a_differential_has_urgent_conditions_first() -> None:
    ordered = urgent_first(answered().diagnosis.candidates)
    assert [one.urgency for one in ordered] == ["urgent", "soon", "soon", "routine", "routine"]
    shares = [one.probability for one in ordered]
    assert shares == [0.08, 0.46, 0.27, 0.12, 0.005]


def test_the_patient_reads_everyday_words_in_short_sentences() -> None:
    jargon = re.compile(r"lesion|calibrat|conformal|probabil|threshold|bundle|ICD|model\b", re.I)
    for key, sentence in sentences().items():
        if key.startswith("patient_"):
            for form in (sentence.one, sentence.other):
                assert not jargon.search(form), key
                assert len(form.split()) <= 23, key


def test_page_1_has_all_that_was_done_or_the_last_three_entries() -> None:
    days = [WHEN.date() + timedelta(days=n) for n in range(5)]
    actions = tuple(CaseAction(ActionKind.EXAMINED, day, WHEN) for day in days)
    struck = replace(actions[2], struck=WHEN)
    filing = Filing("P-017", kept=True, actions=(*actions[:2], struck))
    first, *_ = pages(answered(), filing)
    assert all(one.words in first for one in actions[:2])
    assert actions[2].words not in first
    assert "earlier entr" not in first
    first, _, third, *_ = pages(answered(), replace(filing, actions=actions))
    assert [one.words in first for one in actions] == [False, False, True, True, True]
    assert "2 earlier entries are in the technical basis." in first
    assert all(one.words in third for one in actions)
