"""A leased task: its place, its group, its state."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

MOST_LOSSES = 3
"""A task whose worker died so often is set aside."""


@dataclass(frozen=True)
class Task:
    """One piece of work as it is put into a queue."""

    key: str
    """Its name, one of its kind in the queue."""
    alone: str | None = None
    """Tasks of one name never run at the same time; none: this one runs beside any."""
    place: int | None = None
    """Only the worker that holds this place may take it; none: any worker."""
    stage: int = 0
    """It waits until all tasks of its group with a lower stage are done."""
    weight: float = 1.0
    """How much work it is, in any unit that all tasks of the queue share."""


@dataclass(frozen=True)
class Candidate:
    """A task that a worker may take now."""

    key: str
    alone: str | None
    place: int | None
    stage: int
    left: float
    """Work left in its group, in seconds where some of it was measured."""


Choose = Callable[[Sequence[Candidate]], Candidate]
"""Picks one of at least one candidate."""


@dataclass(frozen=True)
class TaskState:
    """A task as the database has it."""

    key: str
    alone: str | None
    place: int | None
    stage: int
    weight: float
    state: str
    worker: str | None
    losses: int
    began: float | None
    """When it was last taken, in seconds since 1970 by the database's clock."""
    took_s: float | None
    """How long its answer took, from the taking on."""
    answer: Any
    ended: int | None
    """Its place in the order in which tasks ended; exact within a group."""


@dataclass(frozen=True)
class WorkerState:
    """A worker that is alive, as far as the database knows."""

    worker: str
    note: dict[str, Any]
    places: tuple[int, ...]
