"""What is kept, for whom, and that deleted means gone."""

import os
import stat
from pathlib import Path

import pytest
from kept_cases import answer, picture
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from skindx.casebook.book import Casebook
from skindx.casebook.case import CONSENT
from skindx.casebook.engine import open_engine, without_password
from skindx.casebook.tables import Base
from skindx.diagnosis.case import Patient
from skindx.errors import UserError

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
    assert kept.photos == (picture(1), picture(2))
    assert kept.consent == CONSENT
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
    assert [each.id for each in book.cases("bob", "P-1", "arm")] == [his]
    assert [each.cases for each in book.lesions("ann")] == [1]
    assert book.lesions("") == []
    assert book.lesions("ann' OR '1'='1") == []
    with pytest.raises(UserError, match="not in the case book"):
        book.confirm("bob", hers, "Nevus", "", KEYS)
    with pytest.raises(UserError, match="not in the case book"):
        book.delete("bob", hers)
    (kept,) = book.cases("ann", "P-1", "arm")
    assert kept.confirmed == ""


def test_lesions_are_listed_with_their_dates_and_cases_oldest_first(book: Casebook) -> None:
    first, other, second = keep(book), keep(book, lesion="leg"), keep(book, seed=2)
    assert {(each.lesion, each.cases) for each in book.lesions("")} == {("arm", 2), ("leg", 1)}
    assert book.lesions("")[0].lesion == "arm"  # seen last
    assert [each.id for each in book.cases("", "P-1", "arm")] == [first, second]
    assert [each.id for each in book.all_cases()] == [first, other, second]


def test_only_a_class_can_be_confirmed_and_it_can_be_taken_back(book: Casebook) -> None:
    case = keep(book)
    book.confirm("", case, "Melanoma", " histology ", KEYS)
    (kept,) = book.all_cases("")
    assert (kept.confirmed, kept.note) == ("Melanoma", "histology")
    with pytest.raises(UserError, match="no class"):
        book.confirm("", case, "Measles", "", KEYS)
    with pytest.raises(UserError, match="note has 5000"):
        book.confirm("", case, "Nevus", "x" * 5000, KEYS)
    book.confirm("", case, "", "", KEYS)
    assert book.all_cases("")[0].confirmed == ""


def test_deleted_means_that_no_byte_is_left(book: Casebook, tmp_path: Path) -> None:
    stays, goes = keep(book, seed=1), keep(book, seed=2, lesion="secret place")
    file = tmp_path / "cases.db"
    # A page of the database holds less than 4 kB of a photo in a row.
    piece = picture(2)[1000:1200]
    assert piece in file.read_bytes()
    size = file.stat().st_size
    book.delete("", goes)
    everything = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert piece not in everything
    assert b"secret place" not in everything
    assert goes.encode() not in everything
    assert picture(1)[1000:1200] in everything
    assert file.stat().st_size < size
    assert [each.id for each in book.all_cases()] == [stays]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cases.db"]


def test_only_its_user_can_read_the_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Casebook.open(tmp_path / "new" / "cases.db")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new" / "cases.db").stat().st_mode) == 0o600


def test_a_case_book_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is no database, only a text of some length")
    with pytest.raises(UserError, match=r"text\.db cannot be used"):
        Casebook.open(tmp_path / "text.db")
    with pytest.raises(UserError, match="there is no case book"):
        Casebook.open(tmp_path / "none.db", create=False)
    with pytest.raises(UserError, match="cannot be opened"):
        Casebook.open(tmp_path)
    assert not (tmp_path / "none.db").exists()


def test_another_database_is_named_by_url_and_its_password_stays_untold() -> None:
    with pytest.raises(UserError, match=r"nosuch://ann:\*\*\*@host/book cannot be opened"):
        open_engine("nosuch://ann:geheim@host/book", create=True)
    assert without_password("postgresql+psycopg://h/b") == "postgresql+psycopg://h/b"
    assert without_password("a://ann:sl/sh@host/book") == "a://ann:***@host/book"
    assert without_password("a://h/b?password=x@y&user=z") == "a://h/b?password=***&user=z"
    written = {
        name: str(CreateTable(table).compile(dialect=postgresql.dialect()))
        for name, table in Base.metadata.tables.items()
    }
    assert "TIMESTAMP WITH TIME ZONE" in written["cases"]
    assert "BYTEA" in written["photos"]
