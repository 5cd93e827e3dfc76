"""No file holds a case in clear, and a deleted case's key is gone from all of them."""

import base64
import json
import os
import pkgutil
import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from forks import forked
from hypothesis import given
from hypothesis import strategies as st
from kept_cases import answer, image
from typer.testing import CliRunner

from skindx.casebook import casebook_database
from skindx.casebook.casebook import Casebook
from skindx.casebook.kept_case import KeptCase
from skindx.casebook.key_file import VARIABLE, KeyFile, overwrite, seal, unseal
from skindx.cli import app
from skindx.core.errors import UserError

OLD = Path(__file__).parents[1] / "fixtures/v0_1/cases.db"
SECRETS = (b"P-017", b"left forearm", b"excised in May", b"ann", b"Nevus", b"D22.9")


def keep(book: Casebook, seed: int = 1) -> str:
    case = book.keep(
        "ann", answer(seed), patient="P-017", lesion="left forearm", consent=True, train=True
    )
    book.confirm(
        "ann",
        case,
        "Nevus",
        "excised in May",
        ("Nevus",),
        version=1,
        confirmed_by="histopathology",
    )
    return case


def pieces(seed: int) -> list[bytes]:
    """Return parts of a photo; a page of the database holds less than 4 kB of it in a row."""
    photo = image(seed)
    return [photo[start : start + 100] for start in range(700, len(photo) - 100, 1000)]


def everything(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def key_of(book: Casebook, case: str) -> bytes:
    return base64.b64encode(book.keys.read().cases[case])


def test_no_file_holds_a_case_in_clear(tmp_path: Path) -> None:
    book = Casebook.open(tmp_path / "cases.db")
    keep(book)
    raw = everything(tmp_path)
    assert len(raw) > len(image(1))
    for secret in (*SECRETS, *pieces(1), b"JFIF"):
        assert secret not in raw, secret
    assert key_of(book, book.all_cases()[0].id) not in (tmp_path / "cases.db").read_bytes()


def test_deleting_destroys_the_key_and_leaves_the_others(tmp_path: Path) -> None:
    book = Casebook.open(tmp_path / "cases.db")
    stays, goes = keep(book, 1), keep(book, 2)
    key = key_of(book, goes)
    assert key in everything(tmp_path)
    # Another name of the old key file's blocks: they are overwritten, not only let go.
    (tmp_path / "blocks").hardlink_to(book.keys.path)
    before = (tmp_path / "cases.db").stat().st_size
    book.delete("ann", goes)
    assert key not in everything(tmp_path)
    assert set((tmp_path / "blocks").read_bytes()) == {0}
    (tmp_path / "blocks").unlink()
    assert [case.id for case in Casebook.open(tmp_path / "cases.db").all_cases()] == [stays]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["cases.db", "cases.db.keys", "cases.db.keys.lock"]
    keep(book, 2)
    assert (tmp_path / "cases.db").stat().st_size == before  # the room is used again


def test_a_backup_of_the_database_does_not_bring_a_deleted_case_back(tmp_path: Path) -> None:
    book = Casebook.open(tmp_path / "cases.db")
    stays, goes = keep(book, 1), keep(book, 2)
    shutil.copy(tmp_path / "cases.db", tmp_path / "backup")
    book.delete("ann", goes)
    book.engine.dispose()
    shutil.copy(tmp_path / "backup", tmp_path / "cases.db")
    again = Casebook.open(tmp_path / "cases.db")
    assert [case.id for case in again.all_cases()] == [stays]
    assert again.unreadable() == []  # its row is deleted, too
    with pytest.raises(UserError, match="not in the case book"):
        again.delete(None, goes)


def test_an_older_key_file_loses_nothing_silently(tmp_path: Path) -> None:
    book = Casebook.open(tmp_path / "cases.db")
    first = keep(book, 1)
    older = book.keys.path.read_bytes()
    second = keep(book, 2)
    newer = book.keys.path.read_bytes()
    book.keys.path.write_bytes(older)
    again = Casebook.open(tmp_path / "cases.db")
    assert [case.id for case in again.all_cases()] == [first]
    assert again.unreadable() == [second]
    book.keys.path.write_bytes(newer)
    assert [case.id for case in again.all_cases()] == [first, second]


def test_a_missing_or_wrong_key_file_is_refused_and_none_is_made(tmp_path: Path) -> None:
    book = Casebook.open(tmp_path / "cases.db")
    keep(book)
    keys = tmp_path / "cases.db.keys"
    keys.rename(tmp_path / "moved")
    for _ in range(2):
        with pytest.raises(UserError, match=r"key file .*cases\.db\.keys .*missing.*restore it"):
            Casebook.open(tmp_path / "cases.db")
    with pytest.raises(UserError, match="missing"):
        book.lesions("ann")
    assert not keys.exists()
    other = Casebook.open(tmp_path / "other.db")
    with pytest.raises(UserError, match="belong to the case book"):
        Casebook.open(tmp_path / "cases.db", keys=other.keys.path)
    with pytest.raises(UserError, match="belong to the case book"):  # of an encrypted one
        Casebook.open(tmp_path / "new.db", keys=tmp_path / "moved")
    for broken in (b"", b"no json\n", (tmp_path / "moved").read_bytes()[:100], b"\0" * 400):
        keys.write_bytes(broken)
        keys.chmod(0o600)
        with pytest.raises(UserError, match="is not a valid key file; restore"):
            Casebook.open(tmp_path / "cases.db")
        assert keys.read_bytes() == broken
    keys.unlink()
    (tmp_path / "moved").rename(keys)
    keys.chmod(0o640)
    with pytest.raises(UserError, match="chmod 600"):
        Casebook.open(tmp_path / "cases.db")
    keys.chmod(0o600)
    assert len(Casebook.open(tmp_path / "cases.db").all_cases()) == 1


def test_the_environment_or_a_link_names_the_key_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "secrets/keys")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "link"))
    book = Casebook.open(tmp_path / "cases.db")
    keep(book)
    book.delete("ann", keep(book, 2))
    assert (tmp_path / "link").is_symlink()
    assert not (tmp_path / "cases.db.keys").exists()
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(UserError, match="missing"):
        Casebook.open(tmp_path / "cases.db")
    named = Casebook.open(f"sqlite:///{tmp_path}/cases.db", keys=tmp_path / "secrets/keys")
    assert len(named.all_cases()) == 1
    with pytest.raises(UserError, match="--casebook-key"):
        Casebook.open("postgresql://127.0.0.1:1/book")


