"""One rank: trains every member of a run, and its detector, that is not finished yet.

`launching/rank.py` is where its process begins; RUN/train.yaml holds the settings.
"""

import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from skindx.core.atomic_files import only_writer
from skindx.core.errors import UserError
from skindx.core.machine import go_offline
from skindx.data.manifest import Record, read_manifest
from skindx.taxonomy import Taxonomy
from skindx.training import loop
from skindx.training.callbacks import CallbackList
from skindx.training.checkpoint.keeper import CHECKPOINTS, checkpoint_folder, saved_in
from skindx.training.checkpoint.rank_parts import CANNOT_WRITE
from skindx.training.checkpoint.resume import Resuming
from skindx.training.config.engine import CheckpointSettings
from skindx.training.config.run import SETTINGS, TrainSettings
from skindx.training.deepspeed.ranks import join
from skindx.training.launching.supervise import (
    RANKS,
    Stop,
    StoppedError,
    StopRequest,
    end_with_parent,
    write_note,
)
from skindx.training.parallel.mesh import Mesh, is_lost, leave
from skindx.training.registry import PLANNED, recorded, run_method
from skindx.training.state import Row, Training
from skindx.training.tasks.classifier_job import MemberJob
from skindx.training.tasks.detector_job import DetectorJob
from skindx.training.tasks.heads_job import HeadsJob, heads_jobs


def run_to_its_end(run: Path, grace_s: float, who: str, work: Callable[[StopRequest], None]) -> int:
    """Do the `work` of a rank or a worker of a run, named `who`; return the exit code.

    0: done, or stopped when asked to; 1: it failed, or lost another rank; 2: it refused.
    """
    note = partial(write_note, run / RANKS)
    with StopRequest(grace_s, run / RANKS) as stop:
        note("at work")
        go_offline()
        try:
            work(stop)
            leave()
        except StoppedError as stopped:
            note("stopped", str(stopped), stopped.why or stop.why)
            leave()
            if stopped.rank_code:
                print(str(stopped), file=sys.stderr)
            return stopped.rank_code
        except UserError as error:
            note("refused")
            print(f"error: {error}", file=sys.stderr)
            return 2
        except Exception as error:
            if is_lost(error):
                # The rank that is gone is what matters, not how each of the others noticed.
                note("left")
                print(f"{who} lost another rank and ends", file=sys.stderr)
                return 1
            note("failed")
            print(f"{who} failed:", file=sys.stderr)
            traceback.print_exc()
            return 1
        else:
            note("finished")
    return 0


class Job(Protocol):
    """What is trained, where it is saved, and when it is finished."""

    @property
    def label(self) -> str:
        """The job's name in messages."""

    @property
    def key(self) -> str:
        """The name of its folder among the run's checkpoints."""

    @property
    def run(self) -> Path:
        """The run's folder."""

    @property
    def fingerprint(self) -> str:
        """Hash of everything that decides the result."""

    def is_finished(self) -> bool:
        """True when the result is in the run. Raises UserError when it was trained otherwise."""

    def callbacks(self, *, shown: bool) -> CallbackList:
        """Return what shows and records the training; only the main rank's is `shown`."""

    def setup(self, mesh: Mesh, say: Callable[[str], None]) -> Training[Any]:
        """Return the training before its first step; every rank calls this."""

    def save(self, result: Any, history: list[Row]) -> None:
        """Write the result into the run, whole or not at all."""


def train(
    run: Path,
    dataset: Path,
    settings: TrainSettings,
    mesh: Mesh,
    stop: Stop,
    *,
    only: Sequence[str] = (),
    saves: "Saves" = Resuming,
    holds: "Holds | None" = None,
) -> None:
    """Train what is missing, from the last checkpoint on; `only` the jobs of these keys, if given.

    `saves` makes what a job is saved by, and where it goes on; `holds` keeps other trainings from
    the run's checkpoints. Raises StoppedError when asked to stop.
    """
    holds = holds or hold
    records, classes = read_manifest(dataset), Taxonomy.load(dataset / "taxonomy.yaml").keys
    with ExitStack() as held:
        mesh.broadcast_from_main(lambda: holds(run, settings.checkpoint.grace_s, held))
        jobs = jobs_of(run, dataset, settings, records, classes)
        heads = heads_jobs(run, dataset, settings, records, classes, mesh=mesh)
        for job in chain(jobs, heads):
            if not only or {job.key, *_names(job)} & set(only):
                train_job(job, settings, mesh, stop, saves)


