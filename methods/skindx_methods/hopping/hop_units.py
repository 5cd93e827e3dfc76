"""Schedules in which each rank trains a member alone, their units of work, and the leases of these.

`members`: a rank trains a whole member. `hop`: a member visits one partition of the training images
after the other, which stay where they are. Nothing here loads torch.
"""

import os
import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from skindx.training.config.engine import CHECKPOINTS, EngineSettings
from skindx.training.config.method_settings import MemberSchedule
from skindx.workers.lease_queue import LeaseQueue, LeaseTask, TaskState

if TYPE_CHECKING:
    from skindx.training.config.engine import EngineSettings
    from skindx.training.config.run import MemberSettings, TrainSettings


Kind = Literal["train", "validate", "whole"]

_KINDS: dict[str, Kind] = {"train": "train", "validate": "validate", "whole": "whole"}

_VALIDATION_WEIGHT = 0.3
"""Cost of a validation image relative to a training one, without backward, until it is measured."""


@dataclass(frozen=True)
class Unit:
    """The work that one lease covers."""

    member: str
    epoch: int
    """Epoch, counted from 0."""
    kind: Kind
    partition: int

    @property
    def key(self) -> str:
        """Name of the unit in the queue."""
        return f"{self.member}/{self.epoch:04d}/{self.kind}/{self.partition}"

    @classmethod
    def of(cls, key: str) -> "Unit":
        """Undo `key`."""
        member, epoch, kind, partition = key.rsplit("/", 3)
        return cls(member, int(epoch), _KINDS[kind], int(partition))

    @property
    def words(self) -> str:
        """Name of the unit in messages."""
        if self.kind == "whole":
            return "the detector" if self.member.startswith("_") else f"member {self.member}"
        does = "" if self.kind == "train" else "validation of "
        where = f"epoch {self.epoch + 1}, partition {self.partition + 1}"
        return f"{does}member {self.member}, {where}"


def hop_tasks(
    member: "MemberSettings", epochs: int, train_P: Sequence[int], val_P: Sequence[int]
) -> list[LeaseTask]:
    """Return all units of a member: of each epoch all visits, then all validations.

    `train_P` and `val_P` are how many of its images lie in each partition.
    """
    tasks = []
    for epoch in range(epochs):
        kinds: tuple[tuple[Kind, Sequence[int], float], ...] = (
            ("train", train_P, 1.0),
            ("validate", val_P, _VALIDATION_WEIGHT),
        )
        for late, (kind, counts_P, weight) in enumerate(kinds):
            for partition, count in enumerate(counts_P):
                tasks.append(
                    LeaseTask(
                        Unit(member.name, epoch, kind, partition).key,
                        alone=member.name,
                        place=partition,
                        stage=2 * epoch + late,
                        weight=max(1, count) * weight,
                    )
                )
    return tasks


def whole_task(name: str, weight: float) -> LeaseTask:
    """Return the one unit of a member that stays on a worker."""
    return LeaseTask(Unit(name, 0, "whole", 0).key, alone=name, weight=weight)


def done_of(tasks: Sequence[TaskState], epoch: int, kind: Kind) -> list[TaskState]:
    """Return a member's finished units of an epoch, in the order in which they ended."""
    result = [
        (task.ended, task)
        for task in tasks
        if task.ended is not None
        and (unit := Unit.of(task.key)).epoch == epoch
        and unit.kind == kind
    ]
    return [task for _, task in sorted(result, key=lambda pair: pair[0])]


DATABASE = "leases.sqlite"
"""File of the leases, among the run's checkpoints."""

NAME = "leases.name"
"""The queue's name in a database that several runs share; beside the leases."""

HOPS = "hops.csv"
"""File of a run with the order in which each member visited partitions, which sets its weights."""


def open_queue(run: Path, engine: EngineSettings) -> LeaseQueue:
    """Open a run's queue. Raises UserError for a database that cannot be used."""
    folder = run / CHECKPOINTS
    folder.mkdir(parents=True, exist_ok=True)
    where = engine.leases or folder / DATABASE
    return LeaseQueue(where, _name(folder / NAME))


def _name(file: Path) -> str:
    """Return what tells this run from other runs; the first worker of any machine writes it."""
    if not file.exists():
        draft = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
        draft.write_text(secrets.token_hex(16), encoding="ascii")
        try:
            os.link(draft, file)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return file.read_text(encoding="ascii")


class MembersSchedule(MemberSchedule):
    """A rank trains a whole member, and reads all images."""

    together = False
    run_method = "skindx_methods.hopping.hop_worker:LeasedRun"

    def check_engine(self, engine: "EngineSettings") -> None:
        """Refuse weights that are shared with other ranks."""
        if engine.zero:
            raise ValueError(
                f"engine.schedule={engine.schedule} trains each member on one rank, so ZeRO "
                "cannot split its weights; set engine.zero=0"
            )

    def check_run(self, settings: "TrainSettings") -> None:
        """Refuse an exchange of gradients, and members that are trained together."""
        schedule = settings.engine.schedule
        if not settings.exchange.by_engine:
            raise ValueError(
                f"engine.schedule={schedule} trains each member on one rank, which exchanges no "
                f"gradients; remove exchange.kind={settings.exchange.kind}"
            )
        if frozen := [member.name for member in settings.members if member.trunk == "frozen"]:
            raise ValueError(
                f"engine.schedule={schedule} cannot train heads on a frozen trunk "
                f"({', '.join(frozen)}); train these members in a separate run with "
                "engine.schedule=data"
            )


class HopSchedule(MembersSchedule):
    """Members move between pinned partitions with all their state."""

    partitioned = True

    def check_run(self, settings: "TrainSettings") -> None:
        """Refuse a detector too, which needs all images."""
        super().check_run(settings)
        if settings.detector and not settings.detector.from_run:
            raise ValueError(
                "engine.schedule=hop gives each worker only a part of the images, but a detector "
                "needs all; train the detector in a separate run and name that run in "
                "detector.from"
            )


SPREAD = 0.05
"""Members whose work left differs by less than this share are drawn at random."""


def choose(left: Sequence[float], rng: random.Random) -> int:
    """Return which of some waiting members to take, by the work that each has left."""
    noisy = [work * (1 + SPREAD * rng.random()) for work in left]
    return max(range(len(noisy)), key=noisy.__getitem__)
