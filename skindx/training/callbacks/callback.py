"""Interface of callbacks, and the facts of a training that they get."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from skindx.core.atomic_files import write_json

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
