"""Progress of a build, as a callback and as bars on the terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, how many pictures are done, and how many there are (0: unknown)."""


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Yield a callback that draws one bar for each stage while the block runs."""
    from rich import progress as rich

    columns = (rich.TextColumn("{task.description:8}"), rich.BarColumn(), rich.MofNCompleteColumn())
    bars = rich.Progress(*columns, rich.TimeElapsedColumn())
    tasks: dict[str, rich.TaskID] = {}

    def report(stage: str, done: int, total: int) -> None:
        if stage not in tasks:
            tasks[stage] = bars.add_task(stage, total=None)
            bars.start()
        bars.update(tasks[stage], completed=done, total=total or None)

    try:
        yield report
    finally:
        if tasks:  # else an empty line would stand before a refusal
            bars.stop()


def silent(stage: str, done: int, total: int) -> None:
    """Report nothing."""
