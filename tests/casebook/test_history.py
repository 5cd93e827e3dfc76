"""A correction and a withdrawal leave what stood before: who, when, on what it rested."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from kept_cases import answer

from skindx.casebook.casebook import Casebook
from skindx.casebook.findings import Outside, finding_from_json, finding_to_json
from skindx.casebook.kept_case import KeptCase, consent_changes, filing_of
from skindx.core.errors import UserError
from skindx.taxonomy import load_taxonomy

KEYS = ("Nevus", "Melanoma")
FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture
def book(tmp_path: Path) -> Casebook:
    return Casebook.open(tmp_path / "cases.db")


def keep(book: Casebook, **agreed: bool) -> str:
    return book.keep("anna", answer(1), patient="P-1", lesion="arm", consent=True, **agreed)


def test_a_correction_keeps_what_it_replaces(book: Casebook) -> None:
    case, began = keep(book), datetime.now(UTC)
    book.confirm("anna", case, "Melanoma", "a", KEYS, version=1, confirmed_by="histopathology")
    melanoma = book.case("anna", case)
    book.confirm("anna", case, "Nevus", "b", KEYS, version=2)
    merkel = Outside("Merkel cell carcinoma", "C4A.9")
    book.confirm("anna", case, "", "b", KEYS, version=3, outside=merkel)
    kept = Casebook.open(book.keys.path.with_suffix("")).case("anna", case)
    assert [one.finding.confirmed for one in kept.earlier] == ["Melanoma", "Nevus"]
    first = kept.earlier[0]
    assert (first.finding.confirmed_by, first.finding.by) == ("histopathology", "anna")
    assert first.finding.found == melanoma.found
    assert began < first.finding.found < first.replaced  # type: ignore[operator]
    assert (first.replaced_by, first.finding.note) == ("anna", "")
    assert (kept.outside, kept.found_by, kept.note) == (merkel, "anna", "b")
    filing = filing_of(kept, load_taxonomy("isic9"))
    assert [one.words for one in filing.earlier] == ["Melanoma (C43.9)", "Nevus (mole) (D22.9)"]
    assert [one.confirmed_by for one in filing.earlier] == ["histopathology", ""]
    assert filing.earlier[0].replaced_by == filing.earlier[0].who == "anna"
    assert not filing.unrecorded


def test_a_note_alone_makes_no_earlier_entry_and_taking_back_makes_one(book: Casebook) -> None:
    case = keep(book)
    book.confirm("anna", case, "", "a note", KEYS, version=1)
    book.confirm("anna", case, "Nevus", "a note", KEYS, version=2)
    found = book.case("anna", case).found
    book.confirm("anna", case, "Nevus", "a newer note", KEYS, version=3)
    kept = book.case("anna", case)
    assert (kept.earlier, kept.found, kept.note) == ((), found, "a newer note")
    book.confirm("anna", case, "", "", KEYS, version=4)
    kept = book.case("anna", case)
    assert [one.finding.confirmed for one in kept.earlier] == ["Nevus"]
    assert (kept.confirmed, kept.found, kept.found_by) == ("", None, "")
    filing = filing_of(kept, load_taxonomy("isic9"))
    assert (filing.recorded, len(filing.earlier)) == (None, 1)
    book.confirm("anna", case, "Nevus", "", KEYS, version=5, confirmed_by="follow-up")
    book.confirm("anna", case, "Nevus", "", KEYS, version=6, confirmed_by="histopathology")
    bases = [one.finding.confirmed_by for one in book.case("anna", case).earlier]
    assert bases == ["", "follow-up"]  # another basis is a correction too


def told(case: KeptCase) -> list[tuple[tuple[str, ...], bool]]:
    return [(one.purposes, one.withdrawn) for one in consent_changes(case.consents)]


def test_consents_and_their_withdrawals_are_kept_with_their_times(book: Casebook) -> None:
    case = keep(book, compare=True, train=True)
    given = book.case("anna", case).consented
    book.agree("anna", case, compare=True, train=True, version=1)  # nothing new
    assert told(book.case("anna", case)) == [(("keep", "compare", "train"), False)]
    book.agree("anna", case, compare=False, train=False, version=2)
    kept = book.case("anna", case)
    assert told(kept)[1] == (("compare", "train"), True)
    assert kept.purposes == {"keep"}
    assert [one.who for one in consent_changes(kept.consents)] == ["anna", "anna"]
    assert kept.agreed("keep") == given < kept.consented
    book.agree("anna", case, compare=True, train=False, version=3)
    kept = book.case("anna", case)
    assert told(kept)[2] == (("compare",), False)
    assert kept.agreed("compare") == kept.consented


def test_of_two_corrections_at_once_one_is_kept_and_the_other_is_told(book: Casebook) -> None:
    case = keep(book)
    book.confirm("anna", case, "Melanoma", "", KEYS, version=1)

    def correct(label: str) -> str:
        try:
            book.confirm("anna", case, label, "", KEYS, version=2)
        except UserError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(2) as pool:
        said = sorted(pool.map(correct, ("Nevus", "")))
    assert said[0] == ""
    assert "changed in another window" in said[1]
    kept = book.case("anna", case)
    assert [one.finding.confirmed for one in kept.earlier] == ["Melanoma"]


def test_a_list_opens_cards_alone_and_names_each_diagnosis_once(
    book: Casebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    for label, how in (("Nevus", "histopathology"), ("Melanoma", ""), ("Nevus", "histopathology")):
        book.confirm("anna", keep(book), label, "a note", KEYS, version=1, confirmed_by=how)
    keep(book)
    monkeypatch.delattr("skindx.casebook.casebook.read_record")
    monkeypatch.delattr("skindx.casebook.casebook.read_finding")
    (lesion,) = book.lesions("anna")
    assert (lesion.cases, lesion.urgency) == (4, "soon")
    named = [(one.confirmed, one.confirmed_by, one.note) for one in lesion.findings]
    assert named == [("Nevus", "histopathology", ""), ("Melanoma", "", "")]


@pytest.mark.parametrize("version", ["v0_1", "v0_2"])
def test_a_book_of_an_older_version_shows_what_it_has(version: str, tmp_path: Path) -> None:
    for file in (FIXTURES / version).glob("cases.db*"):
        shutil.copy(file, tmp_path / file.name)
        (tmp_path / file.name).chmod(0o600)
    book = Casebook.open(tmp_path / "cases.db")
    cases = book.all_cases()
    changed = [case for case in cases if case.confirmed or case.note]
    assert changed
    assert all(lesion.urgency for lesion in book.lesions(cases[0].owner))
    for case in cases:
        assert (case.earlier, len(case.consents)) == ((), 1)
        assert case.unrecorded == (case in changed)
    case = changed[0]
    book.confirm(case.owner, case.id, "Melanoma", "", KEYS, version=case.version)
    kept = book.case(case.owner, case.id)
    assert kept.unrecorded  # what was lost before stays said
    assert [one.finding.confirmed for one in kept.earlier] == [case.confirmed]


def test_notes_of_an_older_version_have_no_kind_and_keep_what_they_get() -> None:
    times = [f"2026-11-30T1{hour}:00:00+00:00" for hour in range(3)]
    held = {"confirmed": "", "note": "", "notes": [[time, "anna"] for time in times]}
    removed = finding_from_json(held)
    assert [one.what for one in removed.notes] == ["written", "changed", "removed"]
    again = replace(removed, note="Flat.").written(removed, datetime.now(UTC), "bob")
    read = finding_from_json(finding_to_json(again))
    assert [one.what for one in read.notes] == ["written", "changed", "removed", "written"]
