"""Database errors as one sentence, without the values that were sent."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from skindx.core.errors import UserError

if TYPE_CHECKING:
    from sqlalchemy.exc import SQLAlchemyError

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
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except SQLAlchemyError as error:
        code, cause = _cause(error)
        log.error("the case book cannot be %s: %s (%s)", what, cause, code)
        unchanged = "" if what == "read" else " nothing was changed;"
        raise UserError(
            f"{book} cannot be {what}: {cause};{unchanged} tell its operator, and try again later."
        ) from None


def _cause(error: "SQLAlchemyError") -> tuple[str, str]:
    """Return the database's error code, and what it means."""
    original = getattr(error, "orig", None)
    code = getattr(original, "sqlite_errorname", None) or getattr(original, "sqlstate", None)
    if code is None:
        name = type(original or error).__name__
        lost = getattr(error, "connection_invalidated", False) or name == "OperationalError"
        return name, "its server does not answer" if lost else "its database reports an error"
    fits = [known for known in _CAUSES if code.startswith(known)]
    return code, _CAUSES[max(fits, key=len)] if fits else "its database reports an error"
