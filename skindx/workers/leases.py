"""Workers take tasks, keep them by a heartbeat, and answer; a dead one's tasks open again.

A task is held by a worker, and a worker lives as long as it renews its own row: one write a
heartbeat, however many tasks it holds. The next call of a worker whose row is gone says so, and
what it answers then counts for nothing. A worker also keeps *places*, where data lies that does
not travel, such as a partition of the training images.
"""

import json
import secrets
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Self

from sqlalchemy import Connection, and_, case, delete, func, insert, not_, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.elements import ColumnElement

from skindx.workers.lease_queue import (
    ASIDE,
    DONE,
    FAILED,
    MOST_LOSSES,
    OPEN,
    PLACES,
    TAKEN,
    TASKS,
    WORKERS,
    Choose,
    LeaseQueue,
    OpenTask,
    TaskState,
    WorkerState,
    database_errors,
    now,
    repeated,
)


def settle(connection: Connection, queue: str, worker: str) -> list[int]:
    """Return the places of a living worker after it took or gave back what is its part.

    Its part is an even share of all places among the workers alive, rounded up: a worker that
    took over the place of a dead one gives it back when another comes.
    """
    alive = connection.execute(
        select(WORKERS.c.worker, WORKERS.c.home).where(WORKERS.c.queue == queue)
    ).all()
    rows = connection.execute(
        select(PLACES.c.place, PLACES.c.worker)
        .where(PLACES.c.queue == queue)
        .order_by(PLACES.c.place)
        .with_for_update()
    ).all()
    home = next((row.home for row in alive if row.worker == worker), None)
    held = {row.place for row in rows if row.worker == worker}
    free = {row.place for row in rows if row.worker is None}
    part = -(-len(rows) // max(1, len(alive)))
    kept = set(sorted(held, key=lambda place: (place != home, place))[:part])
    # Homes of others that are alive are left to them.
    homes = {row.home for row in alive if row.worker != worker}
    wanted = sorted(free, key=lambda place: (place != home, place in homes, place))
    for place in wanted:
        if len(kept) < part and (place == home or place not in homes or not kept):
            kept.add(place)
    for places, holder in ((kept - held, worker), (held - kept, None)):
        if places:
            connection.execute(
                update(PLACES)
                .where(PLACES.c.queue == queue, PLACES.c.place.in_(places))
                .values(worker=holder)
            )
    return sorted(kept)


_CANDIDATES = 512
_TRIES = 5


class Leases:
    """The calls of a queue's workers. Each is one transaction, and safe to repeat."""

    def __init__(self, queue: LeaseQueue, lease_s: float) -> None:
        """Take queue and lease; a worker that is silent for `lease_s` counts as dead."""
        self.queue, self.lease_s = queue, lease_s
        self._engine = queue.engine

    @repeated
    def enter(self, note: Mapping[str, Any], home: int | None = None) -> str:
        """Return the name of a new worker; `home` is the place that it takes if it can."""
        worker = secrets.token_hex(8)
        with self._transaction() as connection:
            row = {"queue": self.queue.name, "worker": worker, "note": json.dumps(note)}
            until = now(self._engine) + self.lease_s
            connection.execute(insert(WORKERS).values(**row, home=home, until=until))
        return worker

    @repeated
    def beat(self, worker: str) -> bool:
        """Renew the lease; False: this worker was taken for dead and holds nothing any more."""
        with self._transaction() as connection:
            return bool(
                connection.execute(
                    update(WORKERS)
                    .where(self._of(WORKERS), WORKERS.c.worker == worker)
                    .values(until=now(self._engine) + self.lease_s)
                ).rowcount
            )

    @repeated
    def leave(self, worker: str) -> None:
        """Give all tasks and places back; none counts as a loss."""
        with self._transaction() as connection:
            self._drop(connection, [worker], losses=0)

    @repeated
    def lose(self, worker: str) -> None:
        """Report a worker whose end was seen as dead, without waiting for its lease to expire."""
        with self._transaction() as connection:
            self._drop(connection, [worker], losses=1)

    @repeated
    def take(self, worker: str, choose: Choose) -> OpenTask | None:
        """Take a task of this worker's places; None: there is none now, or the worker is dead."""
        for _ in range(_TRIES):
            try:
                with self._transaction() as connection:
                    return self._take(connection, worker, choose)
            except IntegrityError:  # another worker took one of the same group meanwhile
                continue
        return None

    def _take(self, connection: Connection, worker: str, choose: Choose) -> OpenTask | None:
        self._expire(connection)
        if not self._is_alive(connection, worker):
            return None
        held = settle(connection, self.queue.name, worker)
        candidates = self._candidates(connection, held)
        if not candidates:
            return None
        chosen = choose(candidates)
        values = {"state": TAKEN, "worker": worker, "began": now(self._engine)}
        taken = connection.execute(
            update(TASKS)
            .where(self._of(TASKS), TASKS.c.key == chosen.key, TASKS.c.state == OPEN)
            .values(**values)
        ).rowcount
        return chosen if taken else None

    def _candidates(self, connection: Connection, held: Sequence[int]) -> list[OpenTask]:
        other = TASKS.alias()
        blocked = (
            select(other.c.key)
            .where(
                other.c.queue == TASKS.c.queue,
                other.c.alone == TASKS.c.alone,
                or_(
                    other.c.state.in_((TAKEN, ASIDE, FAILED)),
                    and_(other.c.stage < TASKS.c.stage, other.c.state != DONE),
                ),
            )
            .exists()
        )
        rows = connection.execute(
            select(TASKS.c.key, TASKS.c.alone, TASKS.c.place, TASKS.c.stage, TASKS.c.weight)
            .where(
                self._of(TASKS),
                TASKS.c.state == OPEN,
                or_(TASKS.c.place.is_(None), TASKS.c.place.in_(held)),
                or_(TASKS.c.alone.is_(None), not_(blocked)),
            )
            .order_by(TASKS.c.number)
            .limit(_CANDIDATES)
            .with_for_update(skip_locked=True, of=TASKS)
        ).all()
        left = self._left(connection) if any(row.alone is not None for row in rows) else {}
        return [
            OpenTask(row.key, row.alone, row.place, row.stage, left.get(row.alone, row.weight))
            for row in rows
        ]

    def _left(self, connection: Connection) -> dict[str, float]:
        """Return the work left in each group, in seconds where some of the queue was measured."""
        state, weight, took_s = TASKS.c.state, TASKS.c.weight, TASKS.c.took_s
        measured = and_(state == DONE, took_s.is_not(None))
        rows = connection.execute(
            select(
                TASKS.c.alone,
                func.sum(case((state == DONE, 0.0), else_=weight)).label("left"),
                func.sum(case((measured, weight), else_=0.0)).label("weight"),
                func.sum(case((measured, took_s), else_=0.0)).label("took_s"),
            )
            .where(self._of(TASKS), TASKS.c.alone.is_not(None))
            .group_by(TASKS.c.alone)
        ).all()
        weight_sum = sum(float(row.weight) for row in rows)
        overall = sum(float(row.took_s) for row in rows) / weight_sum if weight_sum else 1.0
        return {
            row.alone: float(row.left) * (row.took_s / row.weight if row.weight else overall)
            for row in rows
        }

    @repeated
    def finish(self, worker: str, key: str, answer: Any = None) -> bool:
        """Answer a task; False: it is not this worker's any more, and the answer is dropped.

        The same worker may say the same again, as after a connection that broke.
        """
        text = json.dumps(answer)
        ends = select(func.coalesce(func.max(TASKS.c.ended), 0) + 1).where(self._of(TASKS))
        with self._transaction() as connection:
            held = and_(self._of(TASKS), TASKS.c.key == key, TASKS.c.worker == worker)
            ended = connection.execute(ends).scalar_one()
            took_s = now(self._engine) - TASKS.c.began
            done = connection.execute(
                update(TASKS)
                .where(held, TASKS.c.state == TAKEN)
                .values(state=DONE, answer=text, ended=ended, took_s=took_s)
            ).rowcount
            if done:
                return True
            same = select(TASKS.c.key).where(held, TASKS.c.state == DONE, TASKS.c.answer == text)
            return connection.execute(same).first() is not None

    @repeated
    def fail(self, worker: str, key: str, sentence: str) -> bool:
        """Refuse a task for good; its group goes no further."""
        with self._transaction() as connection:
            held = and_(self._of(TASKS), TASKS.c.key == key, TASKS.c.worker == worker)
            values = {"state": FAILED, "answer": json.dumps(sentence)}
            return bool(
                connection.execute(
                    update(TASKS).where(held, TASKS.c.state == TAKEN).values(**values)
                ).rowcount
            )

    def has_work(self) -> bool:
        """True while some task is, or will be, anybody's to do."""
        other = TASKS.alias()
        stuck = (
            select(other.c.key)
            .where(
                other.c.queue == TASKS.c.queue,
                other.c.alone == TASKS.c.alone,
                other.c.state.in_((ASIDE, FAILED)),
            )
            .exists()
        )
        open_ = and_(self._of(TASKS), TASKS.c.state.in_((OPEN, TAKEN)))
        able = or_(TASKS.c.alone.is_(None), not_(stuck))
        with self._transaction() as connection:
            wanted = select(TASKS.c.key).where(open_, able).limit(1)
            return connection.execute(wanted).first() is not None

    @repeated
    def reopen(self, states: Sequence[str]) -> None:
        """Let tasks that were set aside or refused be tried again: the user asked once more."""
        with self._transaction() as connection:
            connection.execute(
                update(TASKS)
                .where(self._of(TASKS), TASKS.c.state.in_(states))
                .values(state=OPEN, worker=None, losses=0, answer=None)
            )

    def tasks(self, alone: str | None = None) -> list[TaskState]:
        """Return all tasks, or those of a group, in the order in which they were put in."""
        wanted = self._of(TASKS)
        if alone is not None:
            wanted = and_(wanted, TASKS.c.alone == alone)
        with self._transaction() as connection:
            rows = connection.execute(select(TASKS).where(wanted).order_by(TASKS.c.number)).all()
        names = [field.name for field in fields(TaskState) if field.name != "answer"]
        return [
            TaskState(
                **{name: getattr(row, name) for name in names},
                answer=json.loads(row.answer) if row.answer else None,
            )
            for row in rows
        ]

    @repeated
    def workers(self) -> list[WorkerState]:
        """Return the workers that are alive, those taken for dead are dropped first."""
        with self._transaction() as connection:
            self._expire(connection)
            rows = connection.execute(select(WORKERS).where(self._of(WORKERS))).all()
            held = connection.execute(select(PLACES).where(self._of(PLACES))).all()
        of: dict[str, list[int]] = defaultdict(list)
        for row in held:
            of[row.worker].append(row.place)
        return [
            WorkerState(row.worker, json.loads(row.note), tuple(sorted(of[row.worker])))
            for row in rows
        ]

    def _expire(self, connection: Connection) -> None:
        dead = connection.execute(
            select(WORKERS.c.worker)
            .where(self._of(WORKERS), WORKERS.c.until < now(self._engine))
            .with_for_update(skip_locked=True)
        ).scalars()
        self._drop(connection, list(dead), losses=1)

    def _drop(self, connection: Connection, workers: Sequence[str], losses: int) -> None:
        if not workers:
            return
        gone = connection.execute(
            delete(WORKERS).where(self._of(WORKERS), WORKERS.c.worker.in_(workers))
        ).rowcount
        if not gone:
            return
        more = TASKS.c.losses + losses
        aside = case((more >= MOST_LOSSES, ASIDE), else_=OPEN) if losses else OPEN
        connection.execute(
            update(TASKS)
            .where(self._of(TASKS), TASKS.c.worker.in_(workers), TASKS.c.state == TAKEN)
            .values(state=aside, losses=more, worker=None)
        )
        connection.execute(
            update(PLACES).where(self._of(PLACES), PLACES.c.worker.in_(workers)).values(worker=None)
        )

    def _is_alive(self, connection: Connection, worker: str) -> bool:
        row = select(WORKERS.c.worker).where(self._of(WORKERS), WORKERS.c.worker == worker)
        return connection.execute(row).first() is not None

    def _of(self, table: Any) -> ColumnElement[bool]:
        mine: ColumnElement[bool] = table.c.queue == self.queue.name
        return mine

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """A transaction whose failure is a UserError; a conflict goes to the caller."""
        conflict: IntegrityError | None = None
        with database_errors(self.queue.where):
            try:
                with self._engine.begin() as connection:
                    yield connection
            except IntegrityError as error:
                conflict = error
        if conflict:
            raise conflict


_BEATS = 4
"""Number of heartbeats in the time of a lease."""


class Heartbeat:
    """Renews a worker's row from `with` on."""

    def __init__(self, leases: Leases, worker: str) -> None:
        self.lost = False
        """Whether the worker was taken for dead; its task is then another's."""
        self._leases, self._worker = leases, worker
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="skindx-heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._ended.wait(self._leases.lease_s / _BEATS):
            if not self._is_alive():
                self.lost = True
                return

    def _is_alive(self) -> bool:
        try:
            return self._leases.beat(self._worker)
        except Exception:
            # A database that is away for a moment: the next beat, or the answer, will tell. A
            # thread that died of it would let a worker go on that others take for dead.
            return True
