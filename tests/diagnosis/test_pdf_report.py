"""The report on paper: what it says, in which letters, and what it does not tell."""

import getpass
import io
import re
import socket
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from clinical_answers import answered as clinical_answer
from pdf_words import words_of
from rich.console import Console
from skin_photo import skin_photo
from tiny_bundle import measured as figures

from skindx.core.errors import UserError
from skindx.diagnosis.case import Case, Patient
from skindx.diagnosis.diagnose import answer
from skindx.diagnosis.predictor import Predictor
from skindx.diagnosis.record import CaseAnswer, Similar
from skindx.diagnosis.record_figures import Promise, UrgentRisk
from skindx.diagnosis.report import pdf_sheet
from skindx.diagnosis.report.answer_report import print_diagnosis, report_pdf
from skindx.models.conformal import Share
from skindx.texts import catalogue
from skindx.ui.page.answer_html import result_html

WHEN = datetime(2026, 3, 4, 5, 6, tzinfo=UTC)


@pytest.fixture(scope="module")
def answered(tiny_bundle: Path) -> CaseAnswer:
    """Return an answer with everything in it, and names from outside Latin-1."""
    patient = Patient(age=54, sex="female", site="back", duration="months", skin_type=5)
    said = answer(Predictor.load(tiny_bundle), Case((skin_photo(), skin_photo(seed=4)), patient))
    first, *others = said.diagnosis.candidates
    similar = Similar(key="a", name="Nævus", similarity=0.9, sha256="0", credit="Zoë Dvořák")
    diagnosis = said.diagnosis.model_copy(
        update={
            "candidates": (first.model_copy(update={"name": "Łuszczyca – псориаз 乾癬"}), *others),
            "similar": (similar, similar),
            "abstained": "The networks contradict each other.",
            "promise": Promise(
                level=0.9,
                pictures=100,
                urgent_missed=Share(value=0.02, low=0.01, high=0.06, pictures=90),
            ),
        }
    )
    return CaseAnswer(diagnosis, said.views, (said.views[0].jpeg, b""))


def test_the_notice_and_the_next_step_come_first(
    answered: CaseAnswer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)
    words = words_of(report_pdf(answered, figures(0.5), WHEN))
    diagnosis = answered.diagnosis
    order = [
        "This report is preliminary",
        "not a medical device",
        "04 March 2026, 05:06 UTC",
        "54 years",
        diagnosis.next_step.advice.split(",")[0],
        "The networks contradict",
        catalogue.text("cannot_rule_out")[:50],
        "Nearest conditions",
        diagnosis.candidates[1].name,
        "The model knows 9 conditions",
        "Photo 1.",
        "Similar cases",
        "True condition is the likeliest one 10 of 20 50.0 %",
        diagnosis.source.version[:16],
        "Some letters are printed as",
    ]
    places = [words.find(heading) for heading in order]
    assert -1 not in places, list(zip(order, places, strict=True))
    assert places == sorted(places)
    assert "?uszczyca - ??????? ??" in words
    assert "Zoë Dvorák" in words
    assert (
        "answered 04 March 2026, 05:06 UTC \xb7 preliminary until signed on page 1 \xb7 page 1 of "
        in words
    )
    assert "Nævus" in words


def test_both_errors_stand_under_the_next_step_and_the_guarantee_below(
    answered: CaseAnswer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)
    risk = UrgentRisk(
        risk=0.03, threshold=0.08, miss_rate=0.05, confidence=0.787, bound=0.0805, lesions=57
    )
    update = {"urgent_risk": risk, "abstained": ""}
    sure = replace(answered, diagnosis=answered.diagnosis.model_copy(update=update))
    words = words_of(report_pdf(sure, None, WHEN))
    order = [
        sure.diagnosis.next_step.advice.split(",")[0],
        "How often this advice is wrong was not measured",
        "What it may be",
        "How this is decided",
        "May miss up to",
        "urgent conditions 8 % 57 lesions 5 of 100 8.1 %",
    ]
    places = [words.find(heading) for heading in order]
    assert -1 not in places, list(zip(order, places, strict=True))
    assert places == sorted(places)


