"""Weights & Biases: a run in RUN/wandb, or on its server when the settings say `online`."""

import secrets
from collections.abc import Sequence
from typing import Any

from skindx.core.errors import UserError
from skindx.core.machine import go_offline
from skindx.training.callbacks.callback import Row, RunId, TrainingInfo
from skindx.training.config.trackers import WandbSettings


class Wandb:
    """Logs figures by epoch; no code, console, hardware or package list goes with them."""

    def __init__(self, settings: WandbSettings) -> None:
        self._settings = settings

    def start(self, info: TrainingInfo, history: Sequence[Row]) -> None:
        """Begin a run, or go on with the one of this training."""
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
