"""Opening a case book: its database, its key file, and errors as one sentence.

The database is a SQLite file that only its user can read, or one by URL; it and its key file belong
together, or the case book is refused.
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Delete, Engine, create_engine, event, inspect, select
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.orm import Session

from skindx.casebook.key_file import VARIABLE, KeyFile
from skindx.casebook.older_books import encrypt, export_key, plain_cases, wipe_journal
from skindx.casebook.sealed_rows import (
    BookRow,
    CasebookTable,
    CaseRow,
    ScanRow,
    case_deletions,
    scan_deletions,
)
from skindx.core.errors import UserError
from skindx.core.machine import how_to_install
from skindx.core.text import without_password
from skindx.workers.lease_queue import server_engine


def open_engine(where: str | Path, *, create: bool) -> Engine:
    """Return an engine for a path (SQLite) or a URL such as postgresql+psycopg://user@host/book.

    Raises UserError for a missing driver, a wrong URL and a file that cannot be opened.
    """
    file, text = sqlite_file(where), str(where)
    if file is not None:
        return _sqlite(file, create)
    try:
        return server_engine(text)
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        reason = without_password(str(error))
        raise UserError(
            f"the case book {without_password(text)} cannot be opened ({reason}); give a path, or "
            "a URL such as postgresql+psycopg://user@host/book with its driver installed "
            f"({how_to_install('postgresql')})."
        ) from None


def sqlite_file(where: str | Path) -> Path | None:
    """Return the file of a case book, None for a database that a server keeps."""
    kind, is_url, rest = str(where).partition("://")
    if not is_url or not re.fullmatch("[a-z0-9+]+", kind):
        return Path(where)
    # sqlite:///book.db and sqlite:////var/book.db
    name = rest.partition("?")[0].removeprefix("/")
    return Path(name) if kind.partition("+")[0] == "sqlite" and name else None


def _sqlite(path: Path, create: bool) -> Engine:
    if not create and not path.is_file():
        raise UserError(f"there is no case book {path}; check the path.")

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Created before SQLite would, so that no other user can read it even for a moment.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        path.chmod(0o600)
    except OSError as error:
        raise UserError(
            f"the case book {path} cannot be opened ({error.strerror}); give a file in a folder "
            "that you can write to."
        ) from None
    engine = create_engine(URL.create("sqlite", database=str(path)), hide_parameters=True)

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _: object) -> None:
        # What is deleted is overwritten with zeros, and temporary tables never touch the disk.
        for pragma in ("secure_delete = ON", "temp_store = MEMORY", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}")

    return engine


log = logging.getLogger(__name__)

_CAUSES = {
    "SQLITE_FULL": "its disk is full",
    "SQLITE_BUSY": "another program is writing to it",
    "SQLITE_LOCKED": "another program is writing to it",
    "SQLITE_READONLY": "it cannot be written to",
    "SQLITE_IOERR": "its disk failed, or is full",
    "SQLITE_CANTOPEN": "its file cannot be opened",
    "SQLITE_CORRUPT": "its file is damaged",
    "SQLITE_NOTADB": "its file is no database",
    "08": "its server does not answer",  # and below: classes of SQLSTATE
    "28": "its server refuses the login",
    "3D": "its server has no such database",
    "42501": "its server does not allow this",
    "53100": "its server's disk is full",
    "53": "its server is short of memory or connections",
    "57": "its server is being stopped",
}


@contextmanager
def database_errors(what: str, book: str = "the case book") -> Iterator[None]:
    """Turn every SQLAlchemyError into a UserError: `what` was tried, and why it failed.

    A driver's own message may repeat values of the row, so neither the sentence nor the log has it.
    """
    try:
        yield
    except SQLAlchemyError as error:
        code, cause = _cause(error)
        log.error("the case book cannot be %s: %s (%s)", what, cause, code)
        unchanged = "" if what == "read" else " nothing was changed;"
        raise UserError(
            f"{book} cannot be {what}: {cause};{unchanged} tell its operator, and try again later."
        ) from None


@dataclass(frozen=True)
class SealedBook:
    """A database of encrypted rows and the file of their keys."""

    engine: Engine
    keys: KeyFile

    @contextmanager
    def session(self, what: str) -> Iterator[Session]:
        """Yield a session in a transaction; `what` is tried in it, as a message names it."""
        with database_errors(what), Session(self.engine) as session, session.begin():
            yield session

    def destroy(self, kind: str, one: str, rows: Iterable[Delete]) -> None:
        """Destroy the key of a case or scan, then its rows; for who has locked the keys."""
        self.keys.destroy(one)
        try:
            with self.session("written") as session:
                for deletion in rows:
                    session.execute(deletion)
        except UserError:
            # It cannot be read any more; its rows are deleted when the case book is opened next.
            log.warning("the key of a deleted %s is destroyed, its rows are still there", kind)


def _cause(error: SQLAlchemyError) -> tuple[str, str]:
    """Return the database's error code, and what it means."""
    original = getattr(error, "orig", None)
    code = getattr(original, "sqlite_errorname", None) or getattr(original, "sqlstate", None)
    if code is None:
        name = type(original or error).__name__
        lost = getattr(error, "connection_invalidated", False) or name == "OperationalError"
        return name, "its server does not answer" if lost else "its database reports an error"
    fits = [known for known in _CAUSES if code.startswith(known)]
    return code, _CAUSES[max(fits, key=len)] if fits else "its database reports an error"


