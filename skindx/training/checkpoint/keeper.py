"""Saves one training on all ranks together, and finds it again."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from skindx.core.errors import UserError
from skindx.core.state_checks import UnfitStateError
from skindx.training.checkpoint import store
from skindx.training.checkpoint.fitting import part_of
from skindx.training.checkpoint.names import CHECKPOINTS as CHECKPOINTS  # noqa: PLC0414 (its users)
from skindx.training.checkpoint.state import State, split
from skindx.training.checkpoint.stateful import PerRank, Shared
from skindx.training.checkpoint.store import At
from skindx.training.config.checkpoints import CheckpointSettings
from skindx.training.made_from import made_from, otherwise
from skindx.training.parallel.mesh import Mesh

CANNOT_WRITE = (OSError, SafetensorError)
"""What a full disk raises: safetensors wraps the system's error."""


def checkpoint_folder(run: Path, name: str) -> Path:
    """Return where a member's checkpoints are while it is in training."""
    return run / CHECKPOINTS / name


def refuse_others(folder: Path, fingerprint: str) -> None:
    """Raise UserError when a checkpoint there is of other settings or data."""
    for at in store.saved_in(folder):
        try:
            index = store.read_index(store.path_of(folder, at))
        except store.DamagedCheckpointError:
            continue
        if index["fingerprint"] != fingerprint:
            raise otherwise(folder, index, fingerprint)


class Keeper:
    """The checkpoints of one training; every rank holds one and calls it alike."""

    def __init__(
        self,
        folder: Path,
        fingerprint: str,
        settings: CheckpointSettings,
        mesh: Mesh,
        say: Callable[[str], None],
        *,
        shared: Mapping[str, Shared],
        own: Mapping[str, PerRank],
    ) -> None:
        """Keep `shared` and `own` in `folder`; the fingerprint is the result's."""
        self._folder, self._fingerprint, self._settings = folder, fingerprint, settings
        self._mesh, self._say = mesh, say
        self._shared, self._own = shared, own
        self._saved_at, self._steps_since = time.monotonic(), 0
        self._last: At | None = None

    def due(self) -> bool:
        """True when the next step is to be saved. Ranks' clocks differ: the main one decides."""
        minutes, steps = self._settings.every_minutes, self._settings.every_steps
        late = minutes is not None and time.monotonic() - self._saved_at >= 60 * minutes
        return late or (steps is not None and self._steps_since + 1 >= steps)

    def count_step(self) -> None:
        """Count a step that was taken."""
        self._steps_since += 1

    def save(self, at: At) -> bool:
        """Write a checkpoint unless there is one; False, with a line, when that cannot be."""
        if at == self._last:
            return True
        self._saved_at, self._steps_since = time.monotonic(), 0
        # Under ZeRO every rank brings its part of what is shared.
        shared: State = {name: part.state_dict() for name, part in self._shared.items()}
        own: State = {name: part.state_dict() for name, part in self._own.items()}
        first = self._mesh.is_main
        try:
            self._together(lambda: _check_finite(shared) if first else None)
            self._together(lambda: store.begin(self._folder) if first else None)
            temporary = store.writing(self._folder)
            parts = self._together(
                lambda: store.write_part(
                    temporary, self._mesh.data.rank, own, shared if first else None
                )
            )
            files = {name: entry for part in parts for name, entry in part.items()}
            head = {
                "fingerprint": self._fingerprint,
                **made_from(self._fingerprint),
                "at": list(at),
                "ranks": self._mesh.data.size,
            }
            self._together(
                lambda: (
                    store.finish(self._folder, at, head, files, self._settings.keep)
                    if first
                    else None
                )
            )
        except _NotSavedError as reason:
            if first:
                store.abandon(self._folder)
            self._say(f"no checkpoint was written ({reason}); the training goes on without")
            return False
        self._last = at
        return True

    def _together(self, work: Callable[[], Any]) -> list[Any]:
        """Let every rank work; what one cannot write is raised on all. Returns all results."""
        result, problem = None, ""
        try:
            result = work()
        except CANNOT_WRITE as error:
            problem = " ".join(str(error).split())
        answers = self._mesh.gather((result, problem))
        for _, reason in answers:
            if reason:
                raise _NotSavedError(reason)
        return [found for found, _ in answers]

    def resume(self) -> At | None:
        """Go on from the newest whole checkpoint and return its place; None: there is none."""
        found = self._mesh.gather(self._newest() if self._mesh.is_main else None)[0]
        if found is None:
            return None
        self._last, ranks = At(*found[0]), found[1]
        checkpoint = store.path_of(self._folder, self._last)
        shared = store.read_shared(checkpoint)
        try:
            for name, part in self._shared.items():
                part.load_state_dict(part_of(shared, name))
            for name, own in self._own.items():
                own.load_state_dict(store.RankStates(checkpoint, ranks, name))
        except UnfitStateError as error:
            raise UserError(
                f"checkpoint {checkpoint} is not of this training ({error}); remove that folder, "
                "and the same command goes on from the checkpoint before it or starts again."
            ) from None
        return self._last

    def _newest(self) -> tuple[At, int] | None:
        """Return the place and the ranks of the newest checkpoint that is as it was written."""
        saved = store.saved_in(self._folder)
        for at in saved:
            checkpoint = store.path_of(self._folder, at)
            try:
                return at, int(store.verify(checkpoint)["ranks"])
            except store.DamagedCheckpointError as damage:
                then = "the one before is taken" if at != saved[-1] else "the member starts again"
                self._say(f"checkpoint {checkpoint} is damaged ({damage}); {then}")
        return None


class _NotSavedError(Exception):
    """A checkpoint that some rank could not write."""


def _check_finite(shared: State) -> None:
    tensors, _ = split(shared)
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise OSError(f"{name} is not finite")
