"""Where the tasks of a build run: on this machine, or on a Ray cluster that exists already.

A task is a function of the skindx package and plain arguments. It answers through files in the
dataset folder, written atomically, so a task that is run twice does no harm and a finished one is
never run again.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

Task = tuple[Any, ...]
"""The arguments of one task; they travel to another process."""


class Engine(Protocol):
    """Runs tasks; the dataset does not depend on which engine did."""

    fetch_parts: int
    """Into how many crawls the hosts are divided; 1: a single crawl, without parts."""
    screen_workers: int
    """Processes that one screening task may use."""
    driver_workers: int
    """Processes that the driver may use for what is too little to be shared."""

    def run(
        self,
        function: Callable[..., None],
        tasks: Sequence[Task],
        on_done: Callable[[Task], None] | None = None,
    ) -> list[Task]:
        """Run `function(*task)` for each task; return those that end their worker every time.

        What `function` raises is raised here. `on_done(task)` is called in the order in which
        tasks end.
        """


class Embedded:
    """This process, one task after another; a task uses the machine's cores itself."""

    fetch_parts = 1

    def __init__(self, workers: int = 0) -> None:
        """`workers` = 0 takes all cores that this process may use."""
        self.screen_workers = self.driver_workers = workers or cores()

    def run(
        self,
        function: Callable[..., None],
        tasks: Sequence[Task],
        on_done: Callable[[Task], None] | None = None,
    ) -> list[Task]:
        """Run the tasks in their order; none can end this process and be returned."""
        for task in tasks:
            function(*task)
            if on_done:
                on_done(task)
        return []


@contextmanager
def open_engine(cluster: str | None, dataset: Path, workers: int = 0) -> Iterator[Engine]:
    """Yield the engine for one build: this machine, or the Ray cluster at address `cluster`.

    Raises UserError for a cluster that cannot be used.
    """
    if cluster is None:
        yield Embedded(workers)
        return
    from skindx.data.runner.cluster import connected

    with connected(cluster, dataset, workers or cores()) as engine:
        yield engine


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
