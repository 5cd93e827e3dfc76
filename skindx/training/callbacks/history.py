"""history.csv: one row an epoch, written anew after each epoch."""

from collections.abc import Sequence
from pathlib import Path

from skindx.files import write_csv
from skindx.training.callbacks.callback import Row, Watched

HISTORY = "history.csv"


class History:
    """Writes the whole file each time: no row is doubled or cut, whatever was there before."""

    def start(self, watched: Watched, history: Sequence[Row]) -> None:
        """Begin."""
        self._file = watched.folder / HISTORY
        if history:
            write_history(self._file, history)
        else:
            self._file.unlink(missing_ok=True)  # what another, lost training had come to

    def step(self, step: int, loss: float) -> None:
        """Steps are not kept."""

    def epoch(self, history: Sequence[Row]) -> None:
        """Write all rows."""
        write_history(self._file, history)

    def close(self, *, finished: bool) -> None:
        """Everything is written."""


def write_history(file: Path, history: Sequence[Row]) -> None:
    """Write one row an epoch; a figure that an epoch does not have is left empty."""
    columns = list(dict.fromkeys(key for row in history for key in row))
    write_csv(file, columns, ([row.get(key, "") for key in columns] for row in history))
