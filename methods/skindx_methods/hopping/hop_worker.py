"""A worker takes units by leases until none is left, whatever becomes of the others.

One training at a time schedules a run: it starts the workers of this machine or of a hostfile's
hosts, or is one of those that another launcher started.
"""

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from skindx.core.errors import JobError, UserError
from skindx.core.machine import require_extra
from skindx.data.loader.batches import partition
from skindx.data.manifest import Record
from skindx.models.classifier.classifier import build_classifier
from skindx.models.classifier.network_setup import shapes_only
from skindx.training.checks import check_smallest_step
from skindx.training.config.engine import CHECKPOINTS, EngineSettings
from skindx.training.config.run import SETTINGS, TrainSettings
from skindx.training.deepspeed.ranks import join_nobody, launch
from skindx.training.jobs import Job, hold, run_to_its_end, train_job
from skindx.training.launching.rank import AS_WORKER
from skindx.training.launching.supervise import (
    RANKS,
    WORKER,
    StoppedError,
    StopRequest,
    end_with_parent,
)
from skindx.training.method import RunMethod, nobody_at_work
from skindx.training.parallel.mesh import (
    Mesh,
    leave,
    resolve_accelerator,
    resolve_ranks,
    workers_of,
)
from skindx.training.tasks.classifier_job import MemberJob
from skindx.workers.lease_queue import ASIDE, FAILED, LeaseQueue, OpenTask, TaskState
from skindx.workers.leases import Heartbeat, Leases
from skindx_methods.hopping.hop_units import DATABASE, NAME, Unit, choose, open_queue
from skindx_methods.hopping.local_workers import Watcher
from skindx_methods.hopping.member_visits import (
    Answer,
    LeasedStop,
    States,
    UnitStoppedError,
    Visitor,
)
from skindx_methods.hopping.partition_images import (
    PartitionImages,
    Partitions,
    check_partitions,
    partitions_of,
)
from skindx_methods.hopping.run_queue import (
    RunJobs,
    check_memory,
    conclude,
    fill,
    schedule,
    unschedule,
)

PAPER = (
    "Model hopping | Kumar et al., Cerebro: A Layered Data Platform for Scalable Deep Learning,"
    " CIDR 2021 | methods/tests/test_hopping.py | docs/measured/hop.json"
)


_POLL_S = (0.05, 1.0)
"""First and longest pause of a worker that finds nothing to do."""

MakeStates = Callable[[Path], States]


class HopWorker:
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
            if self._stop.requested:
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

    def _choose(self, open_tasks: Sequence[OpenTask]) -> OpenTask:
        return open_tasks[choose([candidate.left for candidate in open_tasks], self._rng)]

    def _do(self, name: str, taken: OpenTask) -> None:
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
        answer |= {"host": socket.gethostname()}
        if self.leases.finish(name, taken.key, answer) and unit.kind != "whole":
            self._clear(unit.member)

    def _answer(self, job: Job, unit: Unit, name: str) -> Answer:
        if unit.kind == "whole":
            train_job(job, self._settings, self._mesh, LeasedStop(self._stop, self._is_lost))
            return {}
        assert self._visitor is not None
        assert isinstance(job, MemberJob)
        self._keep_held_partitions(self._visitor.images, unit.partition, name)
        done = self.leases.tasks(unit.member)
        state = f"{unit.epoch + 1:04d}-{unit.kind}-{unit.partition}-{name}"
        visit = self._visitor.train if unit.kind == "train" else self._visitor.validate
        return visit(job, unit, done, state)

    def _keep_held_partitions(self, images: PartitionImages, partition: int, name: str) -> None:
        """Close the partitions that went to another worker, when one comes that is not open yet."""
        if not images.has(partition):
            held = [w.places for w in self.leases.workers() if w.worker == name]
            images.forget_all_but([partition, *(place for places in held for place in places)])

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
        return self._stop.requested or self._is_lost()

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


_BEATS = 4


class LeasedRun(RunMethod):
    """A run whose members are trained by workers that take their work by leases."""

    def __init__(self, settings: TrainSettings) -> None:
        super().__init__(settings)
        self.checks_steps = settings.engine.schedule_kind.partitioned

    def check_machine(self) -> None:
        """Raise UserError without the package of the leases."""
        require_extra("train", "sqlalchemy", purpose="engine.schedule")

    def check_run(
        self, records: Sequence[Record], classes: int, run: Path, *, workers: int, everywhere: int
    ) -> None:
        """Raise UserError for partitions that are too small, and members too large for a worker."""
        settings, partitions = self.settings, None
        begun = (run / CHECKPOINTS / DATABASE).exists()  # then their number is settled
        if settings.engine.schedule_kind.partitioned and not begun:
            count = partitions_of(settings, everywhere)
            check_partitions(records, settings, count)
            partitions = Partitions.of(records, settings, count)
        for member in settings.members:
            with shapes_only():
                classifier = build_classifier(member, classes)
            if partitions:
                train, _ = partition(records, member.fold, settings.folds)
                least = partial(partitions.least_of_visits, train)
                check_smallest_step(settings, member, classifier, train, least=least)
            check_memory(settings, member, classifier, workers)

    def launch(self, run: Path, dataset: Path) -> bool:
        """Train what is missing with workers."""
        launch_workers(run, dataset, self.settings)
        return True

    def train_as_rank(self, run: Path, dataset: Path, stop: StopRequest) -> bool | None:
        """Be one of the workers."""
        return train_as_worker(run, dataset, self.settings, stop)

    def join(self, run: Path, dataset: Path) -> None:
        """Be one more worker."""
        join_run(run, dataset, self.settings)