def test_a_key_that_a_crash_cut_off_is_forgotten(tmp_path: Path) -> None:
    book = Casebook.open(tmp_path / "cases.db")
    first = keep(book)
    with book.keys.path.open("ab") as file:
        file.write(b'{"case": "0123", "ke')
    again = Casebook.open(tmp_path / "cases.db")
    second = keep(again, 2)
    assert {case.id for case in again.all_cases()} == {first, second}
    for line in book.keys.path.read_text().splitlines():
        json.loads(line)


def test_several_processes_keep_and_delete_at_once(tmp_path: Path) -> None:
    path = tmp_path / "cases.db"
    book = Casebook.open(path)

    def keep_three_and_delete_one() -> None:
        here = Casebook.open(path)
        for seed in range(3):
            case = here.keep("ann", answer(seed), patient="P", lesion="arm", consent=True)
        here.delete("ann", case)

    assert forked(keep_three_and_delete_one, keep_three_and_delete_one) == [0, 0]
    assert len(book.all_cases()) == len(book.keys.read().cases) == 4
    assert len(book.keys.read().deleted) == 2
    assert book.unreadable() == []


# A book in plain text


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copy(OLD, tmp_path / "cases.db"))


def of_old(cases: list[KeptCase]) -> list[tuple[str, str, str, str]]:
    return [(case.patient, case.lesion, case.confirmed, case.note) for case in cases]


KEPT = [("P-1", "arm", "", ""), ("P-1", "arm", "", ""), ("P-1", "leg", "Nevus", "/ excised")]
OLD_SECRETS = (b"excised", b"Nevus", b"D22.9", b"JFIF")
"""Without the patient: three bytes stand in what is encrypted by chance."""


def test_a_book_in_plain_text_is_encrypted(old: Path) -> None:
    raw = old.read_bytes()
    assert all(secret in raw for secret in OLD_SECRETS)
    book = Casebook.open(old)
    assert of_old(book.all_cases("ann")) == KEPT
    raw = everything(old.parent)
    for secret in OLD_SECRETS:
        assert secret not in raw, secret
    with closing(sqlite3.connect(old)) as link:
        tables = [
            name for (name,) in link.execute("SELECT name FROM sqlite_master WHERE type='table'")
        ]
        values = {
            value
            for name in tables
            for row in link.execute(f"SELECT * FROM {name}")
            for value in row
        }
    assert values
    assert not values & {"P-1", b"P-1"}
    assert of_old(Casebook.open(old).all_cases("ann")) == KEPT


def test_the_rollback_journal_of_the_conversion_is_overwritten(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks, seen = old.parent / "blocks", []

    def look(path: Path) -> None:
        seen.append(path.read_bytes())
        blocks.hardlink_to(path)  # another name of what SQLite is about to let go
        overwrite(path)

    monkeypatch.setattr(casebook_database, "overwrite", look)
    Casebook.open(old)
    assert b"excised" in b"".join(seen)
    assert set(blocks.read_bytes()) == {0}


MOMENTS = {
    "before the keys": ("skindx.casebook.key_file.KeyFile.add", 1),
    "after the keys": ("skindx.casebook.casebook_database._sealed", 1),
    "in the middle": ("skindx.casebook.casebook_database.insert_case", 3),
    "before the commit": ("sqlalchemy.Table.drop", 3),
    "after the commit": ("skindx.casebook.casebook_database.overwrite", 1),
}


def open_and_die(book: Path, moment: str, call: int) -> None:
    """Open a book; the process kills itself at the `call`-th call of the function `moment`."""
    owner_name, _, name = moment.rpartition(".")
    owner = pkgutil.resolve_name(owner_name)
    real, calls = getattr(owner, name), []

    def die(*sent: Any, **named: Any) -> Any:
        calls.append(name)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*sent, **named)

    setattr(owner, name, die)
    Casebook.open(book)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_in_the_middle_loses_nothing_and_leaves_nothing_in_clear(
    old: Path, moment: str
) -> None:
    assert forked(lambda: open_and_die(old, *MOMENTS[moment])) == [-signal.SIGKILL]
    assert of_old(Casebook.open(old).all_cases("ann")) == KEPT
    raw = everything(old.parent)
    for secret in OLD_SECRETS:
        assert secret not in raw, secret
    names = {path.name for path in old.parent.iterdir()}
    assert names == {"cases.db", "cases.db.keys", "cases.db.keys.lock"}


