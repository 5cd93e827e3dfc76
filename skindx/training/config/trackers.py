"""Settings of trackers, beside the progress bar and the CSV that are always there."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from skindx.core.settings_base import Settings


class TensorBoardSettings(Settings):
    """Event files in RUN/tensorboard: `tensorboard --logdir RUN/tensorboard`."""

    kind: Literal["tensorboard"] = "tensorboard"
    every_steps: int = Field(10, ge=1, le=10**9)
    """Steps between two points of the step's loss."""


class WandbSettings(Settings):
    """Weights & Biases."""

    kind: Literal["wandb"] = "wandb"
    mode: Literal["offline", "online"] = "offline"
    """offline: into RUN/wandb, for a later `wandb sync`; online: to its server, with your key."""
    project: str = "skindx"
    entity: str | None = None
    """The team or user that the project belongs to; none: the key's own."""


class MlflowSettings(Settings):
    """MLflow."""

    kind: Literal["mlflow"] = "mlflow"
    uri: str | None = None
    """A tracking server (https://…) or database (sqlite:///FILE, with the whole of MLflow).

    none: files in RUN/mlruns; to look at them, start `mlflow ui --backend-store-uri RUN/mlruns`
    with MLFLOW_ALLOW_FILE_STORE=true.
    """
    experiment: str = "skindx"


def _by_name(value: Any) -> Any:
    """Let `tensorboard` stand for its settings as they are."""
    return {"kind": value} if isinstance(value, str) else value


MonitorSettings = Annotated[
    Annotated[TensorBoardSettings | WandbSettings | MlflowSettings, Field(discriminator="kind")],
    BeforeValidator(_by_name),
]
