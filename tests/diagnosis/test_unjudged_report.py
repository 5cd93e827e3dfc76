"""The record of a refused photo: it files what was answered, and never reassures."""

import re
from datetime import UTC, datetime

import pytest
from painted_answers import jpeg
from pdf_words import words_of

from skindx.diagnosis.case import Case, Patient
from skindx.diagnosis.filing import Filing
from skindx.diagnosis.photo_checks import Refusal, Refused
from skindx.diagnosis.report import pdf_sheet
from skindx.diagnosis.report.unjudged_report import UnjudgedCase, unjudged, unjudged_pdf
from skindx.texts.catalogue import speaking, text

WHEN = datetime(2026, 11, 29, 18, 5, tzinfo=UTC)
NO = dict.fromkeys(("grew", "irregular_shape", "irregular_colour", "large", "inflamed",
                    "bleeds", "itches"), "no")  # fmt: skip
BLURRED = Refused.from_photos([Refusal(0, "blur", "The photo is too blurred.")], 1)


def refused(patient: Patient, *photos: bytes, language: str = "en") -> UnjudgedCase:
    photo = jpeg(160, 120)
    return unjudged(Case((photo, *photos), patient, language), BLURRED)


def page(case: UnjudgedCase, monkeypatch: pytest.MonkeyPatch, filing: Filing | None = None) -> str:
    return pages(case, monkeypatch, filing)[0]


def pages(
    case: UnjudgedCase, monkeypatch: pytest.MonkeyPatch, filing: Filing | None = None
) -> tuple[str, str]:
    """Return what the clinician's page says, and what the patient's does."""
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)
    words = words_of(unjudged_pdf(case, WHEN, filing or Filing()))
    words = words.replace("\\(", "(").replace("\\)", ")").replace("\xa0", " ")
    first, notes, second = re.split(r"p(?:age|ágina) \d+ (?:of|de)", words)
    assert re.search("Not(es|as)", notes)
    return first, second


@pytest.mark.parametrize(
    ("patient", "advice"),
    [
        (Patient(), "Examine or refer the lesion now, without waiting for another photo."),
        (Patient(pigmented="yes", **NO), "Examine or refer the lesion now"),
        (Patient(bleeds="yes"), "A dermatologist should see the lesion within days, because it"),
        (Patient(grew="yes", irregular_shape="yes"), "7-point checklist scores 4 (referral from"),
    ],
)
def test_it_says_that_there_is_no_answer_and_what_the_checklist_asks_for(
    patient: Patient, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = page(refused(patient), monkeypatch, Filing("P-017"))
    order = ["a photo that was not judged", "preliminary until a clinician", "P-017",
             "29 November 2026, 18:05 UTC", "Next step", advice, "The model gave no answer. This "
             "says nothing about the lesion. skindx cannot rule out any disease.",
             "Why there is no answer The photo is too blurred.", "Photo 1", "Clinician's finding",
             "Signature"]  # fmt: skip
    places = [words.find(one) for one in order]
    assert -1 not in places, list(zip(order, places, strict=True))
    assert places == sorted(places)
    assert ("urgent: within days" in words) == patient.seven_points.refers
    assert not re.search(r"%|probab|routine|harmless|no sign|benign|Nevus", words, re.IGNORECASE)
    if patient.seven_points.score == 0 and patient.answers:
        assert "A score below 3 says nothing." in words


def test_of_several_photos_it_names_the_refused_one_and_one_without_a_picture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = refused(Patient(site="back"), jpeg(120, 160, 1), b"no photo")
    assert [bool(one.jpeg) for one in case.photos] == [True, True, False]
    words = page(case, monkeypatch)
    assert "record of 3 photos that were not judged" in words
    assert "Photo 1. The photo is too blurred." in words
    assert "Photo 2. This photo was not refused" in words
    assert "The photo cannot be printed." in words


def test_the_day_that_a_person_gave_stands_below_the_photo(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = unjudged(Case((jpeg(160, 120),)), BLURRED, "2026-11-28")
    assert "Photo 1, 28 November 2026" in page(case, monkeypatch)


def test_it_speaks_the_language_of_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    words = page(refused(Patient(), language="es"), monkeypatch)
    with speaking("es"):
        for key in ("not_judged", "unjudged_no_answer", "cannot_rule_out", "notice_translation"):
            assert text(key) in words


def test_a_file_from_the_future_has_no_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skindx.diagnosis.photo_checks.file_date", lambda *_: "2999-01-01")
    (photo,) = refused(Patient()).photos
    assert photo.taken == ""
    monkeypatch.setattr("skindx.diagnosis.photo_checks.file_date", lambda *_: "2026-01-02")
    (photo,) = refused(Patient()).photos
    assert photo.taken == "2026-01-02"


@pytest.mark.parametrize(
    ("patient", "advice"),
    [
        (Patient(), "Your clinician examines this spot and tells you what comes next. If nobody "
         "has examined it yet, book an appointment now."),
        (Patient(bleeds="yes"), "A dermatologist should see this spot within days, because it "
         "bleeds."),
        (Patient(grew="yes", irregular_shape="yes"), "A dermatologist should see this spot within "
         "days. Do not"),
    ],
)  # fmt: skip
def test_the_patient_gets_a_page_that_does_not_reassure(
    patient: Patient, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filing = Filing("P-017", clinician="Dr A. Keller")
    second = pages(refused(patient, jpeg(120, 160, 1)), monkeypatch, filing)[1]
    order = ["For the patient", "P-017", "What to do", advice, "Your next appointment",
             "Your clinician Dr A. Keller Practice", "When to get help at once",
             "if bleeding does not stop", "could not judge your photos",
             "This does not say that your skin is healthy."]  # fmt: skip
    places = [second.find(one) for one in order]
    assert -1 not in places, list(zip(order, places, strict=True))
    assert places == sorted(places)
    assert "Appointment needed by (date)" in second
    assert not re.search(r"lesion|routine|harmless|model\b", second, re.IGNORECASE)
