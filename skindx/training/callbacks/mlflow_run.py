"""MLflow: a run in RUN/mlruns, or on the tracking server that the settings name."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from skindx.core.machine import go_offline
from skindx.training.callbacks.callback import Row, RunId, TrainingInfo
from skindx.training.config.trackers import MlflowSettings

_LONGEST = 500
"""Characters of a parameter's value that any of its stores takes."""


class Mlflow:
    """Logs settings as parameters and figures by epoch."""

    def __init__(self, settings: MlflowSettings) -> None:
        self._settings = settings

    def start(self, info: TrainingInfo, history: Sequence[Row]) -> None:
        """Begin a run, or go on with the one of this training."""
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
        found = self._client.get_experiment_by_name(self._settings.experiment)
        experiment: str = (
            found.experiment_id
            if found
            else self._client.create_experiment(self._settings.experiment)
        )
        return experiment

    def step(self, step: int, loss: float) -> None:
        """Steps are not logged."""

    def epoch(self, history: Sequence[Row]) -> None:
        """Log the epochs that were not logged yet."""
        import time

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
        """End the run."""
        self._client.set_terminated(self._id.value, "FINISHED" if finished else "KILLED")


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield `recipe.batch`, 32 and the like."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