def jobs_of(
    run: Path,
    dataset: Path,
    settings: TrainSettings,
    records: Sequence[Record],
    classes: tuple[str, ...],
) -> Iterator[Job]:
    """Yield the members but those of a frozen trunk, then the detector, if the run trains one."""
    for member in settings.members:
        if member.trunk != "frozen":
            yield MemberJob(run, dataset, settings, member, records, classes)
    if settings.detector and not settings.detector.from_run:
        yield DetectorJob(run, dataset, settings, records)


def _names(job: Job) -> list[str]:
    """Return the members that heads trained together stand for."""
    return [member.name for member in job.members] if isinstance(job, HeadsJob) else []


Saves = Callable[[Path, str, CheckpointSettings, Stop], loop.Saving]
"""Takes the folder of a training's checkpoints, its fingerprint, settings, the request to stop."""

Holds = Callable[[Path, float, ExitStack], None]
"""Takes a run, how long to wait for another training's end, and what to let go of at the end."""


def train_job(
    job: Job, settings: TrainSettings, mesh: Mesh, stop: Stop, saves: Saves = Resuming
) -> None:
    """Train one job unless it is finished; every rank calls this. Raises StoppedError."""
    # One rank looks: on another node the result may show up later.
    if mesh.broadcast_from_main(job.is_finished):
        return
    if any(mesh.gather(stop.requested)):
        raise StoppedError(f"{job.label} was not begun")
    checkpoints = checkpoint_folder(job.run, job.key)
    saving = saves(checkpoints, job.fingerprint, settings.checkpoint, stop)
    with job.callbacks(shown=mesh.is_main) as callbacks:
        solved = job.solve(mesh, callbacks.line) if isinstance(job, HeadsJob) else None
        result, history = solved or loop.train(_setup(job, mesh, callbacks.line), callbacks, saving)
    mesh.broadcast_from_main(partial(_save, job, result, history))


def _setup(job: Job, mesh: Mesh, say: Callable[[str], None]) -> Training[Any]:
    """Return a training; where it follows a plan, its main rank records a step."""
    training = job.setup(mesh, say)
    follows = mesh.is_main and (job.run / PLANNED).is_file()
    return recorded(training, job.run, job.key) if follows else training


def hold(run: Path, wait_s: float, held: ExitStack) -> None:
    """Let no second training write into the same checkpoints; ranks of a killed one may linger."""
    folder = run / CHECKPOINTS
    folder.mkdir(parents=True, exist_ok=True)
    held.enter_context(only_writer(folder, "training", wait_s))


def _save(job: Job, result: Any, history: list[Row]) -> None:
    """Write the result; only then are its checkpoints removed."""
    checkpoints = checkpoint_folder(job.run, job.key)
    try:
        job.save(result, history)
    except CANNOT_WRITE as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{job.label} is trained, but {job.run} cannot be written ({reason}); free some space "
            f"on the disk and run the same command again: {_then(checkpoints)}."
        ) from None
    shutil.rmtree(checkpoints, ignore_errors=True)


def _then(checkpoints: Path) -> str:
    """Say what the same command does after a result could not be written."""
    if saved_in(checkpoints):
        return "it goes on from the last checkpoint"
    return "no checkpoint could be written either, so it is trained again"


def main(arguments: list[str]) -> int:
    """Run one rank: RUN DATASET [KEY…]; return the exit code."""
    end_with_parent()
    run, dataset = (Path(argument) for argument in arguments[:2])
    settings = TrainSettings.load(run / SETTINGS)

    def work(stop: StopRequest) -> None:
        only = arguments[2:]
        if not run_method(settings).train_as_launched(run, dataset, stop, only):
            train(run, dataset, settings, join(settings.engine), stop, only=only)

    rank = os.environ.get("RANK", "0")
    return run_to_its_end(run, settings.checkpoint.grace_s, f"rank {rank}", work)
