"""The progress of a training: a bar with loss and time left, and one line an epoch.

A log, where nothing can be drawn again, gets the same as a line every few seconds.
"""

import time
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from skindx.core.progress import INTERVAL_S


class _Speed(ProgressColumn):
    """Images a second over the last steps."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self._batch = batch

    def render(self, task: Task) -> Text:
        """Return the text."""
        return Text("" if task.speed is None else f"{task.speed * self._batch:.0f} images/s")


class TrainingBar:
    """A progress bar on standard error; silent on every rank but the main one.

    `batch` is the images of a step, over all ranks; with it the bar shows their speed. Where no bar
    is `drawn` lines are shown alone. Without a terminal it writes a line every INTERVAL_S seconds.
    """

    def __init__(
        self,
        name: str,
        steps: int,
        *,
        shown: bool,
        batch: int | None = None,
        drawn: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        console = Console(stderr=True)
        self._logged = shown and drawn and not console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            *([_Speed(batch)] if batch else []),
            TimeRemainingColumn(),
            console=console,
            disable=self._logged or not (shown and drawn),
            transient=True,
        )
        self._task = self._bar.add_task(name, total=steps, loss="starting")
        self._name, self._shown, self._steps, self._batch = name, shown, steps, batch
        self._clock, self._done = clock, 0
        self._first: tuple[int, float] | None = None
        self._logged_at = clock()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def step(self, loss: float, done: int | None = None) -> None:
        """Move the bar to `done` steps, or by one; `loss` is this rank's mean."""
        self._done = self._done + 1 if done is None else done
        self._bar.update(self._task, completed=self._done, loss=f"loss {loss:.3f}")
        if self._logged:
            self._log(loss)

    def _log(self, loss: float) -> None:
        """Write a line if the last one is old enough, from the second step on."""
        now = self._clock()
        if self._first is None:
            self._first = self._done, now
            return
        steps, seconds = self._done - self._first[0], now - self._first[1]
        if now < self._logged_at + INTERVAL_S or steps < 1 or seconds <= 0:
            return
        self._logged_at = now
        speed = f"{steps * self._batch / seconds:.0f} images/s, " if self._batch else ""
        left = time_left((self._steps - self._done) * seconds / steps)
        self.line(
            f"step {self._done:,} of {self._steps:,}  loss {loss:.3f}  {speed}about {left} left"
        )

    def line(self, text: str) -> None:
        """Print a line above the bar."""
        if self._shown:
            self._bar.console.print(f"{self._name}  {text}", highlight=False, soft_wrap=True)


def time_left(seconds: float) -> str:
    """Return a time in words, in the unit that leaves two or three figures."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.{seconds < 10 * size:d}f} {unit}"
    return f"{seconds:.0f} s"
