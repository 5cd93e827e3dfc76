"""Hopping members and their reference: one process that visits partitions in a recorded order."""

import csv
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from skindx.data.manifest import read_manifest
from skindx.taxonomy import Taxonomy
from skindx.training import loop
from skindx.training.checkpoint.finished import FinishedMember
from skindx.training.config.run import TrainSettings
from skindx.training.deepspeed.ranks import join_nobody
from skindx.training.parallel.mesh import Mesh
from skindx.training.tasks.classifier_job import MemberJob, setup_member
from skindx.training.tasks.open_sets import open_sets
from skindx_methods.hopping.hop_units import HOPS
from skindx_methods.hopping.partition_images import Partitions, VisitedSet, Visits

Order = dict[int, tuple[int, ...]]
"""Epoch -> partitions in the order in which they were visited."""


class Recorded(Visits):
    """All visits of an epoch at once, in the order that a run recorded."""

    by_epoch: Order

    def plan(self, batch: int, seed: int, epoch: int) -> list[NDArray[np.int64]]:
        self.order = self.by_epoch[epoch]
        return super().plan(batch, seed, epoch)


def alone(settings: TrainSettings) -> Mesh:
    """Join nobody, in a process that computes on one thread."""
    torch.set_num_threads(1)
    os.environ.setdefault("LOCAL_RANK", "0")
    return join_nobody(settings.engine)


def recorded(run: Path, member: str) -> Order:
    """Return the order of a member's visits that RUN/hops.csv has."""
    with (run / HOPS).open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["member"] == member]
    order: dict[int, list[tuple[int, int]]] = {}
    for row in rows:
        if row["kind"] == "train":
            visits = order.setdefault(int(row["epoch"]) - 1, [])
            visits.append((int(row["visit"]), int(row["partition"]) - 1))
    return {epoch: tuple(part for _, part in sorted(visits)) for epoch, visits in order.items()}


def in_order(
    dataset: Path, settings: TrainSettings, name: str, order: Order, count: int, mesh: Mesh
) -> FinishedMember:
    """Train a member by the ordinary loop, from its first step to its last, in this order.

    Without partitions (`count` 0) in the order that one rank takes.
    """
    records, classes = read_manifest(dataset), Taxonomy.load(dataset / "taxonomy.yaml").keys
    (member,) = (member for member in settings.members if member.name == name)
    partitions = Partitions.of(records, settings, max(1, count))

    def open_images(data, member, loader, mesh, say):
        training, validation = open_sets(data, member, loader, mesh, say)
        if not count:
            return training, validation
        visits = Recorded(partitions.owner_N(data.train), count)
        visits.by_epoch = order
        return VisitedSet(**vars(training), visits=visits), validation

    job = MemberJob(Path("nowhere"), dataset, settings, member, records, classes)
    training = setup_member(
        settings, member, job.data, mesh, lambda line: None, open_images=open_images
    )
    result, _ = loop.train(training, _Nothing())
    return result


class _Nothing:
    def start(self, history: Sequence[object]) -> None: ...
    def step(self, step: int, loss: float) -> None: ...
    def epoch(self, history: Sequence[object], line: str) -> None: ...
    def line(self, text: str) -> None: ...
