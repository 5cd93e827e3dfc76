"""What is kept, for whom, and that deleted means gone."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kept_cases import answer, image

from skindx.casebook.case_names import IdentifyingName
from skindx.casebook.casebook import Casebook
from skindx.casebook.casebook_database import open_engine
from skindx.casebook.findings import Outside, outside_of
from skindx.casebook.kept_case import (
    CASE_CONSENTS,
    PURPOSES,
    consent_text,
    purposes_of,
)
from skindx.core.errors import UserError
from skindx.core.text import without_password
from skindx.diagnosis.case import Patient
from skindx.taxonomy import load_taxonomy
from skindx.workers.lease_queue import shown

KEYS = ("Nevus", "Melanoma")


@pytest.fixture
def book(tmp_path: Path) -> Casebook:
    return Casebook.open(tmp_path / "cases.db")


def keep(book: Casebook, owner: str = "", seed: int = 1, lesion: str = "arm") -> str:
    return book.keep(owner, answer(seed), patient="P-1", lesion=lesion, consent=True)


def test_a_kept_case_comes_back_as_it_was(book: Casebook) -> None:
    given = answer(1, 2, patient=Patient(age=40, skin_type=5))
    case = book.keep("ann", given, patient="  P-1 ", lesion="left   arm", consent=True)
    (kept,) = book.cases("ann", "P-1", "left arm")
    assert kept.id == case
    assert kept.diagnosis == given.diagnosis
    assert kept.photos == (image(1), image(2))
    assert kept.consent == CASE_CONSENTS["keep"]
    assert kept.consented.tzinfo is not None
    assert (kept.confirmed, kept.note) == ("", "")


def test_nothing_is_kept_without_consent_or_name(book: Casebook) -> None:
    with pytest.raises(UserError, match="without consent"):
        book.keep("", answer(1), patient="P", lesion="arm", consent=False)
    for patient, lesion in (("", "arm"), ("P", " "), ("P" * 81, "arm"), ("P\0", "arm")):
        with pytest.raises(UserError):
            book.keep("", answer(1), patient=patient, lesion=lesion, consent=True)
    assert book.all_cases() == []


def test_one_owner_never_reaches_another_s_case(book: Casebook) -> None:
    hers, his = keep(book, "ann", 1), keep(book, "bob", 2)
    assert [case.id for case in book.cases("bob", "P-1", "arm")] == [his]
    assert [lesion.cases for lesion in book.lesions("ann")] == [1]
    assert book.lesions("") == []
    assert book.lesions("ann' OR '1'='1") == []
    with pytest.raises(UserError, match="not in the case book"):
        book.confirm("bob", hers, "Nevus", "", KEYS, version=1)
    with pytest.raises(UserError, match="not in the case book"):
        book.delete("bob", hers)
    (kept,) = book.cases("ann", "P-1", "arm")
    assert kept.confirmed == ""


def test_lesions_are_listed_with_their_dates_and_cases_oldest_first(book: Casebook) -> None:
    first, other, second = keep(book), keep(book, lesion="leg"), keep(book, seed=2)
    assert {(lesion.lesion, lesion.cases) for lesion in book.lesions("")} == {
        ("arm", 2),
        ("leg", 1),
    }
    assert book.lesions("")[0].lesion == "arm"  # seen last
    assert [case.id for case in book.cases("", "P-1", "arm")] == [first, second]
    assert [case.id for case in book.all_cases()] == [first, other, second]


def test_only_a_class_can_be_confirmed_and_it_can_be_taken_back(book: Casebook) -> None:
    case = keep(book)
    book.confirm("", case, "Melanoma", " histology ", KEYS, version=1)
    (kept,) = book.all_cases("")
    assert (kept.confirmed, kept.note) == ("Melanoma", "histology")
    with pytest.raises(UserError, match="not a class"):
        book.confirm("", case, "Measles", "", KEYS, version=1)
    with pytest.raises(UserError, match="note has 5,000"):
        book.confirm("", case, "Nevus", "x" * 5000, KEYS, version=1)
    with pytest.raises(UserError, match="not a way to confirm a diagnosis"):
        book.confirm("", case, "Nevus", "", KEYS, version=2, confirmed_by="a guess")
    with pytest.raises(UserError, match="but no diagnosis, so choose a diagnosis"):
        book.confirm("", case, "", "", KEYS, version=2, confirmed_by="follow-up")
    book.confirm("", case, "Melanoma", "", KEYS, version=2, confirmed_by="histopathology")
    assert book.all_cases("")[0].confirmed_by == "histopathology"
    book.confirm("", case, "", "", KEYS, version=3)
    (kept,) = book.all_cases("")
    assert (kept.confirmed, kept.confirmed_by) == ("", "")


def test_of_two_edits_of_one_state_the_second_is_refused(book: Casebook) -> None:
    case = keep(book)
    book.confirm("", case, "Melanoma", "the newer note", KEYS, version=1)
    with pytest.raises(UserError, match="changed in another window"):
        book.confirm("", case, "Nevus", "an older note", KEYS, version=1)
    (kept,) = book.all_cases("")
    assert (kept.confirmed, kept.note, kept.version) == ("Melanoma", "the newer note", 2)
    book.confirm("", case, "Nevus", "now seen", KEYS, version=2)
    book.delete("", case)
    with pytest.raises(UserError, match="not in the case book"):
        book.confirm("", case, "Nevus", "", KEYS, version=3)


def test_of_many_edits_side_by_side_one_is_written(book: Casebook) -> None:
    case = keep(book)

    def edit(number: int) -> bool:
        try:
            book.confirm("", case, "Nevus", f"note {number}", KEYS, version=1)
        except UserError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        written = list(pool.map(edit, range(8)))
    assert sum(written) == 1
    assert book.all_cases()[0].note == f"note {written.index(True)}"


def test_only_its_user_can_read_the_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Casebook.open(tmp_path / "new" / "cases.db")
    finally:
        os.umask(before)
    for path in (tmp_path / "new").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_a_case_book_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is no database, only a text of some length")
    with pytest.raises(UserError, match=r"text\.db cannot be used"):
        Casebook.open(tmp_path / "text.db")
    with pytest.raises(UserError, match="does not exist; correct the path"):
        Casebook.open(tmp_path / "none.db", create=False)
    with pytest.raises(UserError, match="cannot be opened"):
        Casebook.open(tmp_path)
    assert not (tmp_path / "none.db").exists()


def test_another_database_is_named_by_url_and_its_password_stays_untold() -> None:
    with pytest.raises(UserError, match=r"nosuch://ann:\*\*\*@host/book cannot be opened"):
        open_engine("nosuch://ann:geheim@host/book", create=True)
    assert without_password("postgresql+psycopg://h/b") == "postgresql+psycopg://h/b"
    assert without_password("a://ann:sl/sh@host/book") == "a://ann:***@host/book"
    for secret in ("pa@:ss", "pa@:8", "@:pa", "p a:@ss", ":@:pa", "pa/@:ss?x=@"):
        url = f"postgresql+psycopg://ann:{secret}@host/book"
        assert without_password(f"{url} is wrong") == (
            "postgresql+psycopg://ann:***@host/book is wrong"
        )
    with pytest.raises(UserError, match="write @ as %40") as refused:
        open_engine("postgresql+psycopg://ann:pa@:geheim@host/book", create=True)
    assert "geheim" not in str(refused.value)
    assert shown("postgresql+psycopg://ann:pa@:geheim@host/book") == "the URL"
    assert without_password("postgresql://ann@:pass@host/b") == "postgresql://ann:***@host/b"
    assert without_password("a://h/b?password=x@y&user=z") == "a://h/b?password=***&user=z"


def test_keeping_comparing_and_training_are_three_consents(book: Casebook) -> None:
    for compare, train in ((False, False), (True, False), (False, True), (True, True)):
        said = {"compare": compare, "train": train}
        case = book.keep("", answer(1), patient="P", lesion="arm", consent=True, **said)
        (kept,) = [one for one in book.all_cases("") if one.id == case]
        assert kept.purposes == {"keep"} | {name for name, agreed in said.items() if agreed}
    with pytest.raises(UserError, match="without consent"):
        book.keep("", answer(1), patient="P", lesion="a", consent=False, compare=True, train=True)
    assert consent_text(CASE_CONSENTS, PURPOSES).count(".") == 3


def test_a_patient_may_agree_to_more_or_to_less_later(book: Casebook) -> None:
    case = keep(book)
    book.confirm("", case, "Nevus", "seen", KEYS, version=1, outside=None)
    book.agree("", case, compare=True, train=True, version=2)
    (kept,) = book.all_cases("")
    assert kept.purposes == {"keep", "compare", "train"}
    assert (kept.confirmed, kept.note, kept.photos) == ("Nevus", "seen", (image(1),))
    with pytest.raises(UserError, match="changed in another window"):
        book.agree("", case, compare=True, train=False, version=2)
    with pytest.raises(UserError, match="not in the case book"):
        book.agree("bob", case, compare=True, train=True, version=3)
    book.agree("", case, compare=False, train=False, version=3)
    (kept,) = book.all_cases("")
    assert (kept.purposes, kept.consent) == ({"keep"}, CASE_CONSENTS["keep"])


def test_an_older_consent_covers_what_it_said_and_an_unknown_text_keeping_alone() -> None:
    old = (
        "The patient agrees that these photos and this answer are kept in this case book under a "
        "pseudonym, are compared with later ones, and, once a clinician has confirmed a diagnosis, "
        "may be used to train this model. They may be deleted at any time."
    )
    assert purposes_of(old) == {"keep", "compare", "train"}
    assert purposes_of(old.replace("train", "show")) == {"keep"}
    assert purposes_of("") == {"keep"}
    for compare in (
        "They may be compared with earlier and later photos of the same place.",
        "They may be compared with earlier and later scans of the same view.",
        "Pueden compararse con fotos anteriores y posteriores del mismo lugar.",
        "Pueden compararse con escaneos anteriores y posteriores de la misma vista.",
    ):
        assert purposes_of(f"{CASE_CONSENTS['keep']} {compare}") == {"keep", "compare"}


def test_a_diagnosis_outside_the_classes_is_kept_with_its_code(book: Casebook) -> None:
    case = keep(book)
    merkel = Outside("Merkel cell carcinoma", "C4A.9")
    book.confirm("", case, "", " histology ", KEYS, version=1, outside=merkel)
    (kept,) = book.all_cases("")
    assert (kept.confirmed, kept.outside, kept.note) == ("", merkel, "histology")
    assert kept.outside.words == "Merkel cell carcinoma (C4A.9)"
    with pytest.raises(UserError, match="A class of the model and another diagnosis are both"):
        book.confirm("", case, "Nevus", "", KEYS, version=2, outside=merkel)
    with pytest.raises(UserError, match="write a diagnosis outside"):
        book.confirm("", case, "Measles", "", KEYS, version=2)
    book.confirm("", case, "Nevus", "", KEYS, version=2)
    (kept,) = book.all_cases("")
    assert (kept.confirmed, kept.outside) == ("Nevus", None)


@pytest.mark.parametrize(
    ("text", "code", "label", "outside"),
    [
        ("", " ", "", None),
        ("Merkelzellkarzinom", "", "", Outside("Merkelzellkarzinom", "C4A.9")),
        ("", "c44.92", "", Outside("Squamous cell carcinoma", "C44.92")),
        ("L12.0", "", "", Outside("L12.0", "L12.0")),
        ("bullous  pemphigoid", "L12.0", "", Outside("bullous pemphigoid", "L12.0")),
        ("something rare", "", "", Outside("something rare", "")),
        ("Muttermal", "", "Nevus", None),  # one of the model's own classes
        ("nevus", "D22.9", "Nevus", None),
    ],
)
def test_a_text_or_a_code_becomes_a_diagnosis(
    text: str, code: str, label: str, outside: Outside | None
) -> None:
    model = load_taxonomy("isic9").subset(["Nevus", "Dermatofibroma"])
    assert outside_of(text, code, model) == (label, outside)


def test_a_diagnosis_that_cannot_be_kept_is_one_sentence() -> None:
    model = load_taxonomy("isic9")
    impossible = [("x", code) for code in ("44.C", "c44.zz", "L40.X", "D22.9A", "C4", "C44.12345")]
    for text, code in (*impossible, ("x" * 201, ""), ("a\u202eb", "")):
        with pytest.raises(UserError, match=r"ICD-10 code|at most 200|invisible character"):
            outside_of(text, code, model)


def test_codes_that_exist_are_kept_with_the_letters_of_icd10_cm() -> None:
    model = load_taxonomy("isic9")
    for code in (
        "B07",
        "L40.0",
        "Q82.5",
        "A46",
        "C44.1021",
        "C4A.9",
        "C84.0A",
        "T20.30XA",
        "M1A.00X0",
    ):
        assert outside_of("something", code, model) == ("", Outside("something", code))


def test_a_name_in_another_spelling_is_the_same_name(book: Casebook) -> None:
    def kept(seed: int, patient: str, lesion: str, owner: str = "ann") -> tuple[str, str] | None:
        names = {"patient": patient, "lesion": lesion}
        return book.names_of(owner, book.keep(owner, answer(seed), **names, consent=True))

    assert kept(1, "P-017", "Left arm") == ("P-017", "Left arm")
    assert kept(2, " p \u2013 017 ", "left  ARM") == ("P-017", "Left arm")
    assert kept(3, "P-017", "right arm") == ("P-017", "right arm")
    assert kept(4, "p-017", "arm", "bob") == ("p-017", "arm")  # another owner's is another
    assert kept(5, "P 017", "arm") == ("P 017", "arm")
    assert book.known_names("ann") == {"P-017": ["Left arm", "right arm"], "P 017": ["arm"]}
    assert [case.cases for case in book.lesions("ann")] == [1, 1, 2]
    assert len(book.cases("ann", "p-017", "LEFT ARM")) == 2


@pytest.mark.parametrize(
    ("patient", "lesion", "doubted"),
    [
        ("P-017", "left arm", False),
        ("Maria Lopez", "left arm", True),
        ("Müller, Hans", "left arm", True),
        ("anne-marie o'neil", "arm", True),
        ("P-017", "Left Upper Arm", False),
        ("study patient", "arm", False),
        ("Anna", "arm", True),
        ("Schneider", "arm", True),
        ("Patient Schneider", "arm", True),
        ("P", "arm", False),
        ("A7 B12", "arm", False),
        ("12.05.1980", "arm", True),
        ("P 1980-05-12", "arm", True),
        ("3 May 1980", "arm", True),
        ("P-017", "arm, 943 476 5919", True),
        ("1234567", "arm", True),
        ("123456", "arm", False),
        ("123-45-6789", "arm", True),
        ("S-2024-0017", "arm", False),
    ],
)
def test_what_may_name_a_person_is_kept_only_on_purpose(
    book: Casebook, patient: str, lesion: str, doubted: bool
) -> None:
    names = {"patient": patient, "lesion": lesion}
    if doubted:
        with pytest.raises(IdentifyingName, match="use a pseudonym such as P-017"):
            book.keep("", answer(1), **names, consent=True)
        assert book.all_cases() == []
    book.keep("", answer(1), **names, consent=True, no_person=doubted)
    if doubted and lesion == "arm":  # the person has answered for this name
        book.keep("", answer(2), **names, consent=True)
    assert len(book.all_cases()) == 1 + (doubted and lesion == "arm")
