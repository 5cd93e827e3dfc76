"""Interface of task runners, and the runner that uses this process alone.

A task is a function of the skindx package and plain arguments. It answers through files in the
dataset folder, written atomically, so a task that is run twice does no harm and a finished one is
never run again.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from skindx.core.machine import cpu_count

Task = tuple[Any, ...]
"""The arguments of one task; they travel to another process."""


class TaskRunner(Protocol):
    """Runs tasks; the dataset does not depend on which runner it was."""

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


class LocalRunner:
    """This process, one task after another; a task uses the machine's cores itself."""

    fetch_parts = 1

    def __init__(self, workers: int = 0) -> None:
        """`workers` = 0 takes all cores that this process may use."""
        self.screen_workers = self.driver_workers = workers or cpu_count()

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