def launch_workers(run: Path, dataset: Path, settings: TrainSettings) -> None:
    """Train what is missing with workers of this machine, or of the hosts of a hostfile.

    Raises UserError for a second training in the same run and for what a worker refused, JobError
    for units that ended their workers, and what `supervise` raises.
    """
    workers = workers_of(settings.engine)
    engine = settings.engine.model_copy(update={"ranks": workers})
    with ExitStack() as held:
        hold(run, 0.0, held)
        queue = held.enter_context(open_queue(run, settings.engine))
        fill(queue, RunJobs.of(run, dataset, settings), _all_workers(engine))
        leases = Leases(queue, engine.lease_s)
        leases.reopen((ASIDE, FAILED))
        held.enter_context(scheduling(queue, engine.lease_s))
        if engine.hostfile:
            held.enter_context(Watcher(leases))
        try:
            launch(
                engine,
                resolve_accelerator(engine.accelerator),
                "skindx.training.launching.rank",
                [f"{AS_WORKER}{__name__}", str(run.resolve()), str(dataset.resolve())],
                notes=run / RANKS,
                grace_s=settings.checkpoint.grace_s,
                manager="skindx_methods.hopping.local_workers",
            )
        except (StoppedError, JobError) as error:
            # A worker that died or had to leave costs nothing where others did its work.
            by_user = isinstance(error, StoppedError) and " to rank " not in error.why
            if by_user or leases.has_work():
                raise
        if not leases.has_work():
            conclude(run, leases)


def _all_workers(engine: EngineSettings) -> int:
    """Return how many workers there will be on all machines."""
    if engine.hostfile is None:
        return resolve_ranks(engine)
    lines = engine.hostfile.read_text(encoding="utf-8").splitlines()
    slots = (line.partition("slots=")[2] for line in lines if not line.lstrip().startswith("#"))
    return max(1, sum(int(text) for text in slots if text.strip().isdigit()))


def train_as_worker(run: Path, dataset: Path, settings: TrainSettings, stop: StopRequest) -> bool:
    """Be one of the workers that another launcher started; return whether this one packs.

    The first one waits until all members are finished, and says how far they are. Raises
    StoppedError when asked to stop.
    """
    end_with_parent()
    rank, workers = (int(os.environ.get(key, "0")) for key in ("RANK", "WORLD_SIZE"))
    os.environ[WORKER] = str(rank)
    mesh = join_nobody(settings.engine)
    with ExitStack() as held:
        if rank == 0:
            hold(run, settings.checkpoint.grace_s, held)
            settings.save(run / SETTINGS)
        worker = HopWorker(run, dataset, settings, mesh, stop, rank=rank, workers=max(1, workers))
        leases = worker.leases
        if rank == 0:
            leases.reopen((ASIDE, FAILED))
            held.enter_context(scheduling(leases.queue, leases.lease_s))
            held.enter_context(Watcher(leases))
        try:
            worker.work()
        except StoppedError as stopped:
            raise StoppedError(str(stopped) if rank == 0 else "", stop.why) from None
        finally:
            leave()
        if rank == 0:
            conclude(run, leases)
    return rank == 0


def join_run(run: Path, dataset: Path, settings: TrainSettings) -> None:
    """Be one more worker of a run that another process schedules, until it has no more work.

    Raises UserError where no such training is at work, and for another dataset or version;
    StoppedError when asked to stop.
    """
    if not (run / CHECKPOINTS / NAME).exists():
        raise nobody_at_work(run)
    with open_queue(run, settings.engine) as queue:
        if queue.facts() is None:
            raise nobody_at_work(run)
    mesh = join_nobody(settings.engine)
    with StopRequest(settings.checkpoint.grace_s) as stop:
        try:
            HopWorker(run, dataset, settings, mesh, stop, rank=os.getpid(), workers=1).work()
        except StoppedError as stopped:
            raise StoppedError(str(stopped), stop.why) from None
        finally:
            leave()


def main(arguments: list[str]) -> int:
    """Be a worker that another process started: RUN DATASET; return the exit code."""
    end_with_parent()
    run, dataset = (Path(argument) for argument in arguments)
    rank, workers = int(os.environ[WORKER]), int(os.environ.get("WORLD_SIZE", "1"))
    settings = TrainSettings.load(run / SETTINGS)

    def work(stop: StopRequest) -> None:
        mesh = join_nobody(settings.engine)
        HopWorker(run, dataset, settings, mesh, stop, rank=rank, workers=workers).work()

    return run_to_its_end(run, settings.checkpoint.grace_s, f"worker {rank}", work)


@contextmanager
def scheduling(queue: LeaseQueue, lease_s: float) -> Iterator[None]:
    """Be the one training that schedules a run. Raises UserError while another one is."""
    note = socket.gethostname()
    # Who holds the run's folder on this host is the only one here: what is noted of it has ended.
    token = schedule(queue, note, lease_s, ended=note)
    over = threading.Event()

    def beat() -> None:
        while not over.wait(lease_s / _BEATS):
            try:
                schedule(queue, note, lease_s, token)
            except UserError:
                continue

    thread = threading.Thread(target=beat, name="skindx-schedule", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        unschedule(queue, token)
