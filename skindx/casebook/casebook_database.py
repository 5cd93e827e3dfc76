"""Opening a case book: its database, its key file, and errors as one sentence.

The database is a SQLite file that only its user can read, or one by URL; it and its key file belong
together, or the case book is refused.

A book of skindx 0.1 is in plain text and is encrypted when it is opened. Keys reach the medium
first; then one transaction writes the encrypted rows and drops the old tables, so a crash leaves
the old book or the new one. What SQLite keeps of the old pages while it does so, its rollback
journal, is overwritten afterwards.
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    Column,
    Connection,
    DateTime,
    Delete,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    create_engine,
    delete,
    event,
    insert,
    inspect,
    select,
)
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.orm import Session

from skindx.casebook.deletions import (
    Deletion,
    DeletionRow,
    case_deletions,
    read_trace,
    scan_deletions,
    sealed_trace,
)
from skindx.casebook.findings import ConfirmedFinding
from skindx.casebook.key_file import VARIABLE, KeyFile, new_key, overwrite, owner_code
from skindx.casebook.sealed_rows import (
    BookRow,
    CasebookTable,
    CaseCard,
    CaseRecord,
    CaseRow,
    ScanRow,
    SealedCase,
    insert_case,
    sealed_case,
)
from skindx.core.errors import UserError
from skindx.core.machine import how_to_install
from skindx.core.private_files import close_to_others, make_private, private_database
from skindx.core.text import without_password
from skindx.workers.lease_queue import server_engine

_OLD = MetaData()
_TEXT = ("owner", "patient", "lesion", "consent", "diagnosis", "confirmed", "note")
_CASES = Table(
    "cases",
    _OLD,
    Column("id", String, primary_key=True),
    *(Column(name, String) for name in _TEXT),
    Column("taken", DateTime(timezone=True)),
    Column("consented", DateTime(timezone=True)),
)
_PHOTOS = Table(
    "photos",
    _OLD,
    Column("case_id", String),
    Column("position", Integer),
    Column("jpeg", LargeBinary),
)
_KEYS = Table("keys", _OLD, Column("purpose", String), Column("key", LargeBinary))


def plain_cases(engine: Engine) -> frozenset[str] | None:
    """Return the ids of cases in plain text, None where there is no such table."""
    if not {"cases", "photos"} <= set(inspect(engine).get_table_names()):
        return None
    with engine.connect() as link:
        return frozenset(link.scalars(select(_CASES.c.id)))


def export_key(engine: Engine) -> bytes | None:
    """Return the secret that codes pseudonyms in exports of an old book: they still join."""
    if "keys" not in inspect(engine).get_table_names():
        return None
    with engine.connect() as link:
        return link.scalar(select(_KEYS.c.key).where(_KEYS.c.purpose == "export"))


def encrypt(engine: Engine, file: KeyFile) -> str:
    """Encrypt all cases in plain text and drop their tables, under the lock of the key file.

    Returns what was done in a sentence.
    """
    with _alone(engine) as link:
        # Read again: from here on no other connection can add to it.
        cases = list(link.scalars(select(_CASES.c.id).order_by(_CASES.c.taken, _CASES.c.id)))
        known = file.read().cases
        file.add({case: new_key() for case in cases if case not in known})
        for case in cases:
            insert_case(link, _sealed(link, file, case))
        for table in (_PHOTOS, _CASES, _KEYS):
            table.drop(link, checkfirst=True)
    return (
        f"{len(cases)} cases of this case book were in plain text and are encrypted now; backups, "
        "snapshots and old blocks of the disk may still hold them."
    )


def wipe_journal(engine: Engine) -> None:
    """Overwrite a rollback journal that a crash left beside a SQLite file: it holds plain text."""
    if engine.dialect.name == "sqlite" and _journal(engine).exists():
        with _alone(engine):
            pass


def _journal(engine: Engine) -> Path:
    return Path(f"{engine.url.database}-journal")


@contextmanager
def _alone(engine: Engine) -> Iterator[Connection]:
    """Yield a connection in a transaction of its own, during which no other connection writes."""
    if engine.dialect.name != "sqlite":
        with engine.begin() as link:
            if engine.dialect.name == "postgresql":
                link.exec_driver_sql("LOCK TABLE cases, photos IN ACCESS EXCLUSIVE MODE")
            yield link
        return
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as link:
        # A journal that stays in place can be overwritten; a deleted one is out of reach.
        link.exec_driver_sql("PRAGMA journal_mode = PERSIST")
        link.exec_driver_sql("BEGIN EXCLUSIVE")  # rolls back what a crash left half done
        try:
            yield link
            link.exec_driver_sql("COMMIT")
        finally:
            connection = link.connection.driver_connection
            if connection is not None and connection.in_transaction:
                link.exec_driver_sql("ROLLBACK")
            link.exec_driver_sql("BEGIN EXCLUSIVE")
            overwrite(_journal(engine))
            link.exec_driver_sql("COMMIT")
            link.exec_driver_sql("PRAGMA journal_mode = DELETE")


def _sealed(link: Connection, file: KeyFile, case: str) -> SealedCase:
    row = link.execute(select(_CASES).where(_CASES.c.id == case)).one()
    photos = select(_PHOTOS.c.jpeg).where(_PHOTOS.c.case_id == case)
    jpegs = list(link.scalars(photos.order_by(_PHOTOS.c.position)))
    return sealed_case(
        file.read(),
        case,
        CaseCard(row.owner, row.patient, row.lesion, _utc(row.taken)),
        CaseRecord(
            row.consent,
            _utc(row.consented),
            row.diagnosis,
            len(jpegs),
            unrecorded=bool(row.confirmed or row.note),
        ),
        photos=jpegs,
        finding=ConfirmedFinding(row.confirmed, row.note),
    )


def _utc(moment: datetime) -> datetime:
    """SQLite gives back no time zone; everything was written in UTC."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


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
        raise UserError(f"the case book {path} does not exist; correct the path.")

    try:
        make_private(path.parent)
        private_database(path)
        close_to_others(path.resolve())  # an older one too
    except OSError as error:
        raise UserError(
            f"the case book {path} cannot be opened ({error.strerror}); give a file in a folder "
            "where you may write."
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
            f"{book} cannot be {what}: {cause};{unchanged} ask the operator of the database, and "
            "try again later."
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

    def destroy(self, one: str, rows: Iterable[Delete], owner: str, trace: Deletion) -> None:
        """Destroy the key of a case or scan, then its rows; for the holder of the key lock.

        `owner` is the code in its row. A full disk stops the trace and not the deletion.
        """
        kind = trace.kind
        try:
            with self.session("written") as session:
                session.execute(delete(DeletionRow).where(DeletionRow.id == one))
                row = sealed_trace(self.keys.read(), one, owner, trace)
                session.execute(insert(DeletionRow), [row])
        except UserError:
            log.warning("the deletion of a %s leaves no trace, which cannot be written", kind)
        self.keys.destroy(one)
        try:
            with self.session("written") as session:
                for deletion in rows:
                    session.execute(deletion)
        except UserError:
            # It cannot be read any more; its rows are deleted when the case book is opened next.
            log.warning("the key of a deleted %s is destroyed, its rows are still there", kind)

    def deletions(self, owner: str) -> list[Deletion]:
        """Return the traces of an owner's deleted cases and scans, oldest first."""
        keys = self.keys.read()
        query = select(DeletionRow.id, DeletionRow.owner, DeletionRow.trace)
        with self.session("read") as session:
            mine = query.where(DeletionRow.owner == owner_code(keys.owners, owner))
            rows = session.execute(mine).all()
        gone = [read_trace(keys, *row) for row in rows if row.id not in keys.cases]
        return sorted(gone, key=lambda one: one.when)


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
            f"the case book {_name(where)} needs a key file outside its database; give one with "
            f"--casebook-key FILE, or set {VARIABLE}."
        )
    return KeyFile(path.with_name(path.name + ".keys"))


def _check(engine: Engine, where: str | Path) -> None:
    """Raise UserError for a database that cannot be reached; no row was sent to it yet."""
    try:
        inspect(engine).get_table_names()
    except SQLAlchemyError as error:
        reason = without_password(" ".join(str(getattr(error, "orig", None) or error).split()))
        raise UserError(
            f"the case book {_name(where)} cannot be used ({reason}); check that it is a case "
            "book and that its server is running and can be reached."
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
        f"the key file {file.path} does not belong to the case book {_name(where)}; give the "
        f"correct key file with --casebook-key, or move {file.path} away if the case book is new."
    )


def _name(where: str | Path) -> str:
    return without_password(str(where))