def open_database(where: str | Path, keys: Path | None, *, create: bool) -> tuple[Engine, KeyFile]:
    """Return the database and the key file of a case book; one in plain text is encrypted first.

    Raises UserError for a missing key file of an encrypted book, one of another book, and for a
    database that cannot be used.
    """
    engine, file, done = _opened(where, keys, create=create)
    for sentence in done:
        log.warning("%s", sentence)
    return engine, file


def renew_database(where: str | Path, keys: Path | None = None) -> list[str]:
    """Bring a case book up to date, as its next opening would; return what was done, in sentences.

    No copy of what was in plain text is kept. Raises UserError as `open_database` does.
    """
    engine, _, done = _opened(where, keys, create=False)
    engine.dispose()
    return done


def _opened(
    where: str | Path, keys: Path | None, *, create: bool
) -> tuple[Engine, KeyFile, list[str]]:
    engine = open_engine(where, create=create)
    file = _key_file(where, keys)
    try:
        with file.locked():
            _check(engine, where)
            with database_errors("opened", _name(where)):
                done = _match(engine, file, where)
    except BaseException:
        engine.dispose()
        raise
    return engine, file, done


def _key_file(where: str | Path, given: Path | None) -> KeyFile:
    """Return the key file: the one given, the environment's, or the one beside a SQLite file."""
    if given is not None:
        return KeyFile(given)
    if named := os.environ.get(VARIABLE):
        return KeyFile(Path(named))
    path = sqlite_file(where)
    if path is None:
        raise UserError(
            f"the case book {_name(where)} needs a key file outside its database; name one with "
            f"--casebook-key FILE, or in {VARIABLE}."
        )
    return KeyFile(path.with_name(path.name + ".keys"))


def _check(engine: Engine, where: str | Path) -> None:
    """Raise UserError for a database that cannot be reached; no row was sent to it yet."""
    try:
        inspect(engine).get_table_names()
    except SQLAlchemyError as error:
        reason = without_password(" ".join(str(getattr(error, "orig", None) or error).split()))
        raise UserError(
            f"the case book {_name(where)} cannot be used ({reason}); check that it is one and "
            "that its server is there."
        ) from None


def _match(engine: Engine, file: KeyFile, where: str | Path) -> list[str]:
    assert ScanRow.metadata is CasebookTable.metadata  # its tables are made with the others
    wipe_journal(engine)
    CasebookTable.metadata.create_all(engine)
    plain = plain_cases(engine)
    with Session(engine) as session:
        book = session.scalar(select(BookRow.id))
    if book is None:
        # New, or in plain text, or the process was killed before the row of the book was written.
        if not file.exists():
            file.create(export_key(engine))
        elif not _fits(file, plain or frozenset(), export_key(engine)):
            raise _foreign(file, where)
        with Session(engine) as session, session.begin():
            session.add(BookRow(id=file.read().book))
    elif file.read().book != book:
        raise _foreign(file, where)
    encrypted = [] if plain is None else [encrypt(engine, file)]
    _finish_deletions(engine, file)
    return encrypted


def _fits(file: KeyFile, plain: frozenset[str], export: bytes | None) -> bool:
    """Tell whether a key file was made for a database that does not name it yet."""
    keys = file.read()
    return keys.cases.keys() <= plain and (export is None or keys.export == export)


def _finish_deletions(engine: Engine, file: KeyFile) -> None:
    """Delete rows whose keys were destroyed before a crash, or that a backup brought back."""
    deleted = file.read().deleted
    with Session(engine) as session, session.begin():
        cases = deleted.intersection(session.scalars(select(CaseRow.id)))
        scans = deleted.intersection(session.scalars(select(ScanRow.id)))
        for deletion in (*map(case_deletions, cases), *map(scan_deletions, scans)):
            for statement in deletion:
                session.execute(statement)


def _foreign(file: KeyFile, where: str | Path) -> UserError:
    return UserError(
        f"the key file {file.path} belongs to another case book than {_name(where)}; name the "
        "right one with --casebook-key, or move this one away if the case book is a new one."
    )


def _name(where: str | Path) -> str:
    return without_password(str(where))
