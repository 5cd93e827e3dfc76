"""Runners of a build's tasks: on this machine, or on an existing Ray cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from skindx.core.machine import cpu_count
from skindx.data.runner.task_runner import LocalRunner, Task, TaskRunner

__all__ = ["LocalRunner", "Task", "TaskRunner", "open_runner"]


@contextmanager
def open_runner(cluster: str | None, dataset: Path, workers: int = 0) -> Iterator[TaskRunner]:
    """Yield the runner for one build: this machine, or the Ray cluster at address `cluster`.

    Raises UserError for a cluster that cannot be used.
    """
    if cluster is None:
        yield LocalRunner(workers)
        return
    from skindx.data.runner.cluster import connected

    with connected(cluster, dataset, workers or cpu_count()) as runner:
        yield runner
