"""Facts about the person change no answer, and it says so where they are asked and printed."""

import io
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from command_line import Skindx
from painted_answers import jpeg, rich
from pdf_words import words_of
from rich.console import Console
from skin_photo import skin_photo

from skindx.diagnosis.case import Case, Patient, how_facts_count, skin_type_chooses, use_of_facts
from skindx.diagnosis.diagnose import answer
from skindx.diagnosis.predictor import Predictor
from skindx.diagnosis.report import pdf_sheet
from skindx.diagnosis.report.answer_report import print_diagnosis, report_pdf
from skindx.ui.http.api_schemas import form_schema
from skindx.ui.page.answer_html import result_html
from skindx.ui.page.form_html import intake_html

GIVEN = Patient(age=54, sex="male", site="back", duration="months")


def test_what_is_said_is_true(tiny_bundle: Path) -> None:
    predictor, photo = Predictor.load(tiny_bundle), skin_photo()
    plain = answer(predictor, Case((photo,))).diagnosis
    other = answer(predictor, Case((photo,), GIVEN)).diagnosis
    assert other.model_copy(update={"patient": Patient()}) == plain


@pytest.mark.parametrize(
    ("patient", "words"),
    [
        (Patient(), ""),
        (Patient(age=3), "No probability depends on age. The networks saw the photos alone."),
        (GIVEN, "No probability depends on age, sex, place or duration"),
        (
            Patient(site="lip", laterality="midline"),
            "No probability depends on place or side. The networks saw the photos alone.",
        ),
        (Patient(skin_type=5), skin_type_chooses()),
        (Patient(sex="other", skin_type=2), f"saw the photos alone. {skin_type_chooses()}"),
    ],
)  # fmt: skip
def test_it_names_what_was_given(patient: Patient, words: str) -> None:
    said = use_of_facts(patient)
    assert words in said
    assert bool(said) == bool(words)


def test_it_stands_where_facts_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)
    told = rich(Case((jpeg(80, 60),), GIVEN))
    console = Console(file=io.StringIO(), width=400)
    print_diagnosis(told.diagnosis, console)
    paper = words_of(report_pdf(told, None, datetime(2026, 1, 1, tzinfo=UTC)))
    for text in (console.file.getvalue(), paper, result_html(told, None)):  # type: ignore[attr-defined]
        assert told.diagnosis.use_of_facts in text
    nothing = replace(told, diagnosis=told.diagnosis.model_copy(update={"patient": Patient()}))
    assert "No probability depends on" not in result_html(nothing, None)


def test_it_stands_where_facts_are_asked(skindx: Skindx) -> None:
    assert how_facts_count(()) in intake_html(64)
    assert skin_type_chooses() in intake_html(64)
    assert how_facts_count(()) not in intake_html(64, fields=("age", "site"))
    assert "uses age and place where given" in intake_html(64, fields=("age", "site"))
    schema = form_schema(3)["content"]["multipart/form-data"]["schema"]["properties"]
    used = form_schema(3, ("age", "site"))["content"]["multipart/form-data"]["schema"]
    for name in ("age", "sex", "site", "laterality", "duration"):
        assert "does not change the answer" in schema[name]["description"]
        about = used["properties"][name]["description"]
        assert ("changes the answer where it is given" in about) == (name in ("age", "site"))
    assert skin_type_chooses() in schema["skin_type"]["description"]
    _, out, _ = skindx("diagnose", "--help")
    assert (
        " ".join(out.replace("│", " ").split()).count("changes no answer") == 5
    )  # side, duration, three questions
