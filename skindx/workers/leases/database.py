"""The database of leases: a SQLite file in a shared folder by default, PostgreSQL by URL."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from sqlalchemy import Engine, create_engine, event, func, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.sql.elements import ColumnElement

from skindx.core.errors import UserError
from skindx.core.machine import how_to_install
from skindx.core.text import without_password
from skindx.workers.leases.tables import METADATA

P = ParamSpec("P")
T = TypeVar("T")

_CONFLICTS = ("40P01", "40001")
"""PostgreSQL's codes of a transaction that it gave up for another one: deadlock, serialization."""

_TRIES, _PAUSE_S = 20, 0.05
_BUSY_S = 60
"""A writer waits so long for others: each of them holds the file for milliseconds."""

_UNIX_EPOCH_JULIAN, _DAY_S = 2440587.5, 86400.0


def open_database(where: Path | str) -> Engine:
    """Return an engine with the tables of leases, for a file or a URL such as postgresql+psycopg://.

    Raises UserError for a missing driver, a wrong URL, a server or file that cannot be used.
    """
    if isinstance(where, Path):
        where.parent.mkdir(parents=True, exist_ok=True)
        engine = _sqlite(where)
    else:
        try:
            engine = create_engine(where, pool_pre_ping=True, hide_parameters=True)
        except (ArgumentError, NoSuchModuleError, ImportError) as error:
            raise UserError(
                f"{shown(where)} names no database that can be opened ({_first_line(error)}); "
                "leave it out for a SQLite file in the run, or give a URL such as "
                "postgresql+psycopg://user@host/name (its driver: "
                f"{how_to_install('postgresql')})."
            ) from None
    with database_errors(where):
        METADATA.create_all(engine)
    return engine


def _sqlite(path: Path) -> Engine:
    engine = create_engine(
        f"sqlite:///{path}", connect_args={"timeout": _BUSY_S}, hide_parameters=True
    )

    @event.listens_for(engine, "connect")
    def _own_transactions(connection: Any, _: object) -> None:
        connection.isolation_level = None
        # A write-ahead log needs shared memory, which a network file system does not have.
        connection.execute("PRAGMA journal_mode = DELETE")

    @event.listens_for(engine, "begin")
    def _one_writer(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def now(engine: Engine) -> ColumnElement[float]:
    """Return the database's own clock, in seconds since 1970: workers' clocks may differ."""
    if engine.dialect.name == "sqlite":
        return (func.julianday("now") - _UNIX_EPOCH_JULIAN) * _DAY_S
    seconds: ColumnElement[float] = func.date_part("epoch", func.clock_timestamp())
    return seconds


class ConflictError(UserError):
    """The database gave a transaction up for another one; it may be repeated."""


def repeated(call: Callable[P, T]) -> Callable[P, T]:
    """Repeat a call of one transaction that the database gave up for another one.

    PostgreSQL ends one of two transactions that wait for each other, and the other goes on.
    """

    @wraps(call)
    def again(*args: P.args, **kwargs: P.kwargs) -> T:
        for number in range(1, _TRIES):
            try:
                return call(*args, **kwargs)
            except ConflictError:
                time.sleep(_PAUSE_S * number * random.random())  # noqa: S311 (no secret)
        return call(*args, **kwargs)

    return again


@contextmanager
def database_errors(where: Path | str) -> Iterator[None]:
    """Turn a failing database into one sentence. Raises UserError; ConflictError is one."""
    try:
        yield
    except SQLAlchemyError as error:
        reason = _first_line(getattr(error, "orig", None) or error)
        conflict = getattr(getattr(error, "orig", None), "sqlstate", None) in _CONFLICTS
        raise (ConflictError if conflict else UserError)(
            f"the database of leases {shown(where)} cannot be used ({reason}); check that its "
            "folder can be written to, or that its server is there."
        ) from None


def shown(where: Path | str) -> str:
    """Return the place as it may be shown, without a password."""
    if isinstance(where, Path):
        return str(where)
    try:
        return without_password(make_url(where).render_as_string(hide_password=True))
    except ArgumentError:
        return "the URL"


def _first_line(error: BaseException) -> str:
    lines = without_password(str(error)).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
