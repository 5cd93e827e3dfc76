"""Progress of a job, as a callback: bars on a terminal, lines at intervals anywhere else."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, how many images are done, and how many there are (0: unknown)."""

INTERVAL_S = 15.0
"""Seconds between two progress lines of one stage."""


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Yield a callback that shows each stage while the block runs.

    On a terminal it draws one bar a stage; into a file or a pipe it writes plain lines: at the
    beginning of a stage, every INTERVAL_S seconds, and at its end.
    """
    from rich import progress as rich
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        stream = sys.stdout  # also if it is replaced while the block runs
        yield plain_lines(lambda line: print(line, file=stream, flush=True))
        return
    columns = (rich.TextColumn("{task.description:8}"), rich.BarColumn(), rich.MofNCompleteColumn())
    times = (rich.TimeElapsedColumn(), rich.TextColumn("left:"), rich.TimeRemainingColumn())
    bars = rich.Progress(*columns, *times, console=console)
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


def plain_lines(
    write: Callable[[str], None],
    interval_s: float = INTERVAL_S,
    clock: Callable[[], float] = time.monotonic,
) -> Progress:
    """Return a callback that writes a line at a stage's beginning and end, and in between.

    Those in between say how long the rest takes at the mean speed so far.
    """
    first: dict[str, tuple[float, int]] = {}
    last: dict[str, float] = {}
    ended: set[str] = set()

    def report(stage: str, done: int, total: int) -> None:
        now, over = clock(), 0 < total <= done
        if stage in last and not (over and stage not in ended) and now < last[stage] + interval_s:
            return
        if over and stage in ended:
            return
        last[stage] = now
        if over:
            ended.add(stage)
        began_s, began_at = first.setdefault(stage, (now, done))
        left = ""
        if began_at < done < total:
            left = _left((now - began_s) / (done - began_at) * (total - done))
        write(f"{stage}: {done:,} of {total:,}{left}" if total else f"{stage}: {done:,} so far")

    return report


def _left(seconds: float) -> str:
    if seconds < 60:
        return f", about {seconds:.0f} s left"
    minutes = round(seconds / 60)
    hours = f"{minutes // 60} h {minutes % 60}" if minutes >= 60 else f"{minutes}"
    return f", about {hours} min left"


def silent(stage: str, done: int, total: int) -> None:
    """Report nothing."""
