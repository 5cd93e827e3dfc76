"""A worker: it takes units by leases until none is left, whatever becomes of the others."""

import os
import random
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from skindx.core.cost.assignment import choose
from skindx.core.errors import UserError
from skindx.training.config.run import TrainSettings
from skindx.training.hopping.dropping import LeasedStop
from skindx.training.hopping.images import PartitionImages
from skindx.training.hopping.opening import open_queue
from skindx.training.hopping.partitions import Partitions
from skindx.training.hopping.setting_up import RunJobs, fill
from skindx.training.hopping.states import States
from skindx.training.hopping.units import Unit
from skindx.training.hopping.visits import Answer, UnitStoppedError, Visitor
from skindx.training.job import Job
from skindx.training.launching.stopping import StoppedError, StopRequest
from skindx.training.parallel.mesh import Mesh
from skindx.training.tasks.classifier.job import MemberJob
from skindx.training.worker import train_job
from skindx.workers.leases.heartbeat import Heartbeat
from skindx.workers.leases.leases import Leases
from skindx.workers.leases.task import Candidate, TaskState

_POLL_S = (0.05, 1.0)
"""First and longest pause of a worker that finds nothing to do."""

MakeStates = Callable[[Path], States]


class Worker:
    """Does the units of a run on one machine."""

    def __init__(
        self,
        run: Path,
        dataset: Path,
        settings: TrainSettings,
        mesh: Mesh,
        stop: StopRequest,
        *,
        rank: int,
        workers: int,
        make_states: MakeStates = States,
    ) -> None:
        """Open the run's queue as number `rank` of so many `workers`. Raises UserError."""
        self._settings, self._mesh, self._stop, self._rank = settings, mesh, stop, rank
        self._jobs = RunJobs.of(run, dataset, settings)
        missing = self._jobs.missing()
        self._queue = open_queue(run, settings.engine)
        facts = fill(self._queue, self._jobs, workers) if missing else {"partitions": 0}
        self.leases = Leases(self._queue, settings.engine.lease_s)
        self._states = make_states(run)
        self._rng = random.Random()  # noqa: S311 (ties of a schedule)
        self._heartbeat: Heartbeat | None = None
        self._visitor = self._make_visitor(facts["partitions"])

    def _make_visitor(self, count: int) -> Visitor | None:
        if not count:
            return None
        jobs, loader = self._jobs, self._settings.loader
        partitions = Partitions.of(jobs.records, self._settings, count)
        images = PartitionImages(jobs.dataset, jobs.records, partitions, loader, self._mesh)
        return Visitor(self._mesh, images, self._states, self._is_over, self._say)

    def work(self) -> None:
        """Do units until the run has none for anybody. Raises StoppedError when asked to stop."""
        with self._queue:
            while self.leases.has_work():
                self._live()

    def _live(self) -> None:
        """Work under one name, until there is nothing left or the others took it for dead."""
        note = {"host": socket.gethostname(), "pid": os.getpid(), "rank": self._rank}
        name = self.leases.enter(note, home=self._rank)
        with Heartbeat(self.leases, name) as heartbeat:
            self._heartbeat = heartbeat
            try:
                self._serve(name, heartbeat)
            except (StoppedError, KeyboardInterrupt):
                self.leases.leave(name)
                raise
            except BaseException:
                self.leases.lose(name)  # its unit may be what breaks workers
                raise
            self.leases.leave(name)
            if heartbeat.lost:
                self._say(
                    f"worker {self._rank} was silent for more than engine.lease_s = "
                    f"{self.leases.lease_s:g} s and lost its lease; another worker does its unit, "
                    "and it takes a new one"
                )

    def _serve(self, name: str, heartbeat: Heartbeat) -> None:
        pause = _POLL_S[0]
        while not heartbeat.lost:
            if self._stop.asked:
                self._stop.done()
                raise StoppedError("the last visits stand")
            if self.turn(name):
                pause = _POLL_S[0]
            elif not self.leases.has_work():
                return
            else:
                time.sleep(pause)
                pause = min(1.5 * pause, _POLL_S[1])

    def turn(self, name: str) -> bool:
        """Do one unit as the worker of this name; False: there is none for it now."""
        taken = self.leases.take(name, self._choose)
        if taken is not None:
            self._do(name, taken)
        return taken is not None

    def _choose(self, found: Sequence[Candidate]) -> Candidate:
        return found[choose([candidate.left for candidate in found], self._rng)]

    def _do(self, name: str, taken: Candidate) -> None:
        """Do one unit and answer it; what cannot be done is refused in a sentence."""
        unit = Unit.of(taken.key)
        job = self._jobs.by_key[unit.member]
        try:
            answer = self._answer(job, unit, name)
        except UnitStoppedError:
            return  # its lease goes with this worker's name
        except UserError as error:
            if self._is_over():
                return
            self.leases.fail(name, taken.key, str(error))
            return
        except Exception:
            if self._is_lost():
                return  # the unit's new owner removed what this worker still read
            raise
        if self.leases.finish(name, taken.key, answer) and unit.kind != "whole":
            self._clear(unit.member)

    def _answer(self, job: Job, unit: Unit, name: str) -> Answer:
        if unit.kind == "whole":
            train_job(job, self._settings, self._mesh, LeasedStop(self._stop, self._is_lost))
            return {}
        assert self._visitor is not None
        assert isinstance(job, MemberJob)
        self._keep_own_partitions(self._visitor.images, unit.partition, name)
        done = self.leases.tasks(unit.member)
        state = f"{unit.epoch + 1:04d}-{unit.kind}-{unit.partition}-{name}"
        visit = self._visitor.train if unit.kind == "train" else self._visitor.validate
        return visit(job, unit, done, state)

    def _keep_own_partitions(self, images: PartitionImages, partition: int, name: str) -> None:
        """Close the partitions that went to another worker, when one comes that is not open yet."""
        if not images.has(partition):
            own = [w.places for w in self.leases.workers() if w.worker == name]
            images.forget_all_but([partition, *(place for places in own for place in places)])

    def _clear(self, member: str) -> None:
        """Remove states that no later unit of the member needs, and what dead workers left.

        What is looked at first can only have become older since: nothing that another worker writes
        meanwhile is touched.
        """
        there = self._states.names(member)
        alive = {worker.worker for worker in self.leases.workers()}
        tasks = self.leases.tasks(member)
        done = {task.answer["state"]: task for task in tasks if task.ended is not None}
        if len(done) == len(tasks):
            self._states.remove(member)
            return
        needed = _needed(list(done.values()))
        self._states.forget(
            member,
            [
                name
                for name in there
                if name not in needed and (name in done or name.rpartition("-")[2] not in alive)
            ],
        )

    def _is_over(self) -> bool:
        return self._stop.asked or self._is_lost()

    def _is_lost(self) -> bool:
        return self._heartbeat is not None and self._heartbeat.lost

    def _say(self, line: str) -> None:
        print(line, flush=True)


def _needed(done: Sequence[TaskState]) -> set[str]:
    """Return the states of a member that are gone on from: its last one, and what validates it."""
    last = max(
        (task for task in done if Unit.of(task.key).kind == "train"),
        key=lambda task: task.ended or 0,
    )
    epoch = Unit.of(last.key).epoch
    parts = [task for task in done if Unit.of(task.key).kind == "validate"]
    return {
        last.answer["state"],
        *(task.answer["state"] for task in parts if Unit.of(task.key).epoch == epoch),
    }
