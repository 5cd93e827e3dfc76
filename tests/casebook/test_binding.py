"""Who can write to the database reads and changes no other login's case by doing so."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kept_cases import answer
from scan_folders import small_visit
from typer.testing import CliRunner

from skindx.casebook.casebook import Casebook
from skindx.casebook.key_file import Binding
from skindx.cli import app
from skindx.core.errors import UserError

BROKEN = "cannot be decrypted"


@pytest.fixture(scope="module")
def visit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_visit(tmp_path_factory.mktemp("visits") / "1")


@pytest.fixture
def book(tmp_path: Path) -> Casebook:
    return Casebook.open(tmp_path / "cases.db")


def execute(book: Casebook, *statements: str) -> None:
    with closing(sqlite3.connect(str(book.engine.url.database))) as link:
        for statement in statements:
            link.execute(statement)
        link.commit()


def row(book: Casebook, case: str, columns: str) -> tuple[Any, ...]:
    with closing(sqlite3.connect(str(book.engine.url.database))) as link:
        return tuple(
            link.execute(f"SELECT {columns} FROM sealed_cases WHERE id = ?", (case,)).fetchone()
        )


def keep(book: Casebook, owner: str, *seeds: int) -> str:
    return book.keep(owner, answer(*seeds), patient="P-1", lesion="arm", consent=True)


def give(table: str) -> str:
    """Return what writes bob's code over the code of every row."""
    return f"UPDATE {table} SET owner = (SELECT owner FROM sealed_cases WHERE id = '{{bobs}}')"


def test_a_copied_owner_code_shows_nobody_s_case(book: Casebook) -> None:
    hers, his = keep(book, "ann", 1), keep(book, "bob", 2)
    key = book.keys.read().cases[hers]
    execute(book, give("sealed_cases").format(bobs=his))
    reads: list[Callable[[], object]] = [
        lambda: book.lesions("bob"),
        lambda: book.cases("bob", "P-1", "arm"),
        lambda: book.all_cases("bob"),
        book.all_cases,
        lambda: book.confirm("bob", hers, "Nevus", "", ("Nevus",), version=1),
        lambda: book.delete("bob", hers),
    ]
    for read in reads:
        with pytest.raises(UserError, match=f"case {hers} {BROKEN}.*changed"):
            read()
    assert book.keys.read().cases[hers] == key
    # Opening the book again does not take it for an older one; its operator can delete the case.
    again = Casebook.open(str(book.engine.url.database))
    with pytest.raises(UserError, match=BROKEN):
        again.all_cases("bob")
    deleted = CliRunner().invoke(
        app, ["casebook", "delete", str(book.engine.url.database), hers, "--yes"]
    )
    assert deleted.exit_code == 0, deleted.output
    assert [case.id for case in again.all_cases("bob")] == [his]


def test_a_copied_owner_code_shows_nobody_s_scan(book: Casebook, visit: Path) -> None:
    scan = book.scans.keep("ann", visit, patient="P-1", view="back", consent=True)
    his = keep(book, "bob", 2)
    execute(book, give("sealed_scans").format(bobs=his))
    reads: list[Callable[[], object]] = [
        lambda: book.scans.scans("bob"),
        lambda: book.scans.scan("bob", scan),
        lambda: book.scans.files("bob", scan),
        lambda: book.scans.delete("bob", scan),
        lambda: book.scans.scans(None),
    ]
    for read in reads:
        with pytest.raises(UserError, match=f"case {scan} {BROKEN}"):
            read()
    assert scan in book.keys.read().cases
    book.scans.delete(None, scan)
    assert book.scans.scans(None) == []


def test_parts_of_another_version_owner_or_case_do_not_open(book: Casebook) -> None:
    first, second = keep(book, "ann", 1), keep(book, "ann", 2)
    before = row(book, first, "card, record, finding, version")
    book.confirm("ann", first, "Nevus", "", ("Nevus",), version=1)
    after = row(book, first, "card, record, finding, version")
    for place, column in enumerate(("card", "record", "finding", "version")):
        for value in (before[place], row(book, second, column)[0]):
            with closing(sqlite3.connect(str(book.engine.url.database))) as link:
                link.execute(f"UPDATE sealed_cases SET {column} = ? WHERE id = ?", (value, first))
                link.commit()
            with pytest.raises(UserError, match=BROKEN):
                book.all_cases("ann")
            with closing(sqlite3.connect(str(book.engine.url.database))) as link:
                link.execute(
                    "UPDATE sealed_cases SET card = ?, record = ?, finding = ?, version = ? "
                    "WHERE id = ?",
                    (*after, first),
                )
                link.commit()
    assert {case.confirmed for case in book.all_cases("ann")} == {"Nevus", ""}


def test_missing_photos_and_files_are_noticed(book: Casebook, visit: Path) -> None:
    keep(book, "ann", 1, 2)
    scan = book.scans.keep("ann", visit, patient="P-1", view="back", consent=True)
    execute(book, "DELETE FROM sealed_photos WHERE position = 1")
    with pytest.raises(UserError, match=BROKEN):
        book.all_cases("ann")
    execute(book, "DELETE FROM sealed_scan_files WHERE position = 1")
    with pytest.raises(UserError, match=BROKEN):
        book.scans.files("ann", scan)


def test_consents_are_bound_to_what_follows_them() -> None:
    there = Binding("book", "case", "code", 1, "kept")
    sealed = there.seal(b"k" * 32, b"data", "finding")
    assert there.unseal(b"k" * 32, sealed, "finding") == b"data"
    for other in (
        Binding("book", "case", "code", 1, "kept and trained on"),
        Binding("book", "case", "code", 2, "kept"),
        Binding("book", "case", "other", 1, "kept"),
        Binding("book", "other", "code", 1, "kept"),
        Binding("other", "case", "code", 1, "kept"),
    ):
        with pytest.raises(UserError, match=BROKEN):
            other.unseal(b"k" * 32, sealed, "finding")
