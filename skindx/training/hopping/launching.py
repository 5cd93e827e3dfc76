"""Start the workers of a run, or be one of them; one training at a time schedules a run."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from skindx.core.errors import UserError
from skindx.training.config.engine import EngineSettings
from skindx.training.config.run import SETTINGS, TrainSettings
from skindx.training.deepspeed.joining import join_nobody
from skindx.training.deepspeed.launch import launch
from skindx.training.hopping.conclusion import conclude
from skindx.training.hopping.opening import open_queue
from skindx.training.hopping.progress import Watcher
from skindx.training.hopping.setting_up import RunJobs, fill
from skindx.training.hopping.worker import Worker
from skindx.training.launching.notes import RANKS, WORKER
from skindx.training.launching.stopping import StoppedError, StopRequest, end_with_parent
from skindx.training.parallel.devices import resolve_accelerator, resolve_ranks, workers_of
from skindx.training.parallel.mesh import leave
from skindx.training.worker import hold
from skindx.workers.leases.leases import Leases
from skindx.workers.leases.queue import Queue
from skindx.workers.leases.tables import ASIDE, FAILED

_BEATS = 4


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
        launch(
            engine,
            resolve_accelerator(engine.accelerator),
            "skindx.training.hopping.rank",
            [str(run.resolve()), str(dataset.resolve())],
            notes=run / RANKS,
            grace_s=settings.checkpoint.grace_s,
            manager="skindx.training.hopping.local",
        )
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
        worker = Worker(run, dataset, settings, mesh, stop, rank=rank, workers=max(1, workers))
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


@contextmanager
def scheduling(queue: Queue, lease_s: float) -> Iterator[None]:
    """Be the one training that schedules a run. Raises UserError while another one is."""
    note = socket.gethostname()
    # Who holds the run's folder on this host is the only one here: what is noted of it has ended.
    token = queue.schedule(note, lease_s, ended=note)
    over = threading.Event()

    def beat() -> None:
        while not over.wait(lease_s / _BEATS):
            try:
                queue.schedule(note, lease_s, token)
            except UserError:
                continue

    thread = threading.Thread(target=beat, name="skindx-schedule", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        queue.unschedule(token)
