"""The database of a case book: a SQLite file that only its user can read, or one by URL."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skindx.core.errors import UserError
from skindx.core.machine import how_to_install, require_extra
from skindx.core.text import without_password

if TYPE_CHECKING:
    from sqlalchemy import Engine


def open_engine(where: str | Path, *, create: bool) -> "Engine":
    """Return an engine for a path (SQLite) or a URL such as postgresql+psycopg://user@host/book.

    Raises UserError for a missing driver, a wrong URL and a file that cannot be opened.
    """
    require_extra("app", "sqlalchemy", "cryptography", purpose="a case book")
    from sqlalchemy import create_engine
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    file, text = sqlite_file(where), str(where)
    if file is not None:
        return _sqlite(file, create)
    try:
        return create_engine(text, pool_pre_ping=True, hide_parameters=True)
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


def _sqlite(path: Path, create: bool) -> "Engine":
    from sqlalchemy import URL, create_engine, event

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
