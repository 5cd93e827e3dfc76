"""Leases by their promises: every task once, a group on one worker, whoever dies meanwhile."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from postgresql import server
from sqlalchemy.exc import OperationalError

from skindx.core.errors import UserError
from skindx.workers.lease_queue import ASIDE, DONE, FAILED, TAKEN, LeaseQueue, LeaseTask, OpenTask
from skindx.workers.leases import Heartbeat, Leases

SHARED_MEMORY = Path("/dev/shm")


def units(members: int, places: int, epochs: int) -> list[LeaseTask]:
    """Return what hopping members do: visits, then validations, epoch after epoch."""
    return [
        LeaseTask(f"{member}/{stage}/{place}", f"m{member}", place, stage)
        for member in range(members)
        for stage in range(2 * epochs)
        for place in range(places)
    ]


def put(queue: LeaseQueue, tasks: list[LeaseTask], places: int = 0, **other: str) -> None:
    known = {"fingerprint": "same", "version": "1", **other}
    queue.put(tasks, **known, facts={"places": places}, places=places)


def first(found: list[OpenTask]) -> OpenTask:
    return found[0]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LeaseQueue]:
    """Return an empty queue, in the long tests in both databases."""
    where: Path | str = tmp_path / "leases.sqlite"
    if request.param == "postgresql":
        where = request.getfixturevalue("postgres")
    with LeaseQueue(where, tmp_path.name) as opened:
        yield opened


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """Return the URL of a PostgreSQL server of this test."""
    with server() as url:
        yield url


@pytest.mark.parametrize("queue", ["sqlite", "postgresql"], indirect=True)
def test_a_group_is_on_one_worker_at_a_time(queue: LeaseQueue) -> None:
    put(queue, units(1, 2, 1), places=2)
    leases = Leases(queue, 60)
    a, b = leases.enter({}, home=0), leases.enter({}, home=1)
    taken = leases.take(a, first)
    assert taken is not None
    assert (taken.key, taken.place) == ("0/0/0", 0)
    assert leases.take(b, first) is None
    assert leases.finish(a, "0/0/0", {"loss": 0.5})
    assert leases.take(a, first) is None  # its place is done, the other one is b's
    other = leases.take(b, first)
    assert other is not None
    assert other.key == "0/0/1"
    assert leases.take(a, first) is None  # the next stage waits for it
    assert leases.finish(b, "0/0/1")
    later = leases.take(a, first)
    assert later is not None
    assert later.stage == 1
    assert leases.tasks()[0].answer == {"loss": 0.5}


def test_an_answer_may_be_given_twice_and_only_by_its_worker(queue: LeaseQueue) -> None:
    put(queue, [LeaseTask("t")])
    leases = Leases(queue, 60)
    a, b = leases.enter({}), leases.enter({})
    assert leases.take(a, first) is not None
    assert not leases.finish(b, "t", 1)
    assert leases.finish(a, "t", 1)
    assert leases.finish(a, "t", 1)
    assert not leases.finish(a, "t", 2)
    assert leases.tasks()[0].answer == 1
    assert not leases.has_work()


def test_a_task_that_killed_three_workers_is_set_aside_alone(queue: LeaseQueue) -> None:
    put(queue, [LeaseTask("poison", "a"), LeaseTask("good", "b"), LeaseTask("after", "a", stage=1)])
    leases = Leases(queue, 60)
    for _ in range(3):
        worker = leases.enter({})
        taken = leases.take(worker, first)
        assert taken is not None
        assert taken.key == "poison"
        leases.lose(worker)
    worker = leases.enter({})
    taken = leases.take(worker, first)
    assert taken is not None
    assert taken.key == "good"
    assert leases.finish(worker, "good")
    assert leases.take(worker, first) is None
    assert not leases.has_work()  # what follows the poison is nobody's
    assert [task.state for task in leases.tasks()] == [ASIDE, DONE, "open"]
    leases.reopen((ASIDE,))
    assert leases.has_work()


def test_handing_back_is_no_loss_and_refusing_is_for_good(queue: LeaseQueue) -> None:
    put(queue, [LeaseTask("t")])
    leases = Leases(queue, 60)
    for _ in range(5):
        worker = leases.enter({})
        assert leases.take(worker, first) is not None
        leases.leave(worker)
    worker = leases.enter({})
    assert leases.take(worker, first) is not None
    assert leases.fail(worker, "t", "the loss is not finite")
    (task,) = leases.tasks()
    assert (task.state, task.losses, task.answer) == (FAILED, 0, "the loss is not finite")


def test_a_silent_worker_is_dead_by_the_clock_of_the_database(queue: LeaseQueue) -> None:
    put(queue, [LeaseTask("t")])
    silent, alive = Leases(queue, 0.01), Leases(queue, 60)
    a = alive.enter({})
    assert alive.take(a, first) is not None
    assert silent.beat(a)  # its lease is over in a hundredth of a second
    b = alive.enter({})
    time.sleep(0.05)
    taken = alive.take(b, first)
    assert taken is not None
    assert not silent.beat(a)
    assert not silent.finish(a, "t", "late")
    assert silent.take(a, first) is None
    assert alive.finish(b, "t", "in time")
    assert alive.tasks()[0].losses == 1


def test_places_of_the_dead_are_taken_over_and_given_back(queue: LeaseQueue) -> None:
    put(queue, units(3, 3, 1), places=3)
    leases = Leases(queue, 60)
    names = [leases.enter({"rank": rank}, home=rank) for rank in range(3)]

    def places() -> dict[int, tuple[int, ...]]:
        for name in names:
            taken = leases.take(name, first)
            if taken is not None:
                leases.finish(name, taken.key)
        return {worker.note["rank"]: worker.places for worker in leases.workers()}

    assert places() == {0: (0,), 1: (1,), 2: (2,)}
    leases.lose(names.pop())
    assert sorted(sum(places().values(), ())) == [0, 1, 2]
    names.append(leases.enter({"rank": 2}, home=2))
    places()
    assert places() == {0: (0,), 1: (1,), 2: (2,)}


def test_what_does_not_belong_together_is_refused(queue: LeaseQueue) -> None:
    put(queue, [LeaseTask("t")])
    put(queue, [])  # whoever comes later puts nothing in
    assert len(Leases(queue, 60).tasks()) == 1
    with pytest.raises(UserError, match="other settings or other data"):
        put(queue, [LeaseTask("t")], fingerprint="other")
    with pytest.raises(UserError, match=r"this machine has skindx 2"):
        put(queue, [LeaseTask("t")], version="2")
    queue.remove()
    assert queue.facts() is None


def test_a_database_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "leases.sqlite"
    file.write_bytes(b"no database" * 100)
    with pytest.raises(UserError, match="cannot be used"):
        LeaseQueue(file, "q")
    with pytest.raises(UserError, match="is not a database"):
        LeaseQueue("nonsense://user:secret@host/name", "q")
    unreachable = "postgresql+psycopg://me:secret@127.0.0.1:1/none?connect_timeout=2"
    with pytest.raises(UserError, match=r"postgresql\+psycopg://me:\*\*\*@127") as reported:
        LeaseQueue(unreachable, "q")
    assert "secret" not in str(reported.value)


def test_a_transaction_that_was_given_up_for_another_is_repeated(
    queue: LeaseQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(queue, [LeaseTask("t")])
    leases, tries = Leases(queue, 60), []
    worker = leases.enter({})
    take = Leases._take

    def deadlocked(self: Leases, connection: Any, name: str, choose: Any) -> Any:
        found = take(self, connection, name, choose)
        tries.append(found)
        if len(tries) < 3:
            given_up = Exception("deadlock detected")
            given_up.sqlstate = "40P01"  # type: ignore[attr-defined]
            raise OperationalError("", {}, given_up)
        return found

    monkeypatch.setattr(Leases, "_take", deadlocked)
    taken = leases.take(worker, lambda tasks: tasks[0])
    assert taken
    assert taken.key == "t"
    assert len(tries) == 3  # what was given up left nothing taken
    assert leases.finish(worker, "t")


def test_a_heartbeat_notices_that_its_worker_was_given_up(tmp_path: Path) -> None:
    with LeaseQueue(tmp_path / "leases.sqlite", "q") as opened:
        put(opened, [LeaseTask("t")])
        leases = Leases(opened, 0.2)
        worker = leases.enter({})
        with Heartbeat(leases, worker) as heartbeat:
            time.sleep(0.4)
            assert not heartbeat.lost
            assert leases.workers()
            leases.lose(worker)
            deadline = time.monotonic() + 20
            while not heartbeat.lost and time.monotonic() < deadline:
                time.sleep(0.02)
            assert heartbeat.lost


@settings(max_examples=8)
@given(
    seed=st.integers(0, 10**6),
    members=st.integers(1, 4),
    places=st.integers(1, 3),
    workers=st.integers(1, 3),
    crash=st.sampled_from([0.0, 0.1, 0.3]),
)
def test_every_unit_once_over_random_crashes(
    seed: int, members: int, places: int, workers: int, crash: float
) -> None:
    """A crash is a worker that is lost, and maybe wakes up and answers all the same."""
    rng = random.Random(seed)
    folder = Path(tempfile.mkdtemp(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None))
    try:
        with LeaseQueue(folder / "leases.sqlite", "q") as opened:
            put(opened, units(members, places, epochs=1), places=places)
            leases, counted = Leases(opened, 60), Counter[str]()
            alive: dict[str, OpenTask | None] = {leases.enter({}): None for _ in range(workers)}
            zombies: list[tuple[str, OpenTask]] = []
            while leases.has_work():
                name = rng.choice(list(alive))
                held = alive[name]
                if held is None:
                    alive[name] = leases.take(name, rng.choice)
                    _assert_apart(list(alive.values()))
                elif rng.random() < crash and counted[f"lost {held.key}"] < 2:
                    counted[f"lost {held.key}"] += 1
                    zombies.append((name, held))
                    del alive[name]
                    leases.lose(name)
                    alive[leases.enter({})] = None
                else:
                    assert leases.finish(name, held.key, name)
                    counted[held.key] += 1
                    alive[name] = None
                if zombies and rng.random() < 0.3:
                    dead, late = zombies.pop()
                    assert not leases.finish(dead, late.key, dead)
            tasks = leases.tasks()
            assert all(task.state == DONE and counted[task.key] == 1 for task in tasks)
            for member in range(members):
                mine = [task for task in tasks if task.alone == f"m{member}"]
                ended = sorted(mine, key=lambda task: task.ended or 0)
                assert len({task.ended for task in mine}) == len(mine)
                assert [task.stage for task in ended] == sorted(task.stage for task in mine)
    finally:
        shutil.rmtree(folder)


def _assert_apart(held: list[OpenTask | None]) -> None:
    groups = [candidate.alone for candidate in held if candidate is not None]
    places = [candidate.place for candidate in held if candidate is not None]
    assert len(groups) == len(set(groups))
    assert len(places) == len(set(places))


_WORKER = """
import sys, time
from pathlib import Path
from skindx.workers.leases import Leases
from skindx.workers.lease_queue import LeaseQueue
where = sys.argv[1]
leases = Leases(LeaseQueue(where if "://" in where else Path(where), sys.argv[2]), 4.0)
name = leases.enter({})
while leases.has_work():
    taken = leases.take(name, lambda tasks: tasks[0])
    if taken is None:
        time.sleep(0.02)
        if not leases.beat(name):
            name = leases.enter({})
        continue
    time.sleep(0.02)
    leases.finish(name, taken.key, name)
"""


def test_processes_that_are_killed_lose_their_unit_alone(queue: LeaseQueue) -> None:
    """Workers are processes without torch; two of them are killed with kill -9."""
    put(queue, units(3, 2, 1), places=2)
    rng = random.Random(7)

    def start() -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-c", _WORKER, str(queue.where), queue.name]
        return subprocess.Popen(command)

    running, leases, deadline = [start(), start()], Leases(queue, 4.0), time.monotonic() + 100
    try:
        for share in (0.2, 0.5):
            while sum(task.state == DONE for task in leases.tasks()) < share * 12:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            victim = running.pop(rng.randrange(len(running)))
            os.kill(victim.pid, signal.SIGKILL)
            victim.wait()
            running.append(start())
        for process in running:
            assert process.wait(max(1, deadline - time.monotonic())) == 0
    finally:
        for process in running:
            process.kill()
            process.wait()
    tasks = leases.tasks()
    assert all(task.state == DONE for task in tasks)
    assert sorted(task.ended or 0 for task in tasks)[-1] <= 12
    assert TAKEN not in {task.state for task in tasks}
