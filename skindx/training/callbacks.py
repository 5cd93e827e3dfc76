"""The callbacks of one training: progress bar, history, and the trackers of the settings.

The bar shows loss and time left, and one line an epoch; a log, where nothing can be drawn again,
gets the same as a line every few seconds.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

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

from skindx.core.errors import UserError
from skindx.core.machine import require_extra
from skindx.core.progress import INTERVAL_S
from skindx.data.loader.batches import steps_of
from skindx.training.checkpoint.finished import FOLDER as DETECTOR
from skindx.training.checkpoint.finished import HISTORY, member_folder, write_history
from skindx.training.config.run import MemberSettings, MonitorSettings, TrainSettings
from skindx.training.trackers import Mlflow, Monitor, Row, TensorBoard, TrainingInfo, Wandb


class History:
    """Writes the whole file each time: no row is doubled or cut, whatever was there before."""

    def start(self, info: TrainingInfo, history: Sequence[Row]) -> None:
        self._file = info.folder / HISTORY
        if history:
            write_history(self._file, history)
        else:
            self._file.unlink(missing_ok=True)  # of an earlier training that was lost

    def step(self, step: int, loss: float) -> None:
        """Steps are not kept."""

    def epoch(self, history: Sequence[Row]) -> None:
        write_history(self._file, history)

    def close(self, *, finished: bool) -> None:
        """Everything is written."""


class _Speed(ProgressColumn):
    """Images a second over the last steps."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self._batch = batch

    def render(self, task: Task) -> Text:
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


_MONITORS: dict[str, Callable[[Any], Monitor]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": Mlflow,
}


def check_monitors(monitors: Sequence[MonitorSettings]) -> None:
    """Raise UserError for a tracker whose package is not installed, or that is named twice."""
    kinds = [monitor.kind for monitor in monitors]
    for kind in kinds:
        require_extra("track", kind, purpose=f"monitors={kind}")
        if kinds.count(kind) > 1:
            raise UserError(f"the setting `monitors` has {kind} twice; remove one of the two.")


def member_callbacks(
    run: Path,
    settings: TrainSettings,
    member: MemberSettings,
    images: int,
    *,
    shown: bool,
    bar: bool = True,
) -> "CallbackList":
    """Return the callbacks of a member that learns from so many images; one rank's are `shown`.

    Without a `bar` lines are shown alone.
    """
    recipe = settings.recipe_of(member)
    steps = steps_of(images, recipe.batch)
    values = {
        "member": member.model_dump(mode="json"),
        "recipe": recipe.model_dump(mode="json"),
        "engine": settings.engine.model_dump(mode="json"),
        "loader": settings.loader.model_dump(mode="json"),
    }
    folder = member_folder(run, member.name)
    info = TrainingInfo(run, folder, settings.name, member.name, values, steps)
    monitors: list[tuple[str, Monitor]] = [("history.csv", History())] if shown else []
    if shown:
        monitors += [
            (monitor.kind, _MONITORS[monitor.kind](monitor)) for monitor in settings.monitors
        ]
    batch = min(recipe.batch, images)
    shows = TrainingBar(member.name, recipe.epochs * steps, shown=shown, batch=batch, drawn=bar)
    return CallbackList(info, shows, monitors)


def detector_callbacks(
    run: Path, settings: TrainSettings, images: int, *, shown: bool
) -> "CallbackList":
    """Return the callbacks of the run's detector: a bar alone."""
    detector = settings.detector
    assert detector is not None
    steps = steps_of(images, detector.batch)
    values = {"detector": detector.model_dump(mode="json")}
    info = TrainingInfo(run, run / DETECTOR, settings.name, "detector", values, steps)
    batch = min(detector.batch, images)
    bar = TrainingBar("detector", detector.epochs * steps, shown=shown, batch=batch)
    return CallbackList(info, bar, [])


class CallbackList:
    """The bar and the monitors of one training on the main rank; the other ranks show nothing.

    A monitor that fails gives one warning and does not stop the training. It is called again
    after each epoch: a disk may have room again, a server may be back.
    """

    def __init__(
        self, info: TrainingInfo, bar: TrainingBar, monitors: Sequence[tuple[str, Monitor]]
    ) -> None:
        self._info = info
        self._bar = bar
        self._waiting = list(monitors)
        self._started: list[tuple[str, Monitor]] = []
        self._failing: set[str] = set()
        self._warned: set[str] = set()

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for name, monitor in self._started:
            self._careful(name, partial(monitor.close, finished=kind is None))
        self._bar.__exit__()

    def start(self, history: Sequence[Row]) -> None:
        for name, monitor in self._waiting:
            if self._careful(name, partial(monitor.start, self._info, history)):
                self._started.append((name, monitor))
        self._waiting = []

    def step(self, step: int, loss: float) -> None:
        self._bar.step(loss, step)
        for name, monitor in self._started:
            if name not in self._failing:
                self._careful(name, partial(monitor.step, step, loss))

    def epoch(self, history: Sequence[Row], line: str) -> None:
        self._bar.line(line)
        for name, monitor in self._started:
            self._careful(name, partial(monitor.epoch, history))

    def line(self, text: str) -> None:
        self._bar.line(text)

    def _careful(self, name: str, call: Callable[[], None]) -> bool:
        try:
            call()
        except Exception as error:  # whatever a tracker raises, hours of training matter more
            if name not in self._warned:
                reason = " ".join(str(error).split())[:200] or type(error).__name__
                self._bar.line(f"warning: {name} failed ({reason}); training goes on without it")
            self._warned.add(name)
            self._failing.add(name)
            return False
        self._failing.discard(name)
        return True


class Silent:
    """Shows no bar and no epochs; messages go to `say`, by default nowhere."""

    def __init__(self, say: Callable[[str], None] = lambda line: None) -> None:
        self.line = say

    def start(self, history: Sequence[Mapping[str, Any]]) -> None:
        """There is no bar."""

    def step(self, step: int, loss: float) -> None:
        """Steps are not shown."""

    def epoch(self, history: Sequence[Mapping[str, Any]], line: str) -> None:
        """Epochs are not shown."""
