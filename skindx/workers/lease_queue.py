"""A queue of leased tasks in a database: SQLite in a shared folder, or PostgreSQL by URL.

Its tasks are put in once, by the first process, and belong to one piece of work. A partial unique
index lets no group of tasks be on two workers at a time.
"""

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, Self, TypeVar

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    delete,
    event,
    func,
    insert,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.sql.elements import ColumnElement

from skindx.core.errors import UserError
from skindx.core.machine import how_to_install
from skindx.core.private_files import make_private, private_database
from skindx.core.text import MADE_FROM, differences, without_password

OPEN, TAKEN, DONE, ASIDE, FAILED = "open", "taken", "done", "aside", "failed"
"""States of a task: aside ended three workers, failed was refused by one in a sentence."""

METADATA = MetaData()

QUEUES = Table(
    "lease_queues",
    METADATA,
    Column("queue", String(255), primary_key=True),
    Column("fingerprint", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("facts", Text, nullable=False),
    Column("scheduler", String(64)),
    Column("scheduler_note", Text),
    Column("scheduler_until", Float),
)

WORKERS = Table(
    "lease_workers",
    METADATA,
    Column("queue", String(255), primary_key=True),
    Column("worker", String(64), primary_key=True),
    Column("note", Text, nullable=False),
    Column("home", Integer),
    Column("until", Float, nullable=False),
)

PLACES = Table(
    "lease_places",
    METADATA,
    Column("queue", String(255), primary_key=True),
    Column("place", Integer, primary_key=True),
    Column("worker", String(64)),
)

TASKS = Table(
    "lease_tasks",
    METADATA,
    Column("queue", String(255), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("number", Integer, nullable=False),
    Column("alone", String(255)),
    Column("place", Integer),
    Column("stage", Integer, nullable=False),
    Column("weight", Float, nullable=False),
    Column("state", String(8), nullable=False),
    Column("worker", String(64)),
    Column("losses", Integer, nullable=False),
    Column("took_s", Float),
    Column("began", Float),
    Column("answer", Text),
    Column("ended", Integer),
)

Index("lease_tasks_by_state", TASKS.c.queue, TASKS.c.state, TASKS.c.number)
Index("lease_tasks_by_group", TASKS.c.queue, TASKS.c.alone, TASKS.c.stage)
Index(
    "lease_tasks_one_of_a_group",
    TASKS.c.queue,
    TASKS.c.alone,
    unique=True,
    sqlite_where=text("state = 'taken' AND alone IS NOT NULL"),
    postgresql_where=text("state = 'taken' AND alone IS NOT NULL"),
)


P = ParamSpec("P")
T = TypeVar("T")

_CONFLICTS = ("40P01", "40001")
"""PostgreSQL's codes of a transaction that it gave up for another one: deadlock, serialization."""

_TRIES, _PAUSE_S = 20, 0.05
_BUSY_S = 60
"""Seconds that a writer waits for others, each of which holds the file for milliseconds."""

_UNIX_EPOCH_JULIAN, _DAY_S = 2440587.5, 86400.0


def server_engine(url: str) -> Engine:
    """Return an engine for a database server; text is UTF-8, even where it has no encoding."""
    utf8 = {"client_encoding": "utf8"} if url.startswith("postgresql") else {}
    try:
        return create_engine(url, pool_pre_ping=True, hide_parameters=True, connect_args=utf8)
    except ValueError:  # it repeats a part of the password that stands where a port should
        raise ArgumentError("in a password, write @ as %40, : as %3A and / as %2F") from None


def open_database(where: Path | str) -> Engine:
    """Return an engine with the tables of leases, for a file or a URL such as postgresql+psycopg://.

    Raises UserError for a missing driver, a wrong URL, a server or file that cannot be used.
    """
    if isinstance(where, Path):
        make_private(where.parent)
        with suppress(OSError):  # SQLite says what is wrong
            private_database(where)
        engine = _sqlite(where)
    else:
        try:
            engine = server_engine(where)
        except (ArgumentError, NoSuchModuleError, ImportError) as error:
            raise UserError(
                f"{shown(where)} is not a database that can be opened ({_first_line(error)}); "
                "give a URL such as postgresql+psycopg://user@host/name (its driver: "
                f"{how_to_install('postgresql')}), or leave the setting empty for a SQLite file "
                "in the run."
            ) from None
    with database_errors(where):
        METADATA.create_all(engine)
    return engine


def _sqlite(path: Path) -> Engine:
    engine = create_engine(
        f"sqlite:///{path}", connect_args={"timeout": _BUSY_S}, hide_parameters=True
    )

    @event.listens_for(engine, "connect")
    def _explicit_transactions(connection: Any, _: object) -> None:
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
    return func.date_part("epoch", func.clock_timestamp())


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
            "folder can be written to, or that its server is running and can be reached."
        ) from None


def shown(where: Path | str) -> str:
    """Return the place as it may be shown, without a password."""
    if isinstance(where, Path):
        return str(where)
    try:
        return without_password(make_url(where).render_as_string(hide_password=True))
    except (ArgumentError, ValueError):
        return "the URL"


def _first_line(error: BaseException) -> str:
    lines = without_password(str(error)).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


MOST_LOSSES = 3
"""Number of its workers' deaths after which a task is set aside."""


@dataclass(frozen=True)
class LeaseTask:
    """One piece of work as it is put into a queue."""

    key: str
    """Name of the task, unique in the queue."""
    alone: str | None = None
    """Name shared by tasks that never run at the same time; None: it runs beside any task."""
    place: int | None = None
    """Place of the only worker that may take it; None: any worker."""
    stage: int = 0
    """Stage of its group: it waits until all tasks of lower stages are done."""
    weight: float = 1.0
    """Amount of work, in any unit that all tasks of the queue share."""


@dataclass(frozen=True)
class OpenTask:
    """A task that a worker may take now."""

    key: str
    alone: str | None
    place: int | None
    stage: int
    left: float
    """Work left in its group, in seconds where some of it was measured."""


Choose = Callable[[Sequence[OpenTask]], OpenTask]
"""Picks one of at least one candidate."""


@dataclass(frozen=True)
class TaskState:
    """A task as the database has it."""

    key: str
    alone: str | None
    place: int | None
    stage: int
    weight: float
    state: str
    worker: str | None
    losses: int
    began: float | None
    """When it was last taken, in seconds since 1970 by the database's clock."""
    took_s: float | None
    """How long its answer took, from the taking on."""
    answer: Any
    ended: int | None
    """Position in the order in which tasks ended; exact within a group."""


@dataclass(frozen=True)
class WorkerState:
    """A worker that is alive, as far as the database knows."""

    worker: str
    note: dict[str, Any]
    places: tuple[int, ...]


class LeaseQueue:
    """One queue of a database; cheap to open, safe to use from several threads."""

    def __init__(self, where: Path | str, name: str) -> None:
        """Open the database. Raises UserError when it cannot be used."""
        self.where, self.name = where, name
        self.engine: Engine = open_database(where)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.dispose()

    def put(
        self,
        tasks: Sequence[LeaseTask],
        *,
        fingerprint: str,
        version: str,
        facts: Mapping[str, Any],
        places: int = 0,
    ) -> dict[str, Any]:
        """Fill the queue unless it is filled; return the facts it was filled with.

        Raises UserError for a queue of other work, or of another version of the program.
        """
        row = {
            "queue": self.name,
            "fingerprint": fingerprint,
            "version": version,
            "facts": json.dumps(facts),
        }
        with database_errors(self.where):
            if self._queue_row() is None:
                try:
                    with self.engine.begin() as connection:
                        connection.execute(insert(QUEUES), row)
                        self._fill(connection, tasks, places)
                except IntegrityError:
                    pass  # another worker was first
            stored = self._queue_row()
        assert stored is not None
        if stored.version != version:
            raise UserError(
                f"this machine has skindx {version}, but the run was started with skindx "
                f"{stored.version}; install skindx {stored.version} on this machine."
            )
        known: dict[str, Any] = json.loads(stored.facts)
        if stored.fingerprint != fingerprint:
            what = differences(known.get(MADE_FROM), facts.get(MADE_FROM, {}))
            raise UserError(
                f"{shown(self.where)} belongs to a run with other settings or other data "
                f"({what}); give another folder with --out, or delete that run to train it again."
            )
        return known

    def facts(self) -> dict[str, Any] | None:
        """Return the description that the queue's first worker wrote; None: it is not filled."""
        with database_errors(self.where):
            stored = self._queue_row()
        return json.loads(stored.facts) if stored is not None else None

    def _queue_row(self) -> Any:
        with self.engine.begin() as connection:
            return connection.execute(select(QUEUES).where(QUEUES.c.queue == self.name)).first()

    def _fill(self, connection: Connection, tasks: Sequence[LeaseTask], places: int) -> None:
        rows = [
            {"queue": self.name, "number": number, "state": OPEN, "losses": 0, **asdict(task)}
            for number, task in enumerate(tasks)
        ]
        if rows:
            connection.execute(insert(TASKS), rows)
        if places:
            connection.execute(
                insert(PLACES), [{"queue": self.name, "place": place} for place in range(places)]
            )

    def remove(self) -> None:
        """Delete the queue with all its tasks."""
        with database_errors(self.where), self.engine.begin() as connection:
            for table in (TASKS, PLACES, WORKERS, QUEUES):
                connection.execute(delete(table).where(table.c.queue == self.name))
