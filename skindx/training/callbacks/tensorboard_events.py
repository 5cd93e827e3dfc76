"""TensorBoard: event files, one folder a member."""

from collections.abc import Sequence

from skindx.training.callbacks.callback import Row, TrainingInfo
from skindx.training.config.trackers import TensorBoardSettings


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
        """Close the event file."""
        self._writer.close()
