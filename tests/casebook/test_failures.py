"""A database that fails is one sentence for the user, and no row's values reach message or log."""

import base64
import errno
import os
import resource
import signal
import sqlite3
from pathlib import Path

import pytest
from kept_cases import answer
from sqlalchemy import event
from sqlalchemy.exc import DataError, IntegrityError, OperationalError

from skindx.casebook.casebook import Casebook
from skindx.casebook.casebook_database import database_errors
from skindx.core.errors import UserError

PATIENT, LESION, NOTE = "P-017 Maria", "left forearm", "excised in May"


def keep(book: Casebook, seed: int = 1) -> str:
    return book.keep("ann", answer(seed), patient=PATIENT, lesion=LESION, consent=True)


def assert_silent(said: str, caplog: pytest.LogCaptureFixture) -> None:
    for secret in (PATIENT, LESION, NOTE, "Nevus", "parameters", "INSERT", "sealed_"):
        assert secret not in said
        assert secret not in caplog.text


@pytest.fixture
def book(tmp_path: Path) -> Casebook:
    return Casebook.open(tmp_path / "cases.db")


def test_on_a_full_disk_nothing_is_kept_and_the_user_reads_why(
    book: Casebook, caplog: pytest.LogCaptureFixture
) -> None:
    first = keep(book)
    known = book.keys.read().cases

    @event.listens_for(book.engine, "begin")
    def fill(link):  # type: ignore[no-untyped-def]
        pages = link.exec_driver_sql("PRAGMA page_count").scalar()
        link.exec_driver_sql(f"PRAGMA max_page_count = {pages}")

    with pytest.raises(UserError, match=r"cannot be written: its disk is full") as no:
        keep(book, 2)
    assert_silent(str(no.value), caplog)
    assert "SQLITE_FULL" in caplog.text
    assert [case.id for case in book.all_cases()] == [first]
    assert book.keys.read().cases == known
    # What makes room works on a full disk.
    book.confirm("ann", first, "Nevus", "", ("Nevus",), version=1)
    book.delete("ann", first)
    assert book.all_cases() == []


def test_a_full_disk_under_the_key_file_keeps_nothing(
    book: Casebook, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = keep(book)
    before = book.keys.path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limits[1]))
    try:
        with pytest.raises(UserError, match=r"key file .* cannot be written") as no:
            keep(book, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert_silent(str(no.value), caplog)
    assert book.keys.path.read_bytes() == before
    assert [case.id for case in book.all_cases()] == [first]


def test_a_case_can_be_deleted_where_no_byte_is_free(
    book: Casebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays, goes = keep(book, 1), keep(book, 2)
    key = base64.b64encode(book.keys.read().cases[goes])
    real = os.open

    def full(path, flags, mode=0o777, **named):  # type: ignore[no-untyped-def]
        if flags & os.O_EXCL:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, flags, mode, **named)

    monkeypatch.setattr(os, "open", full)
    size = book.keys.path.stat().st_size
    book.delete("ann", goes)
    monkeypatch.undo()
    assert key not in book.keys.path.read_bytes()
    assert book.keys.path.stat().st_size == size
    again = Casebook.open(book.keys.path.with_suffix(""))
    assert [case.id for case in again.all_cases()] == [stays]
    assert again.keys.read().deleted == {goes}


def test_every_failure_of_the_database_is_a_sentence(
    book: Casebook, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    case = keep(book)
    with sqlite3.connect(tmp_path / "cases.db") as link:
        link.execute("ALTER TABLE sealed_cases RENAME TO elsewhere")
    link.close()
    asked = [
        lambda: keep(book, 2),
        lambda: book.lesions("ann"),
        lambda: book.cases("ann", PATIENT, LESION),
        book.all_cases,
        book.unreadable,
        lambda: book.confirm("ann", case, "Nevus", NOTE, ("Nevus",), version=1),
        lambda: book.delete("ann", case),
    ]
    for ask in asked[:2] + asked[3:]:
        with pytest.raises(UserError, match=r"the case book cannot be (read|written)") as no:
            ask()
        assert_silent(str(no.value), caplog)
    with sqlite3.connect(tmp_path / "cases.db") as link:
        link.execute("ALTER TABLE elsewhere RENAME TO sealed_cases")
    link.close()
    assert [kept.id for kept in book.all_cases()] == [case]
    book.engine.dispose()
    (tmp_path / "cases.db").write_bytes(b"no database at all, but long enough to look like one")
    with pytest.raises(UserError, match="its file is no database"):
        book.lesions("ann")


def test_a_locked_database_is_waited_for_and_then_named(
    book: Casebook, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @event.listens_for(book.engine, "connect")
    def impatient(connection, _):  # type: ignore[no-untyped-def]
        connection.execute("PRAGMA busy_timeout = 10")

    book.engine.dispose()
    other = sqlite3.connect(tmp_path / "cases.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(UserError, match="another program is writing to it") as no:
        keep(book)
    other.execute("ROLLBACK")
    other.close()
    assert_silent(str(no.value), caplog)
    keep(book)


class FromPostgres(Exception):
    """As psycopg reports: the row stands in its message; no SQLSTATE while it connects."""

    def __init__(self, sqlstate: str | None) -> None:
        super().__init__(f"DETAIL: Failing row contains ({PATIENT}, {NOTE}).")
        self.sqlstate = sqlstate


FromPostgres.__name__ = "OperationalError"


@pytest.mark.parametrize(
    ("kind", "sqlstate", "said"),
    [
        (IntegrityError, "23502", "its database reports an error"),
        (DataError, "22021", "its database reports an error"),
        (OperationalError, "53100", "its server's disk is full"),
        (OperationalError, "53300", "short of memory or connections"),
        (OperationalError, "57P01", "its server is being stopped"),
        (OperationalError, "08006", "its server does not answer"),
        (OperationalError, None, "its server does not answer"),
    ],
)
def test_a_driver_s_own_words_stay_out(
    kind: type[OperationalError], sqlstate: str | None, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UserError, match=said) as no, database_errors("written"):
        raise kind("INSERT", {"patient": PATIENT}, FromPostgres(sqlstate))
    assert_silent(str(no.value), caplog)
    assert no.value.__suppress_context__