def test_what_an_older_server_still_writes_is_encrypted_later(old: Path) -> None:
    book = Casebook.open(old)
    with closing(sqlite3.connect(old)) as link:  # skindx 0.1 makes its tables where they miss
        link.execute("ATTACH ? AS old", (str(OLD),))
        for table in ("cases", "photos", "keys"):
            link.execute(f"CREATE TABLE {table} AS SELECT * FROM old.{table}")
        link.execute("UPDATE cases SET id = 'x' || substr(id, 2), note = 'a later note'")
        link.execute("UPDATE photos SET case_id = 'x' || substr(case_id, 2)")
        link.commit()
    again = Casebook.open(old)
    assert len(again.all_cases("ann")) == 6
    assert all(len(case.photos) == 1 for case in again.all_cases("ann"))
    assert again.keys.read().book == book.keys.read().book
    assert b"a later note" not in everything(old.parent)


def test_the_command_line_names_a_key_file_and_cases_without_keys(tmp_path: Path) -> None:
    run, path, keys = CliRunner().invoke, str(tmp_path / "cases.db"), tmp_path / "far/keys"
    book = Casebook.open(path, keys=keys)
    keep(book)
    older = keys.read_bytes()
    lost = keep(book, 2)
    key = ["--casebook-key", str(keys)]
    assert "\n2 cases\n" in run(app, ["casebook", "list", path, *key]).output
    missing = run(app, ["casebook", "list", path])
    assert isinstance(missing.exception, UserError)
    keys.write_bytes(older)
    listed = run(app, ["casebook", "list", path, *key]).output
    assert "\n1 case\n1 more cannot be read" in listed
    assert lost in listed
    assert run(app, ["casebook", "delete", path, lost, *key]).exit_code == 0
    assert "more cannot be read" not in run(app, ["casebook", "list", path, *key]).output
    exported = run(app, ["casebook", "export", path, "--out", str(tmp_path / "out"), *key])
    assert exported.exit_code == 0, exported.output


def test_the_codes_of_earlier_exports_stay(old: Path) -> None:
    with closing(sqlite3.connect(old)) as link:
        link.execute("INSERT INTO keys VALUES ('export', ?)", (b"e" * 32,))
        link.commit()
    assert Casebook.open(old).export_key() == b"e" * 32
    assert b"e" * 32 not in everything(old.parent)


# Encryption


@given(st.binary(max_size=200), st.integers(0, 227), st.integers(1, 255))
def test_what_was_changed_or_put_elsewhere_is_noticed(data: bytes, at: int, flip: int) -> None:
    key, place = b"k" * 32, ("book", "case", "card")
    sealed = seal(key, data, *place)
    assert unseal(key, sealed, *place) == data
    assert seal(key, data, *place) != sealed
    changed = bytearray(sealed)
    changed[at % len(sealed)] ^= flip
    wrong: list[Callable[[], bytes]] = [
        lambda: unseal(key, bytes(changed), *place),
        lambda: unseal(b"x" * 32, sealed, *place),
        # Each part of the place counts, and so does where one ends.
        lambda: unseal(key, sealed, "other", "case", "card"),
        lambda: unseal(key, sealed, "book", "other", "card"),
        lambda: unseal(key, sealed, "book", "case", "record"),
        lambda: unseal(key, sealed, "book/case", "card"),
        lambda: unseal(key, sealed[:11], *place),
    ]
    for attempt in wrong:
        with pytest.raises(UserError, match="damaged"):
            attempt()


def test_a_damaged_row_is_one_sentence(tmp_path: Path) -> None:
    book = Casebook.open(tmp_path / "cases.db")
    keep(book)
    with closing(sqlite3.connect(tmp_path / "cases.db")) as link:
        link.execute("UPDATE sealed_photos SET jpeg = x'00'")
        link.commit()
    with pytest.raises(UserError, match="damaged"):
        book.all_cases()


def test_a_key_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys")
    with file.locked():
        file.create(None)
        file.add({"a": b"a" * 32, "b": b"b" * 32})
    (tmp_path / "keys.new").write_bytes(b"left by a crash")
    with file.locked():
        file.destroy("a")
    keys = KeyFile(tmp_path / "keys").read()
    assert (dict(keys.cases), keys.deleted) == ({"b": b"b" * 32}, {"a"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["keys", "keys.lock"]
