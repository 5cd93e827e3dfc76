"""How a training shows where it is: a bar with loss and time left, and one line an epoch."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class TrainingBar:
    """A progress bar on standard error; silent on every rank but the first."""

    def __init__(self, name: str, steps: int, *, shown: bool) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not shown,
            transient=True,
        )
        self._task = self._bar.add_task(name, total=steps, loss="starting")
        self._name, self._shown = name, shown

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def step(self, loss: float) -> None:
        """Move the bar by one step; `loss` is this rank's mean."""
        self._bar.update(self._task, advance=1, loss=f"loss {loss:.3f}")

    def line(self, text: str) -> None:
        """Print one epoch's figures above the bar."""
        if self._shown:
            self._bar.console.print(f"{self._name}  {text}", highlight=False, soft_wrap=True)
