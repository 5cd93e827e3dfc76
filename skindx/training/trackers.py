"""Interface of trackers, the facts of a training that they get, and MLflow, TensorBoard, wandb."""

import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx.core.machine import go_offline
from skindx.training.config.run import MlflowSettings, TensorBoardSettings, WandbSettings

Row = Mapping[str, Any]
"""One epoch's figures, as in history.csv."""


@dataclass(frozen=True)
class TrainingInfo:
    """The observed training."""

    run: Path
    """The run's folder."""
    folder: Path
    """The member's folder in it."""
    name: str
    """The run's name."""
    member: str
    settings: Mapping[str, Any]
    """Everything that was set, as plain values."""
    epoch_steps: int


class Monitor(Protocol):
    """Records a member's training on the main rank; what it raises stops no training."""

    def start(self, info: TrainingInfo, history: Sequence[Row]) -> None:
        """Begin; `history` has the epochs that are done, when a training goes on."""

    def step(self, step: int, loss: float) -> None:
        """`step` steps are done since the first epoch; `loss` is the main rank's mean."""

    def epoch(self, history: Sequence[Row]) -> None:
        """One more epoch is done: the last row."""

    def close(self, *, finished: bool) -> None:
        """End; not `finished`: the training failed or was stopped, and may go on later."""


class RunId:
    """MEMBER/tracker-KIND.json: the tracker's own id, and the epochs that it has.

    A training that goes on from an older checkpoint comes to the same figures again: they are
    logged once. One that starts from the beginning is a new run.
    """

    def __init__(self, kind: str, info: TrainingInfo, history: Sequence[Row]) -> None:
        self._file: Path = info.folder / f"tracker-{kind}.json"
        self.value: str | None = None
        self.logged = 0
        if history and self._file.is_file():
            kept = json.loads(self._file.read_text(encoding="utf-8"))
            self.value, self.logged = kept["id"], kept["epochs"]

    def keep(self, value: str, epochs: int) -> None:
        """Note the id and the epochs that its run has."""
        self.value, self.logged = value, epochs
        write_json(self._file, {"id": value, "epochs": epochs})


_LONGEST = 500
"""Characters of a parameter's value that any of its stores takes."""


class Mlflow:
    """Logs settings as parameters and figures by epoch."""

    def __init__(self, settings: MlflowSettings) -> None:
        self._settings = settings

    def start(self, info: TrainingInfo, history: Sequence[Row]) -> None:
        go_offline()  # before the import, which reads whether usage is reported
        uri = self._settings.uri
        if uri is None:
            # The files need no database; MLflow keeps them working, but asks that one says so.
            os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
            uri = (info.run / "mlruns").resolve().as_uri()
        # A server that is gone holds the training up for seconds, not for minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client: Any = MlflowClient(tracking_uri=uri)
        self._id = RunId("mlflow", info, history)
        if self._id.value is not None:
            self._client.update_run(self._id.value, status="RUNNING")
            return
        name = f"{info.name} {info.member}"
        run = self._client.create_run(self._experiment(), run_name=name).info.run_id
        params = [Param(key, str(value)[:_LONGEST]) for key, value in _flat(info.settings)]
        self._client.log_batch(run, params=params)
        self._id.keep(run, 0)

    def _experiment(self) -> str:
        result = self._client.get_experiment_by_name(self._settings.experiment)
        experiment: str = (
            result.experiment_id
            if result
            else self._client.create_experiment(self._settings.experiment)
        )
        return experiment

    def step(self, step: int, loss: float) -> None:
        """Steps are not logged."""

    def epoch(self, history: Sequence[Row]) -> None:
        """Log the epochs that were not logged yet."""
        from mlflow.entities import Metric

        assert self._id.value is not None
        now_ms = int(time.time() * 1000)
        metrics = [
            Metric(key, float(value), now_ms, row["epoch"])
            for row in history[self._id.logged :]
            for key, value in row.items()
            if key != "epoch"
        ]
        self._client.log_batch(self._id.value, metrics=metrics)
        self._id.keep(self._id.value, len(history))

    def close(self, *, finished: bool) -> None:
        self._client.set_terminated(self._id.value, "FINISHED" if finished else "KILLED")


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield `recipe.batch`, 32 and the like."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


class TensorBoard:
    """Writes RUN/tensorboard/MEMBER; epochs on the axis, and every few steps the loss."""

    def __init__(self, settings: TensorBoardSettings) -> None:
        self._every = settings.every_steps

    def start(self, info: TrainingInfo, history: Sequence[Row]) -> None:
        """Open a new event file; of older ones TensorBoard drops the steps that come again."""
        from torch.utils.tensorboard import SummaryWriter

        folder = info.run / "tensorboard" / info.member
        if not history:
            for old in folder.glob("events.out.tfevents.*"):
                old.unlink()
        steps = len(history) * info.epoch_steps
        self._epoch_steps = info.epoch_steps
        self._writer = SummaryWriter(str(folder), purge_step=steps + 1 if history else None)

    def step(self, step: int, loss: float) -> None:
        """Add a point of the step's loss now and then."""
        if step % self._every == 0:
            self._writer.add_scalar("step/loss", loss, step)

    def epoch(self, history: Sequence[Row]) -> None:
        """Add a point of each figure, at the step that the epoch ended with."""
        row = history[-1]
        for key, value in row.items():
            self._writer.add_scalar(f"epoch/{key}", value, row["epoch"] * self._epoch_steps)
        self._writer.flush()

    def close(self, *, finished: bool) -> None:
        self._writer.close()


class Wandb:
    """Logs figures by epoch; no code, console, hardware or package list goes with them."""

    def __init__(self, settings: WandbSettings) -> None:
        self._settings = settings

    def start(self, info: TrainingInfo, history: Sequence[Row]) -> None:
        go_offline()  # before the import, which starts its makers' error reports
        import wandb

        if self._settings.mode == "online" and not wandb.login(prompt=False):
            raise UserError("wandb.mode=online needs a key: run `wandb login`")
        settings = wandb.Settings(
            console="off",
            silent=True,
            disable_code=True,
            disable_git=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        self._id = RunId("wandb", info, history)
        self._run: Any = wandb.init(
            project=self._settings.project,
            entity=self._settings.entity,
            mode=self._settings.mode,
            name=f"{info.name} {info.member}",
            group=info.name,
            id=self._id.value or secrets.token_hex(4),
            resume="allow" if self._settings.mode == "online" else None,
            dir=info.run,
            config=dict(info.settings),
            settings=settings,
        )
        self._run.define_metric("*", step_metric="epoch")
        self._id.keep(self._run.id, self._id.logged)

    def step(self, step: int, loss: float) -> None:
        """Steps are not logged."""

    def epoch(self, history: Sequence[Row]) -> None:
        """Log the epochs that were not logged yet."""
        for row in history[self._id.logged :]:
            self._run.log(dict(row), step=row["epoch"])
        self._id.keep(self._run.id, len(history))

    def close(self, *, finished: bool) -> None:
        """End the run, which waits until everything is written or sent."""
        self._run.finish(exit_code=0 if finished else 1)
