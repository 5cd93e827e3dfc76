"""Reports on kept cases: as on a fresh answer, of the owner alone, amended by a clinician."""

import io
import json
import re
import shutil
import zipfile
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import httpx
import pytest
from echo_app import ask
from fastapi import FastAPI
from kept_cases import answer
from pdf_words import words_of

from skindx.casebook.casebook import Casebook
from skindx.casebook.findings import Outside
from skindx.casebook.kept_case import filing_of
from skindx.diagnosis.case import Patient
from skindx.diagnosis.case_actions import action_of
from skindx.diagnosis.report import pdf_sheet
from skindx.taxonomy import load_taxonomy
from skindx.texts.catalogue import text
from skindx.ui.http.asgi import USER, Message, Receive, Send
from skindx.ui.http.kept_reports import kept_report_routes

pytest.importorskip("fhir.resources", reason="fhir.resources is not installed: extra clinic")
FIXTURES = Path(__file__).parents[1] / "fixtures"


class FakeBundle:
    """As much of a bundle as a report on a kept case asks for."""

    taxonomy = load_taxonomy("isic9")
    evaluation = "e" * 64

    def metrics(self) -> dict[str, Any]:
        return {"pictures": 7}


def got(book: Casebook, case: str, form: str, user: str = "ann") -> httpx.Response:
    app = FastAPI()
    app.include_router(kept_report_routes(book, FakeBundle()))  # type: ignore[arg-type]

    async def logged_in(scope: Message, receive: Receive, send: Send) -> None:
        await app({**scope, USER: user}, receive, send)

    return ask(logged_in, "GET", f"/kept/{case}/{form}")


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Casebook, str]:
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)  # its letters can be read in the file
    book = Casebook.open(tmp_path / "cases.db")
    told = answer(1, 2, patient=Patient(site="arm", laterality="left"))
    return book, book.keep("ann", told, patient="P-017", lesion="left forearm", consent=True)


def plain_words(made: httpx.Response) -> str:
    return words_of(made.content).replace("\\(", "(").replace("\\)", ")")


def report(made: httpx.Response) -> dict[str, Any]:
    assert made.status_code == 200, made.text
    first: dict[str, Any] = made.json()["entry"][0]["resource"]
    return first


def test_what_a_lesion_s_name_gave_was_known_at_keeping(kept: tuple[Casebook, str]) -> None:
    book, _ = kept
    named = Patient(site="back", laterality="left")
    whose = {"patient": "P-018", "lesion": "back, left", "consent": True}
    case = book.keep("ann", answer(3), facts=named, **whose)
    words = plain_words(got(book, case, "report.pdf"))
    assert "Place on the body back, left side" in words
    assert "Facts added" not in words
    book.add_facts("ann", case, Patient(age=71), version=1)
    words = plain_words(got(book, case, "report.pdf"))
    assert re.search(r"Facts added after the answer [\w ,:+-]+, by login ann: age\.", words)


def test_a_kept_case_has_the_files_of_a_fresh_answer(kept: tuple[Casebook, str]) -> None:
    made = got(*kept, "report.pdf")
    name = made.headers["content-disposition"].partition("filename=")[2]
    assert re.fullmatch(r'"skindx-P-017-left-forearm-20\d{6}-\d{6}-preliminary-1\.pdf"', name)
    words = plain_words(made)
    for said in ("P-017", "left forearm", "This report is preliminary",
                 "Clinician", "Signed on", "Signature", "For the patient",
                 "keeps no heat maps"):  # fmt: skip
        assert said in words
    assert "licence" not in words.lower()
    assert "Photo 1, arm, left side" in words
    fhir = report(got(*kept, "report.json"))
    assert fhir["status"] == "preliminary"
    assert fhir["presentedForm"][0]["contentType"] == "application/pdf"
    pydicom = pytest.importorskip("pydicom", reason="pydicom is not installed: extra clinic")
    with zipfile.ZipFile(io.BytesIO(got(*kept, "report.zip").content)) as archive:
        assert len(archive.namelist()) == 3
        sr = pydicom.dcmread(io.BytesIO(archive.read("report.dcm")))
    assert (sr.PatientID, sr.StudyDate) == ("P-017", "")


