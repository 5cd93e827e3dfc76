"""What a monitor records of a training, and what it knows of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

Row = Mapping[str, Any]
"""One epoch's figures, as in history.csv."""


@dataclass(frozen=True)
class TrainingInfo:
    """Which training it is."""

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
