"""Page 1 of the printed report, which one can file, and the page for the patient."""

import re
from datetime import datetime, timedelta, timezone

import pytest
from clinical_answers import answered
from painted_answers import jpeg, rich
from pdf_words import words_of

from skindx.diagnosis import pdf_sheet
from skindx.diagnosis.answer_report import report_pdf
from skindx.diagnosis.case import Case, Patient
from skindx.diagnosis.filing import Filing, RecordedDiagnosis, record_lines, urgent_first
from skindx.diagnosis.record import CaseAnswer
from skindx.texts.catalogue import sentences

WHEN = datetime(2026, 11, 29, 18, 5, tzinfo=timezone(timedelta(hours=1), "CET"))
NEVUS = RecordedDiagnosis("Nevus (mole)", "D22.9", "histopathology", who="ann", when=WHEN)


def pages(answer: CaseAnswer, filing: Filing | None = None) -> list[str]:
    """Return what each page says, in its order, its footer last."""
    words = words_of(report_pdf(answer, None, WHEN, filing or Filing()))
    words = words.replace("\\(", "(").replace("\\)", ")")
    return re.split(r"page \d+ of ?", words)[:-1]


@pytest.fixture(autouse=True)
def readable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)  # its letters can be read in the file


@pytest.mark.parametrize("abstained", [False, True])
@pytest.mark.parametrize("photos", [1, 3])
def test_page_1_is_a_whole_record_and_page_2_begins_with_the_patient(
    photos: int, abstained: bool
) -> None:
    answer = answered(photos=photos, abstained=abstained)
    first, second, *_ = pages(answer, Filing("P-017"))
    order = ["This report is preliminary", "no medical device", "P-017",
             "29 November 2026, 18:05 CET", "not known", "back", f"Photo {photos}",
             "What to do next", answer.diagnosis.next_step.advice[:20], "rules out no disease",
             "How often this advice is wrong",
             "The model names no condition" if abstained else "Conditions in the set",
             "Clinician (name)", "Date and signature"]  # fmt: skip
    places = [first.find(words) for words in order]
    assert -1 not in places, list(zip(order, places, strict=True))
    assert places == sorted(places)
    assert "Technical basis" not in first
    order = ["For the patient", "What was looked at", answer.diagnosis.next_step.advice[:20],
             "What the program cannot know", "When to get help at once",
             "Technical basis"]  # fmt: skip
    places = [second.find(words) for words in order]
    assert -1 not in places
    assert places == sorted(places)
    assert ("could not tell what your photo shows" in second) == abstained


def test_nothing_is_invented_where_nobody_gave_it() -> None:
    bare = rich(Case((jpeg(64, 48),)))
    lines = {one.code: one.value for one in record_lines(bare.diagnosis, Filing(), WHEN)}
    assert lines == {"patient": "", "answered": "29 November 2026, 18:05 CET",
                     "photo-date": "not known", "site": "", "side": ""}  # fmt: skip
    placed = rich(Case((jpeg(64, 48),), Patient(site="arm", laterality="left")))
    lines = {one.code: one.value for one in record_lines(placed.diagnosis, Filing("P"), WHEN)}
    assert (lines["patient"], lines["site"], lines["side"]) == ("P", "arm", "left")


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
    assert "What to do next" not in first
    assert "Follow what your clinician advises" in second
    assert "No person has examined" not in second
    opinion = RecordedDiagnosis("Wart", opinion=True)
    first, *_ = pages(answered(), Filing(recorded=opinion))
    assert "clinical opinion, which nothing confirmed" in first
    assert first.count("not known") == 3  # date of the photo, who and when


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
    first, *_ = pages(full, Filing("P" * 64, "left forearm", kept=True, recorded=NEVUS))
    assert "12 further conditions of the set" in first
    assert "Date and signature" in first


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