@pytest.mark.parametrize("script", ["乾癬", "병변"])
def test_letters_of_other_scripts_are_set_where_a_font_has_them(
    script: str, answered: CaseAnswer, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pdf_sheet.dejavu()
    if folder is None:
        pytest.skip("matplotlib brings DejaVu Sans, and is not installed")
    pdf = report_pdf(answered, None, WHEN)
    assert b"DejaVuSans" in pdf
    monkeypatch.setattr(pdf_sheet, "more_letters", lambda: None)
    page = pdf_sheet.Sheet("test", WHEN)
    assert page._known("Łuszczyca – псориаз") == "Łuszczyca – псориаз"
    assert not page.lacking
    assert page._known(f"{script}\x07") == "??\ufffd"
    assert page.lacking
    page.pdf_bytes()


def test_a_further_font_is_opened_when_a_letter_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pdf_sheet.dejavu()
    if folder is None:
        pytest.skip("matplotlib brings DejaVu Sans, and is not installed")
    asked = []

    def more() -> Path:
        asked.append(True)
        return folder / "STIXGeneral.ttf"  # stands in for one of Debian's: it has U+E041

    monkeypatch.setattr(pdf_sheet, "more_letters", more)
    page = pdf_sheet.Sheet("test", WHEN)
    page.text("Psoriasis")
    assert asked == []
    lacking = sorted(_codes(folder / "STIXGeneral.ttf") - _codes(folder / "DejaVuSans.ttf"))
    letter = next(chr(code) for code in lacking if chr(code).isprintable())
    page.text(f"Psoriasis {letter}{letter}", bold=True)
    assert (asked, page.lacking) == ([True], False)
    assert b"STIXGeneral" in page.pdf_bytes()


def _codes(font: Path) -> set[int]:
    from fontTools.ttLib import TTFont

    with TTFont(font) as opened:
        return set(opened.getBestCmap())


def test_debian_s_fonts_are_found(tmp_path: Path) -> None:
    assert pdf_sheet.more_letters(tmp_path) is None
    font = tmp_path / "truetype/wqy/wqy-microhei.ttc"
    font.parent.mkdir(parents=True)
    font.touch()
    assert pdf_sheet.more_letters(tmp_path) == font


def test_it_says_nothing_of_the_machine_and_is_the_same_again(answered: CaseAnswer) -> None:
    pdf = report_pdf(answered, None, WHEN)
    assert pdf == report_pdf(answered, None, WHEN)
    for secret in (socket.gethostname(), getpass.getuser(), str(Path.home()), str(Path.cwd())):
        assert secret.encode() not in pdf or len(secret) < 5
    assert b"D:20260304050600" in pdf
    assert b"Exif" not in pdf


def test_without_fpdf2_there_is_a_sentence(
    answered: CaseAnswer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fpdf", None)
    with pytest.raises(UserError, match=r"install .*\[serve\]'"):
        report_pdf(answered, None, WHEN)


def test_no_sentence_of_the_record_and_its_basis_stands_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The page between them is for the patient, and is handed over alone."""
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)
    said = clinical_answer()
    facts = Patient(age=54, site="back", skin_type=2, grew="yes", itches="no")
    photo = said.diagnosis.photos[0].model_copy(update={"remarks": ("The photo is very dark.",)})
    update = {"patient": facts, "photos": (photo,)}
    full = replace(said, diagnosis=said.diagnosis.model_copy(update=update))
    words = words_of(report_pdf(full, figures(0.5), WHEN))
    first, _, *technical = re.split(r"page \d+ of ?", words)
    sentences = re.split(r"(?<=[a-z0-9%)][.])\s+", " ".join([first, *technical]))
    said_twice = {one for one in sentences if sentences.count(one) > 1 and len(one.split()) > 3}
    assert said_twice == set()
    assert "The photo is very dark." in sentences


def test_each_of_several_photos_has_its_risk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)
    said = clinical_answer(photos=3)
    risk = said.diagnosis.urgent_risk
    assert risk is not None
    risks = {"urgent_risk": risk.model_copy(update={"by_photo": (0.08, 0.02, 0.014)})}
    several = replace(said, diagnosis=said.diagnosis.model_copy(update=risks))
    console = Console(file=io.StringIO(), width=500)
    print_diagnosis(several.diagnosis, console)
    shown = (words_of(report_pdf(several, None, WHEN)), result_html(several, None))
    for words in (*shown, console.file.getvalue()):  # type: ignore[attr-defined]
        plain = words.replace("\xa0", " ")
        for photo in ("8 %", "2 %", "1 %"):
            assert f"Its risk of an urgent condition is {photo}." in plain
