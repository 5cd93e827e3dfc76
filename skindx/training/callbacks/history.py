"""history.csv: one row an epoch, written again after each epoch."""

from collections.abc import Sequence

from skindx.training.callbacks.callback import Row, TrainingInfo
from skindx.training.finished.member import HISTORY, write_history


class History:
    """Writes the whole file each time: no row is doubled or cut, whatever was there before."""

    def start(self, info: TrainingInfo, history: Sequence[Row]) -> None:
        """Begin."""
        self._file = info.folder / HISTORY
        if history:
            write_history(self._file, history)
        else:
            self._file.unlink(missing_ok=True)  # of an earlier training that was lost

    def step(self, step: int, loss: float) -> None:
        """Steps are not kept."""

    def epoch(self, history: Sequence[Row]) -> None:
        """Write all rows."""
        write_history(self._file, history)

    def close(self, *, finished: bool) -> None:
        """Everything is written."""
