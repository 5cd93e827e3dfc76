"""A queue: its tasks are put in once, by the first process, and belong to one piece of work."""

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, Engine, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from skindx.core.errors import UserError
from skindx.core.text import MADE_FROM, differences
from skindx.workers.leases.database import database_errors, now, open_database, shown
from skindx.workers.leases.tables import OPEN, PLACES, QUEUES, TASKS, WORKERS
from skindx.workers.leases.task import Task


class Queue:
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
        tasks: Sequence[Task],
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
            if self._found() is None:
                try:
                    with self.engine.begin() as connection:
                        connection.execute(insert(QUEUES), row)
                        self._fill(connection, tasks, places)
                except IntegrityError:
                    pass  # another worker was first
            found = self._found()
        assert found is not None
        if found.version != version:
            raise UserError(
                f"this worker is skindx {version}, but the run was begun by skindx "
                f"{found.version}; install the same version on every machine."
            )
        known: dict[str, Any] = json.loads(found.facts)
        if found.fingerprint != fingerprint:
            what = differences(known.get(MADE_FROM), facts.get(MADE_FROM, {}))
            raise UserError(
                f"{shown(self.where)} holds the leases of other settings or data ({what}); give "
                "another --out, or remove that run to train it again."
            )
        return known

    def facts(self) -> dict[str, Any] | None:
        """Return the description that the queue's first worker wrote; None: it is not filled."""
        with database_errors(self.where):
            found = self._found()
        return json.loads(found.facts) if found is not None else None

    def _found(self) -> Any:
        with self.engine.begin() as connection:
            return connection.execute(select(QUEUES).where(QUEUES.c.queue == self.name)).first()

    def _fill(self, connection: Connection, tasks: Sequence[Task], places: int) -> None:
        rows = [
            {
                "queue": self.name,
                "key": task.key,
                "number": number,
                "alone": task.alone,
                "place": task.place,
                "stage": task.stage,
                "weight": task.weight,
                "state": OPEN,
                "losses": 0,
            }
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

    def schedule(self, note: str, lease_s: float, token: str = "", *, ended: str = "") -> str:
        """Become the queue's one scheduler, or stay it with the `token` of before.

        One whose note is `ended` is known to be dead. Raises UserError while another is at work.
        """
        token, fresh = token or secrets.token_hex(8), now(self.engine)
        mine = (QUEUES.c.scheduler == token) | QUEUES.c.scheduler.is_(None)
        if ended:
            mine |= QUEUES.c.scheduler_note == ended
        with database_errors(self.where), self.engine.begin() as connection:
            taken = connection.execute(
                update(QUEUES)
                .where(QUEUES.c.queue == self.name, mine | (QUEUES.c.scheduler_until < fresh))
                .values(scheduler=token, scheduler_note=note, scheduler_until=fresh + lease_s)
            ).rowcount
            other = connection.execute(
                select(QUEUES.c.scheduler_note).where(QUEUES.c.queue == self.name)
            ).scalar()
        if not taken:
            raise UserError(
                f"another training schedules this run ({other}); wait for it, or end it."
            )
        return token

    def unschedule(self, token: str) -> None:
        """Let another one schedule."""
        with database_errors(self.where), self.engine.begin() as connection:
            connection.execute(
                update(QUEUES)
                .where(QUEUES.c.queue == self.name, QUEUES.c.scheduler == token)
                .values(scheduler=None, scheduler_note=None, scheduler_until=None)
            )
