"""The progress of a training: a bar with loss and time left, and one line an epoch."""

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
    is `drawn` lines are shown alone.
    """

    def __init__(
        self,
        name: str,
        steps: int,
        *,
        shown: bool,
        batch: int | None = None,
        drawn: bool = True,
    ) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            *([_Speed(batch)] if batch else []),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not (shown and drawn),
            transient=True,
        )
        self._task = self._bar.add_task(name, total=steps, loss="starting")
        self._name, self._shown = name, shown

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def step(self, loss: float, done: int | None = None) -> None:
        """Move the bar to `done` steps, or by one; `loss` is this rank's mean."""
        advance = 1 if done is None else None
        self._bar.update(self._task, advance=advance, completed=done, loss=f"loss {loss:.3f}")

    def line(self, text: str) -> None:
        """Print a line above the bar."""
        if self._shown:
            self._bar.console.print(f"{self._name}  {text}", highlight=False, soft_wrap=True)
