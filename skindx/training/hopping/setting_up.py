"""The first worker fills the queue of a run with what is left to train."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from skindx.core import measurement
from skindx.core.text import MADE_FROM
from skindx.data.manifest import Record, read_manifest
from skindx.taxonomy import Taxonomy
from skindx.training.config.run import TrainSettings
from skindx.training.finished.fingerprint import fingerprint
from skindx.training.hopping.partitions import Partitions, check_partitions, partitions_of
from skindx.training.hopping.units import hop_tasks, whole_task
from skindx.training.job import Job
from skindx.training.made_from import Fingerprint, fingerprint_of
from skindx.training.tasks.classifier.job import MemberJob
from skindx.training.tasks.detector.job import DetectorJob
from skindx.training.worker import jobs_of
from skindx.workers.leases.queue import Queue
from skindx.workers.leases.task import Task


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


def fill(queue: Queue, jobs: RunJobs, workers: int) -> dict[str, Any]:
    """Put the units of what is missing into the queue, once; return its facts.

    Raises UserError for a queue of other settings, data or versions, and for partitions that are
    too small.
    """
    known, settings, missing = queue.facts(), jobs.settings, jobs.missing()
    hops = settings.engine.schedule == "hop"
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
) -> list[Task]:
    partitions = Partitions.of(records, settings, count)
    tasks: list[Task] = []
    for job in jobs:
        assert isinstance(job, MemberJob)
        train_P, val_P = (
            np.bincount(partitions.owner_N(part), minlength=count).tolist()
            for part in (job.data.train, job.data.val)
        )
        epochs = settings.recipe_of(job.member).epochs
        tasks += hop_tasks(job.member, epochs, train_P, val_P)
    return tasks


def _wholes(jobs: Sequence[Job], settings: TrainSettings) -> list[Task]:
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
    members = {name: own.parts for name, own in made.parts["members"].items()}
    return {**made.parts, "members": members}


def _fingerprint(settings: TrainSettings, dataset: Path) -> Fingerprint:
    members = {m.name: fingerprint(settings, m, dataset) for m in settings.members}
    return fingerprint_of({"schedule": settings.engine.schedule, "members": members})