def test_a_kept_answer_bears_the_time_at_which_it_was_given(
    kept: tuple[Casebook, str],
) -> None:
    book, _ = kept
    given = replace(answer(1), given="2026-03-04T10:20:00+00:00")
    case = book.keep("ann", given, patient="P-1", lesion="arm", consent=True)
    assert report(got(book, case, "report.json"))["issued"].startswith("2026-03-04T")
    words = plain_words(got(book, case, "report.pdf"))
    assert "04 March 2026" in words
    assert "when it was kept" not in words


def test_what_a_clinician_recorded_amends_it_and_says_who_and_when(
    kept: tuple[Casebook, str],
) -> None:
    book, case = kept
    book.confirm("ann", case, "", "", (), version=1, outside=Outside("Merkel cell", "C4A.9"),
                 confirmed_by="histopathology")  # fmt: skip
    found = book.case("ann", case).found
    assert found is not None
    words = plain_words(got(*kept, "report.pdf"))
    local = f"{found.astimezone():%H:%M %Z}"
    for said in ("This report is amended", "Merkel cell (C4A.9)", "confirmed by histopathology",
                 "ann", local, "What the software had advised"):  # fmt: skip
        assert said in words
    fhir = report(got(*kept, "report.json"))
    assert (fhir["status"], fhir["conclusionCode"][0]["text"]) == ("amended", "Merkel cell")
    book.confirm("ann", case, "", "a note", (), version=2, outside=Outside("Merkel cell", "C4A.9"),
                 confirmed_by="histopathology")  # fmt: skip
    assert book.case("ann", case).found == found  # the note alone is new
    words = plain_words(got(*kept, "report.pdf"))
    assert all(said in words for said in ("Note written", "the note alone was written"))
    book.confirm("ann", case, "Melanoma", "", ("Melanoma",), version=3,
                 confirmed_by="clinical opinion")  # fmt: skip
    fhir = report(got(*kept, "report.json"))
    assert "conclusionCode" not in fhir
    assert "A clinician recorded Melanoma (C43.9), clinical opinion" in fhir["conclusion"]
    book.confirm("ann", case, "", "", (), version=4)
    fhir = report(got(*kept, "report.json"))  # it was taken back, which leaves a trace
    assert (fhir["status"], "conclusionCode" in fhir) == ("amended", False)
    words = plain_words(got(*kept, "report.pdf"))
    for said in ("took the recorded diagnosis back", "Taken back", "Diagnosis before",
                 "Melanoma (C43.9), clinical opinion", "none, the diagnosis was taken back",
                 "Merkel cell (C4A.9)", "skindx report, version 4"):  # fmt: skip
        assert said in words
    assert "Follow what your clinician advises" not in words
    name = got(*kept, "report.pdf").headers["content-disposition"]
    assert "-amended-4-saved-5.pdf" in name


def test_the_pdf_lists_what_was_done_and_what_was_struck_out(kept: tuple[Casebook, str]) -> None:
    book, case = kept
    assert "What was done" not in plain_words(got(*kept, "report.pdf"))
    for version, (kind, day) in enumerate((("known", "2026-02-09"), ("excised", "2026-02-03")), 1):
        book.record_action("ann", case, action_of(kind, day, by="ann"), version=version)
    words = plain_words(got(*kept, "report.pdf"))
    assert "What was done" in words
    listed = words.rpartition("What was done")[2]
    first, second = "The lesion was excised on 03 Feb 2026.", "The result was known on 09 Feb 2026."
    assert 0 < listed.index(first) < listed.index(second)
    assert "by login ann." in listed
    book.strike_action("ann", case, 0, version=3, why="a mistake")
    words = plain_words(got(*kept, "report.pdf"))
    assert re.search(rf"Struck out on .{{10,60}} by login ann\. The reason [^.]*\. {second}", words)
    assert f"What was done {first}" in words
    assert report(got(*kept, "report.json"))["status"] == "preliminary"  # no diagnosis is new


