"""The queue of a run: filled once with what is left to train, and removed when all is done.

What went wrong is named, what was done is kept as RUN/hops.csv.
"""

import csv
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sqlalchemy import select, update
from torch import nn

from skindx.core import measurement
from skindx.core.atomic_files import write_csv
from skindx.core.errors import JobError, UserError
from skindx.core.machine import free_memory
from skindx.core.text import MADE_FROM
from skindx.data.manifest import Record, read_manifest
from skindx.taxonomy import Taxonomy
from skindx.training.checkpoint.fingerprints import Fingerprint, fingerprint, fingerprint_of
from skindx.training.checkpoint.keeper import CHECKPOINTS
from skindx.training.config.recipe import Recipe
from skindx.training.config.run import MemberSettings, TrainSettings
from skindx.training.jobs import Job, jobs_of
from skindx.training.parallel.mesh import resolve_accelerator
from skindx.training.tasks.classifier_job import MemberJob
from skindx.training.tasks.detector_job import DetectorJob
from skindx.workers.lease_queue import (
    ASIDE,
    DONE,
    FAILED,
    MOST_LOSSES,
    QUEUES,
    LeaseQueue,
    LeaseTask,
    TaskState,
    database_errors,
    now,
)
from skindx.workers.leases import Leases
from skindx_methods.hopping.hop_units import (
    DATABASE,
    HOPS,
    NAME,
    Unit,
    hop_tasks,
    whole_task,
)
from skindx_methods.hopping.partition_images import (
    Partitions,
    check_partitions,
    partitions_of,
)


@dataclass(frozen=True)
class RunJobs:
    """A run's jobs, with what they were made of."""

    run: Path
    dataset: Path
    settings: TrainSettings
    records: Sequence[Record]
    by_key: dict[str, Job]

    @classmethod
    def of(cls, run: Path, dataset: Path, settings: TrainSettings) -> "RunJobs":
        """Read the dataset of a run. Raises UserError for one that is none."""
        records = read_manifest(dataset)
        classes = Taxonomy.load(dataset / "taxonomy.yaml").keys
        jobs = jobs_of(run, dataset, settings, records, classes)
        return cls(run, dataset, settings, records, {job.key: job for job in jobs})

    def missing(self) -> list[Job]:
        """Return those that are not finished. Raises UserError for one trained otherwise."""
        return [job for job in self.by_key.values() if not job.is_finished()]


def fill(queue: LeaseQueue, jobs: RunJobs, workers: int) -> dict[str, Any]:
    """Put the units of what is missing into the queue, once; return its facts.

    Raises UserError for a queue of other settings, data or versions, and for partitions that are
    too small.
    """
    known, settings, missing = queue.facts(), jobs.settings, jobs.missing()
    hops = settings.engine.schedule_kind.partitioned
    count = known["partitions"] if known else partitions_of(settings, workers)
    if hops:
        check_partitions(jobs.records, settings, count)
    tasks = _hops(missing, jobs.records, settings, count) if hops else _wholes(missing, settings)
    versions = measurement.versions(("torch",))
    made = _fingerprint(settings, jobs.dataset)
    return queue.put(
        [] if known else tasks,
        fingerprint=str(made),
        version=f"{versions['skindx']} with torch {versions['torch']}",
        facts={"partitions": count if hops else 0, "began": time.time(), MADE_FROM: _parts(made)},
        places=count if hops else 0,
    )


def _hops(
    jobs: Sequence[Job], records: Sequence[Record], settings: TrainSettings, count: int
) -> list[LeaseTask]:
    partitions = Partitions.of(records, settings, count)
    tasks: list[LeaseTask] = []
    for job in jobs:
        assert isinstance(job, MemberJob)
        train_P, val_P = (
            np.bincount(partitions.owner_N(part), minlength=count).tolist()
            for part in (job.data.train, job.data.val)
        )
        epochs = settings.recipe_of(job.member).epochs
        tasks += hop_tasks(job.member, epochs, train_P, val_P)
    return tasks


def _wholes(jobs: Sequence[Job], settings: TrainSettings) -> list[LeaseTask]:
    """Return a task for each job, the longest first by images and their size."""
    weights = {}
    for job in jobs:
        if isinstance(job, MemberJob):
            side, epochs = job.member.preprocess.size, settings.recipe_of(job.member).epochs
            weights[job.key] = float(len(job.data.train) * epochs * side**2)
        else:
            detector = settings.detector
            assert detector is not None
            assert isinstance(job, DetectorJob)
            weights[job.key] = float(len(job.records) * detector.epochs * detector.size**2)
    return [whole_task(key, weight) for key, weight in weights.items()]


def _parts(made: Fingerprint) -> dict[str, Any]:
    """Return what a run's fingerprint was made of, its members' in their parts."""
    members = {name: member.parts for name, member in made.parts["members"].items()}
    return {**made.parts, "members": members}


def _fingerprint(settings: TrainSettings, dataset: Path) -> Fingerprint:
    members = {m.name: fingerprint(settings, m, dataset) for m in settings.members}
    return fingerprint_of({"schedule": settings.engine.schedule, "members": members})


_LEAVING_S = 10.0
"""Other workers notice within a second that no work is left."""

_COLUMNS: tuple[str, ...] = ("member", "epoch", "visit", "kind", "partition", "worker", "seconds")
_COLUMNS += ("host", "began", "died")
"""`began` is UTC by the clock of the leases' database; `died`: how many workers the visit cost."""


