"""One training of a run, of a member or of the detector, as a rank's worker sees it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from skindx.training.callbacks.callback_list import CallbackList
from skindx.training.parallel.mesh import Mesh
from skindx.training.state import Training
from skindx.training.task import Row


class Job(Protocol):
    """What is trained, where it is saved, and when it is finished."""

    @property
    def label(self) -> str:
        """Its name in messages."""

    @property
    def key(self) -> str:
        """The name of its folder among the run's checkpoints."""

    @property
    def run(self) -> Path:
        """The run's folder."""

    @property
    def fingerprint(self) -> str:
        """Hash of everything that decides the result."""

    def is_finished(self) -> bool:
        """True when the result is in the run. Raises UserError when it was trained otherwise."""

    def callbacks(self, *, shown: bool) -> CallbackList:
        """Return what shows and records the training; only the main rank's is `shown`."""

    def setup(self, mesh: Mesh, say: Callable[[str], None]) -> Training[Any]:
        """Return the training before its first step; every rank calls this."""

    def save(self, result: Any, history: list[Row]) -> None:
        """Write the result into the run, whole or not at all."""
