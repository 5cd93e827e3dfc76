"""How close the schedule comes to the open-shop bound: by its own record, and by simulation."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from skindx.core.cost.assignment import bound_s, makespan_s
from skindx.training.hopping.units import Unit
from skindx.workers.lease_queue import TaskState


@dataclass(frozen=True)
class Recorded:
    """The time that units of a run took."""

    makespan_s: float
    """From the first one that was taken to the end of the last."""
    bound_s: float
    train_MP: list[list[float]]
    """Mean seconds of a member's visit of a partition."""
    validation: float
    """Of the time of visits."""

    @property
    def over_bound(self) -> float:
        """How many times the bound it took."""
        return self.makespan_s / self.bound_s


def record(tasks: Sequence[TaskState]) -> Recorded:
    """Return what the finished units of a hopping run took."""
    units = [(Unit.of(t.key), t.began or 0.0, t.took_s or 0.0) for t in tasks]
    members = sorted({unit.member for unit, _, _ in units})
    count = 1 + max(unit.partition for unit, _, _ in units)
    epochs = 1 + max(unit.epoch for unit, _, _ in units)
    both_MP = [[0.0] * count for _ in members]
    train_MP = [[0.0] * count for _ in members]
    for unit, _, took in units:
        member = members.index(unit.member)
        both_MP[member][unit.partition] += took
        if unit.kind == "train":
            train_MP[member][unit.partition] += took / epochs
    train, both = (sum(map(sum, table)) for table in (train_MP, both_MP))
    first, last = min(began for _, began, _ in units), max(b + took for _, b, took in units)
    return Recorded(last - first, bound_s(both_MP), train_MP, both / epochs / train - 1)


def simulate(found: Recorded, members: int, epochs: int, times: int) -> list[float]:
    """Return makespan over bound of `times` schedules of so many members of the recorded times."""
    ratios = []
    for seed in range(times):
        rng = random.Random(seed)  # noqa: S311 (a simulation)
        times_MP = [rng.choice(found.train_MP) for _ in range(members)]
        took, bound = makespan_s(times_MP, epochs, rng, found.validation, jitter=0.1)
        ratios.append(took / bound)
    return ratios