def raise_problems(tasks: Sequence[TaskState]) -> None:
    """Raise UserError for units that were refused, JobError for those that ended their workers."""
    refused = [task for task in tasks if task.state == FAILED]
    if refused:
        further = sorted({Unit.of(task.key).member for task in refused[1:]})
        also = f" Refused as well: {', '.join(further)}." if further else ""
        raise UserError(f"{Unit.of(refused[0].key).words}: {refused[0].answer}{also}")
    if aside := [task for task in tasks if task.state == ASIDE]:
        names = "; ".join(Unit.of(task.key).words for task in aside)
        raise JobError(
            f"{names}: {MOST_LOSSES} workers were killed during this work, most often because "
            "memory ran out; the other members are trained. Free some memory and run the same "
            "command again to retry"
        )


def write_hops(run: Path, tasks: Sequence[TaskState]) -> None:
    """Write the order of all visits; members of an earlier start keep their rows."""
    done = [task for task in tasks if task.state == DONE]
    done = [task for task in done if Unit.of(task.key).kind != "whole"]
    members = {Unit.of(task.key).member for task in done}
    if not members:
        return
    file, rows = run / HOPS, []
    if file.is_file():
        with file.open(newline="", encoding="utf-8") as opened:
            rows = [row for row in list(csv.reader(opened))[1:] if row and row[0] not in members]
        rows = [[*row, *[""] * (len(_COLUMNS) - len(row))] for row in rows]  # of older versions
    count: dict[tuple[str, int, str], int] = {}
    for task in sorted(done, key=lambda task: task.ended or 0):
        unit = Unit.of(task.key)
        of = (unit.member, unit.epoch, unit.kind)
        count[of] = count.get(of, 0) + 1
        visit = [unit.member, unit.epoch + 1, count[of], unit.kind, unit.partition + 1]
        began = datetime.fromtimestamp(task.began or 0, UTC).isoformat(timespec="seconds")
        how = [task.worker or "", f"{task.took_s or 0:.3f}", task.answer.get("host", ""), began]
        rows.append([*map(str, visit), *how, str(task.losses)])
    write_csv(file, _COLUMNS, rows)


def conclude(run: Path, leases: Leases) -> None:
    """End a run whose work is over: keep the order of visits, and remove the queue.

    Raises what `raise_problems` raises; the queue then stays for the next start.
    """
    tasks = leases.tasks()
    raise_problems(tasks)
    deadline = time.monotonic() + _LEAVING_S
    while leases.workers() and time.monotonic() < deadline:
        time.sleep(0.1)  # they still look whether there is work
    write_hops(run, tasks)
    leases.queue.remove()
    for name in (DATABASE, NAME):
        (run / CHECKPOINTS / name).unlink(missing_ok=True)


def state_bytes(network: nn.Module, recipe: Recipe) -> int:
    """Return what a member takes of memory in training: weights, gradients, moments, average.

    Activations come on top; they depend on the batch.
    """
    size = sum(weight.numel() * weight.element_size() for weight in network.parameters())
    return size * (2 + recipe.optimizer_kind.moments + (recipe.ema is not None))


def check_memory(
    settings: TrainSettings, member: MemberSettings, network: nn.Module, workers: int
) -> None:
    """Raise UserError for a member that is larger than the memory of one of this machine's workers.

    `network` may be on the meta device.
    """
    needed = state_bytes(network, settings.recipe_of(member))
    if resolve_accelerator(settings.engine.accelerator) == "cuda":
        there = torch.cuda.mem_get_info()[0]
    else:
        there = free_memory() // workers
    if needed > there:
        raise UserError(
            f"member {member.name}: {member.model} needs {needed / 1000000000.0:.1f} GB for "
            f"training, but each of {workers} workers has only {there / 1000000000.0:.1f} GB; "
            "lower engine.ranks, or choose a smaller model."
        )


def schedule(
    queue: LeaseQueue, note: str, lease_s: float, token: str = "", *, ended: str = ""
) -> str:
    """Become a queue's one scheduler, or stay it with the `token` of before.

    One whose note is `ended` is known to be dead. Raises UserError while another is at work.
    """
    token, fresh = token or secrets.token_hex(8), now(queue.engine)
    mine = (QUEUES.c.scheduler == token) | QUEUES.c.scheduler.is_(None)
    if ended:
        mine |= QUEUES.c.scheduler_note == ended
    with database_errors(queue.where), queue.engine.begin() as connection:
        taken = connection.execute(
            update(QUEUES)
            .where(QUEUES.c.queue == queue.name, mine | (QUEUES.c.scheduler_until < fresh))
            .values(scheduler=token, scheduler_note=note, scheduler_until=fresh + lease_s)
        ).rowcount
        other = connection.execute(
            select(QUEUES.c.scheduler_note).where(QUEUES.c.queue == queue.name)
        ).scalar()
    if not taken:
        raise UserError(
            f"another training is already running on this run ({other}); wait until it ends, or "
            "stop it."
        )
    return token


def unschedule(queue: LeaseQueue, token: str) -> None:
    """Let another one schedule."""
    with database_errors(queue.where), queue.engine.begin() as connection:
        connection.execute(
            update(QUEUES)
            .where(QUEUES.c.queue == queue.name, QUEUES.c.scheduler == token)
            .values(scheduler=None, scheduler_note=None, scheduler_until=None)
        )
