"""The callbacks of one training: a bar, the history, and the trackers of the settings."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from skindx.core.errors import UserError
from skindx.core.machine import require_extra
from skindx.training.callbacks.bar import TrainingBar
from skindx.training.callbacks.callback import Monitor, Row, TrainingInfo
from skindx.training.callbacks.history import History
from skindx.training.callbacks.mlflow_run import Mlflow
from skindx.training.callbacks.tensorboard_events import TensorBoard
from skindx.training.callbacks.wandb_run import Wandb
from skindx.training.config.run import MemberSettings, TrainSettings
from skindx.training.config.trackers import MonitorSettings
from skindx.training.feeding.batches import steps_of
from skindx.training.finished.detector import FOLDER as DETECTOR
from skindx.training.finished.member import member_folder

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
            raise UserError(f"monitors has {kind} twice; name it once.")


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
        """Training begins, or goes on after the epochs of `history`."""
        for name, monitor in self._waiting:
            if self._careful(name, partial(monitor.start, self._info, history)):
                self._started.append((name, monitor))
        self._waiting = []

    def step(self, step: int, loss: float) -> None:
        """`step` steps are done since the first epoch; `loss` is this rank's mean."""
        self._bar.step(loss, step)
        for name, monitor in self._started:
            if name not in self._failing:
                self._careful(name, partial(monitor.step, step, loss))

    def epoch(self, history: Sequence[Row], line: str) -> None:
        """One more epoch is done: the last row of `history`, which `line` sums up."""
        self._bar.line(line)
        for name, monitor in self._started:
            self._careful(name, partial(monitor.epoch, history))

    def line(self, text: str) -> None:
        """Show a message."""
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
