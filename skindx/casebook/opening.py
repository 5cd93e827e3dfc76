"""Opening a case book: its database and its key file belong together, or it is refused."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from skindx.casebook.engine import open_engine, sqlite_file
from skindx.casebook.failure import database_errors
from skindx.casebook.key_file import VARIABLE, KeyFile
from skindx.core.errors import UserError
from skindx.core.text import without_password

if TYPE_CHECKING:
    from sqlalchemy import Engine


def open_database(
    where: str | Path, keys: Path | None, *, create: bool
) -> "tuple[Engine, KeyFile]":
    """Return the database and the key file of a case book; one in plain text is encrypted first.

    Raises UserError for a missing key file of an encrypted book, one of another book, and for a
    database that cannot be used.
    """
    engine = open_engine(where, create=create)
    file = _key_file(where, keys)
    try:
        with file.locked():
            _check(engine, where)
            with database_errors("opened", _name(where)):
                _match(engine, file, where)
    except BaseException:
        engine.dispose()
        raise
    return engine, file


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


def _check(engine: "Engine", where: str | Path) -> None:
    """Raise UserError for a database that cannot be reached; no row was sent to it yet."""
    from sqlalchemy import inspect
    from sqlalchemy.exc import SQLAlchemyError

    try:
        inspect(engine).get_table_names()
    except SQLAlchemyError as error:
        reason = without_password(" ".join(str(getattr(error, "orig", None) or error).split()))
        raise UserError(
            f"the case book {_name(where)} cannot be used ({reason}); check that it is one and "
            "that its server is there."
        ) from None


def _match(engine: "Engine", file: KeyFile, where: str | Path) -> None:
    from sqlalchemy import select
    from sqlalchemy.orm import Session

    from skindx.casebook.plaintext import encrypt, export_key, plain_cases, wipe_journal
    from skindx.casebook.scan_tables import ScanRow
    from skindx.casebook.tables import Base, BookRow
    from skindx.casebook.unbound import bind

    assert ScanRow.metadata is Base.metadata  # its tables are made with the others
    wipe_journal(engine)
    Base.metadata.create_all(engine)
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
    if plain is not None:
        encrypt(engine, file)
    _finish_deletions(engine, file)
    bind(engine, file.read())


def _fits(file: KeyFile, plain: frozenset[str], export: bytes | None) -> bool:
    """Tell whether a key file was made for a database that does not name it yet."""
    keys = file.read()
    return keys.cases.keys() <= plain and (export is None or keys.export == export)


def _finish_deletions(engine: "Engine", file: KeyFile) -> None:
    """Delete rows whose keys were destroyed before a crash, or that a backup brought back."""
    from sqlalchemy import delete, select
    from sqlalchemy.orm import Session

    from skindx.casebook.scan_tables import ScanRow
    from skindx.casebook.scanbook import deletions
    from skindx.casebook.tables import CaseRow, PhotoRow

    deleted = file.read().deleted
    with Session(engine) as session, session.begin():
        for case in deleted.intersection(session.scalars(select(CaseRow.id))):
            session.execute(delete(PhotoRow).where(PhotoRow.case_id == case))
            session.execute(delete(CaseRow).where(CaseRow.id == case))
        for scan in deleted.intersection(session.scalars(select(ScanRow.id))):
            for question in deletions(scan):
                session.execute(question)


def _foreign(file: KeyFile, where: str | Path) -> UserError:
    return UserError(
        f"the key file {file.path} belongs to another case book than {_name(where)}; name the "
        "right one with --casebook-key, or move this one away if the case book is a new one."
    )


def _name(where: str | Path) -> str:
    return without_password(str(where))
