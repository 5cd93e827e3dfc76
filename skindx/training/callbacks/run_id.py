"""Which run of a tracker a member's training is, so that one that goes on goes on there."""

import json
from collections.abc import Sequence
from pathlib import Path

from skindx.files import write_json
from skindx.training.callbacks.callback import Row, TrainingInfo


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