def test_a_case_is_its_owners_alone(kept: tuple[Casebook, str]) -> None:
    book, case = kept
    for user, name in (("bob", case), ("ann", "0" * 32), ("", case)):
        refused = got(book, name, "report.pdf", user)
        assert refused.status_code == 404
        assert "not in the case book" in refused.json()["error"]
    assert got(book, case, "report.exe").status_code == 404


@pytest.mark.parametrize("version", ["v0_1", "v0_2"])
def test_cases_that_older_versions_kept_have_reports(version: str, tmp_path: Path) -> None:
    for file in (FIXTURES / version).glob("cases.db*"):
        shutil.copy(file, tmp_path / file.name).chmod(0o600)
    book = Casebook.open(tmp_path / "cases.db")
    cases = book.all_cases()
    assert cases
    for case in cases:
        assert case.found is None
        status = "amended" if case.confirmed or case.outside else "preliminary"
        assert report(got(book, case.id, "report.json", case.owner))["status"] == status
    assert got(book, case.id, "report.zip", case.owner).status_code == 200


def test_an_opinion_on_another_case_is_named_and_ends_no_advice(
    kept: tuple[Casebook, str],
) -> None:
    book, first = kept
    second = book.keep("ann", answer(3), patient="P-017", lesion="left forearm", consent=True)
    keys = ("Melanoma", "Nevus")
    book.confirm("ann", second, "Melanoma", "", keys, version=1, confirmed_by="clinical opinion")
    words = plain_words(got(book, first, "report.pdf"))
    for said in ("Another case of this lesion has the diagnosis Melanoma (C43.9)", "opinion",
                 "No treatment or referral is recorded since the diagnosis."):  # fmt: skip
        assert said in words
    assert "no longer current" not in words
    patient = plain_words(got(book, first, "report.pdf?part=patient"))
    assert text("patient_unconfirmed", name="Melanoma") in patient


def test_a_class_of_two_diseases_has_no_code_once_it_is_confirmed(
    kept: tuple[Casebook, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Histopathology tells Bowen's disease (D04) from actinic keratosis (L57.0), the class not."""
    book, case = kept
    monkeypatch.setattr(FakeBundle, "taxonomy", load_taxonomy("ham10000"))
    for version, key in enumerate(("Actinic_Keratosis_Bowen", "Melanoma"), 1):
        made = {"version": version, "confirmed_by": "histopathology"}
        book.confirm("ann", case, key, "", (key,), **made)
        found = filing_of(book.case("ann", case), FakeBundle.taxonomy).recorded
        assert found
        assert found.icd10 == ("C43.9" if key == "Melanoma" else "")


def test_a_confirmed_diagnosis_reaches_the_papers_of_the_lesion_s_other_cases(
    kept: tuple[Casebook, str],
) -> None:
    book, first = kept
    whose = {"patient": "p-017 ", "lesion": "Left forearm", "consent": True}
    second = book.keep("ann", answer(3), **whose)
    keys = ("Melanoma", "Nevus")
    book.confirm("ann", second, "Melanoma", "", keys, version=1, confirmed_by="histopathology")
    open_ = "No treatment or referral is recorded since the diagnosis."
    has = "Another case of this lesion has the diagnosis Melanoma (C43.9)"
    words = plain_words(got(book, first, "report.pdf"))
    for said in (has, open_, "This advice is no longer current", "The advice was: "):
        assert said in words
    patient = plain_words(got(book, first, "report.pdf?part=patient"))
    assert "A clinician has recorded Melanoma" in patient
    assert "Appointment needed by (date)" in patient
    assert has in json.dumps(report(got(book, first, "report.json")))
    own = plain_words(got(book, second, "report.pdf"))
    assert open_ in own
    assert has not in own
    book.record_action("ann", second, action_of("excised", f"{date.today()}"), version=2)
    words = plain_words(got(book, first, "report.pdf"))
    assert open_ not in words
    assert "Another case of this lesion has an entry. The lesion was excised on" in words
    patient = plain_words(got(book, first, "report.pdf?part=patient"))
    assert "Appointment needed by (date)" not in patient
    # A later photo is not what the diagnosis was of: it is named, and the advice stands.
    third = book.keep("ann", answer(4), **whose)
    words = plain_words(got(book, third, "report.pdf"))
    assert has in words
    assert "no longer current" not in words
