"""Saves one training on all ranks together, whole or not at all, and finds it again, verified.

epoch-0003-step-000017/        two epochs and 17 steps are done
    shared/                    what all ranks hold alike: written by the main rank
    rank-0/ rank-1/ …          what each rank holds alone
    index.json                 every file's hash, written last; a hash of itself
"""

import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from skindx.core.atomic_files import flush, sha256_file, write_json
from skindx.core.errors import UserError
from skindx.core.machine import free_memory
from skindx.core.state_checks import UnfitStateError
from skindx.core.untrusted import MEGABYTE, read_json
from skindx.training.checkpoint.fingerprints import made_from, otherwise
from skindx.training.checkpoint.rank_parts import (
    CANNOT_WRITE,
    SHARED,
    NotSavedError,
    abandon,
    answer_with,
    begin,
    collect,
    rank_folder,
    words_of,
    write_part,
    writing,
)
from skindx.training.checkpoint.saved_state import (
    TENSORS,
    VALUES,
    PerRank,
    Shared,
    SplitState,
    State,
    part_of,
    read_state,
    split,
    tensors_in,
)
from skindx.training.config.engine import CHECKPOINTS as CHECKPOINTS  # noqa: PLC0414 (its users)
from skindx.training.config.engine import CheckpointSettings
from skindx.training.parallel.mesh import Mesh

INDEX = "index.json"

_FORMAT = 1
_MOST_RANKS = 65_536
_NAME = re.compile(r"epoch-(\d+)-step-(\d+)")


class At(NamedTuple):
    """A point of a training."""

    epoch: int
    """Whole epochs that are done."""
    step: int
    """Steps of the following one that are done."""


class DamagedCheckpointError(Exception):
    """A checkpoint that is not as it was written; the text says what differs."""


class RankStates(Sequence[State]):
    """One part of every rank's own state at the time of saving; read when it is asked for."""

    def __init__(self, checkpoint: Path, ranks: int, part: str) -> None:
        self._checkpoint, self._ranks, self._part = checkpoint, ranks, part

    def __len__(self) -> int:
        return self._ranks

    @overload
    def __getitem__(self, rank: int) -> State: ...
    @overload
    def __getitem__(self, rank: slice) -> list[State]: ...
    def __getitem__(self, rank: int | slice) -> State | list[State]:
        if isinstance(rank, slice):
            return [self[number] for number in range(*rank.indices(self._ranks))]
        if not -self._ranks <= rank < self._ranks:
            raise IndexError(rank)
        return part_of(read_state(self._checkpoint / rank_folder(rank % self._ranks)), self._part)


def saved_in(folder: Path) -> list[At]:
    """Return where the checkpoints in `folder` stand, the furthest first."""
    if not folder.is_dir():
        return []
    matches = (_NAME.fullmatch(checkpoint.name) for checkpoint in folder.iterdir())
    return sorted(
        (At(int(match[1]) - 1, int(match[2])) for match in matches if match), reverse=True
    )


def path_of(folder: Path, at: At) -> Path:
    """Return the folder of one checkpoint."""
    return folder / f"epoch-{at.epoch + 1:04d}-step-{at.step:06d}"


def finish(folder: Path, at: At, head: State, files: State, keep: int, *, number: int = 0) -> None:
    """Write the index, give the checkpoint its name, and remove all but the newest `keep`."""
    temporary, final = writing(folder, number), path_of(folder, at)
    body = {"format": _FORMAT, **head, "files": files}
    write_json(temporary / INDEX, {**body, "seal": _seal(body)})
    flush(temporary)
    if final.exists():  # a damaged one, or a stop right after a save
        shutil.rmtree(final)
    temporary.replace(final)
    flush(folder)
    saved = saved_in(folder)
    newest = [other for other in saved if other <= at][:keep]
    if number:  # the ranks from which this one was cut off may have gone on
        newest += [other for other in saved if other > at]
    # Else one that stands further is a damaged one that this training had to go back behind.
    for other in set(saved) - set(newest):
        shutil.rmtree(path_of(folder, other))


def _seal(body: dict[str, Any]) -> str:
    return sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def read_index(checkpoint: Path) -> dict[str, Any]:
    """Return the index. Raises DamagedCheckpointError when it is not whole."""
    try:
        index = read_json(checkpoint / INDEX, 64 * MEGABYTE, finite=False)
        seal = index.pop("seal")
    except (UserError, KeyError):
        raise DamagedCheckpointError(f"{INDEX} cannot be read") from None
    if _seal(index) != seal:
        raise DamagedCheckpointError(f"{INDEX} was altered")
    if index.get("format") != _FORMAT:
        raise DamagedCheckpointError(f"its format is {index.get('format')}, not {_FORMAT}")
    if not _is_of_this_kind(index):
        raise DamagedCheckpointError(f"{INDEX} does not list the files of its ranks")
    return dict(index)


def _is_of_this_kind(index: dict[str, Any]) -> bool:
    """Tell whether an index lists the files that its ranks write, and no others."""
    ranks, files = index.get("ranks"), index.get("files")
    if type(ranks) is not int or not 1 <= ranks <= _MOST_RANKS or not isinstance(files, dict):
        return False
    folders = [SHARED, *map(rank_folder, range(ranks))]
    return (
        "fingerprint" in index
        and set(files) == {f"{folder}/{name}" for folder in folders for name in (TENSORS, VALUES)}
        and all(
            isinstance(entry, dict) and {"bytes", "sha256"} <= set(entry)
            for entry in files.values()
        )
    )


def verify(checkpoint: Path) -> dict[str, Any]:
    """Return the index of a checkpoint whose every file is as written.

    Raises DamagedCheckpointError that names the first file which is not.
    """
    index = read_index(checkpoint)
    for name, expected in index["files"].items():
        file = checkpoint / name
        if not file.is_file() or file.is_symlink():
            raise DamagedCheckpointError(f"{name} is missing")
        if file.stat().st_size != expected["bytes"]:
            size = file.stat().st_size
            raise DamagedCheckpointError(f"{name} has {size} bytes, not {expected['bytes']}")
        if sha256_file(file) != expected["sha256"]:
            raise DamagedCheckpointError(f"{name} was altered")
    return index


def read_shared(checkpoint: Path) -> State:
    """Return what all ranks held alike."""
    return read_state(checkpoint / SHARED)


def checkpoint_folder(run: Path, name: str) -> Path:
    """Return where a member's checkpoints are while it is in training."""
    return run / CHECKPOINTS / name


def refuse_mismatch(folder: Path, fingerprint: str) -> None:
    """Raise UserError when a checkpoint there is of other settings or data."""
    for at in saved_in(folder):
        try:
            index = read_index(path_of(folder, at))
        except DamagedCheckpointError:
            continue
        if index["fingerprint"] != fingerprint:
            raise otherwise(folder, index, fingerprint)


LEAVING_S = 10.0
"""Seconds that the main rank waits after an error for other ranks' parts: one may be gone."""


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
        per_rank: Mapping[str, PerRank],
    ) -> None:
        """Keep `shared` and `per_rank` in `folder`; the fingerprint is the result's."""
        self._folder, self._fingerprint, self._settings = folder, fingerprint, settings
        self._mesh, self._say = mesh, say
        self._shared, self._per_rank = shared, per_rank
        self._saved_at, self._steps_since = time.monotonic(), 0
        self._last: At | None = None
        self._thread: threading.Thread | None = None
        self._outcome = (At(0, 0), "")
        self._deadline = 0.0

    def due(self) -> bool:
        """True when the next step is to be saved. Ranks' clocks differ: the main one decides."""
        if self._thread and not self._thread.is_alive():
            self.settle()  # a line tells at once what could not be written
        minutes = self._settings.every_minutes
        late = minutes is not None and time.monotonic() - self._saved_at >= 60 * minutes
        return late or self.due_by_steps()

    def due_by_steps(self) -> bool:
        """True, on every rank, when the next step is to be saved by the number of steps."""
        steps = self._settings.every_steps
        return steps is not None and self._steps_since + 1 >= steps

    def count_step(self) -> None:
        """Count a step that was taken."""
        self._steps_since += 1

    def save(self, at: At, *, wait: bool = True) -> bool:
        """Write a checkpoint unless there is one; False, with a line, when that cannot be.

        Without `wait` the state is copied, and written while the training goes on; a line tells
        later when it could not be. One is written at a time: the next one waits for it.
        """
        if not self._mesh.is_main:
            self.settle()
        self._mesh.gather(None)  # a rank that died shows here, not as a part that never comes
        self.settle()
        self._saved_at, self._steps_since = time.monotonic(), 0
        # Under ZeRO every rank brings its part of what is shared.
        shared: State = {name: part.state_dict() for name, part in self._shared.items()}
        local: State = {name: part.state_dict() for name, part in self._per_rank.items()}
        states = {rank_folder(self._mesh.data.rank): local}
        if self._mesh.is_main:
            states[SHARED] = shared
        try:
            if self._together(lambda: self._begin(at))[0]:
                return True
        except NotSavedError as reason:
            if self._mesh.is_main:
                abandon(self._folder, self._mesh.number)
            self._outcome = (at, str(reason))
            self._report()
            return False
        # The step waits for the writing, on this rank only, where memory lacks room for a copy.
        behind = not wait and 2 * sum(t.nbytes for _, t in tensors_in(states)) < free_memory()
        self._outcome = (at, "the thread that writes it failed")
        self._deadline = time.monotonic() + self._mesh.settings.timeout_s
        parts = {name: split(state, copy=behind) for name, state in states.items()}
        if behind:
            self._thread = threading.Thread(
                target=self._write, args=(at, parts), name="skindx-checkpoint"
            )
            self._thread.start()
            return True
        self._write(at, parts)
        self._report()
        return bool(self._mesh.gather(self._last == at)[0]) if wait else True

    def _begin(self, at: At) -> bool:
        """Let the ranks write; True where they need not: there is one already."""
        if not self._mesh.is_main or at == self._last:
            return self._mesh.is_main
        begin(self._folder, self._mesh.data.size, self._mesh.number)
        return False

    def _write(self, at: At, parts: Mapping[str, SplitState]) -> None:
        """Write this rank's part, and on the main one what makes a checkpoint of all parts."""
        data, number = self._mesh.data, self._mesh.number
        temporary = writing(self._folder, number)
        if data.rank:
            problem = answer_with(temporary, data.rank, lambda: write_part(temporary, parts))
            self._outcome = (at, problem)
            return
        problem = ""
        try:
            _check_finite(parts[SHARED][0])
            files = write_part(temporary, parts)
        except CANNOT_WRITE as error:
            files, problem = {}, words_of(error)
        try:
            files |= collect(temporary, data.size, lambda: time.monotonic() > self._deadline)
            if not problem:
                head = {
                    "fingerprint": self._fingerprint,
                    **made_from(self._fingerprint),
                    "at": list(at),
                    "ranks": data.size,
                }
                finish(self._folder, at, head, files, self._settings.keep, number=number)
        except (*CANNOT_WRITE, NotSavedError) as error:
            problem = problem or words_of(error)
        if problem:
            abandon(self._folder, number)
        self._outcome = (at, problem)

    def settle(self, *, leaving: bool = False, wait_s: float = LEAVING_S) -> None:
        """Wait until nothing is being written; one that is `leaving` waits briefly for others."""
        if self._thread:
            if leaving:
                self._deadline = min(self._deadline, time.monotonic() + wait_s)
            self._thread.join()
            self._thread = None
            self._report()

    def _report(self) -> None:
        """Take in how the last checkpoint ended; what is said counts on the main rank."""
        at, problem = self._outcome
        if problem:
            self._say(f"no checkpoint was written ({problem}); the training goes on without")
        else:
            self._last = at

    def _together(self, work: Callable[[], Any]) -> list[Any]:
        """Let every rank work; what one cannot write is raised on all. Returns all results."""
        result, problem = None, ""
        try:
            result = work()
        except CANNOT_WRITE as error:
            problem = words_of(error)
        answers = self._mesh.gather((result, problem))
        for _, reason in answers:
            if reason:
                raise NotSavedError(reason)
        return [answer for answer, _ in answers]

    def resume(self) -> At | None:
        """Go on from the newest whole checkpoint and return its place; None: there is none."""
        result = self._mesh.gather(self._newest() if self._mesh.is_main else None)[0]
        if result is None:
            return None
        self._last, ranks = At(*result[0]), result[1]
        checkpoint = path_of(self._folder, self._last)
        shared = read_shared(checkpoint)
        try:
            for name, part in self._shared.items():
                part.load_state_dict(part_of(shared, name))
            for name, rank_part in self._per_rank.items():
                rank_part.load_state_dict(RankStates(checkpoint, ranks, name))
        except UnfitStateError as error:
            raise UserError(
                f"the checkpoint {checkpoint} does not fit this training ({error}); delete this "
                "folder and run the same command again, which continues from the previous "
                "checkpoint or starts anew."
            ) from None
        return self._last

    def _newest(self) -> tuple[At, int] | None:
        """Return the place and the ranks of the newest checkpoint that is as it was written."""
        saved = saved_in(self._folder)
        for at in saved:
            checkpoint = path_of(self._folder, at)
            try:
                return at, int(verify(checkpoint)["ranks"])
            except DamagedCheckpointError as damage:
                then = "the one before is taken" if at != saved[-1] else "the member starts again"
                self._say(f"checkpoint {checkpoint} is damaged ({damage}); {then}")
        return None


def _check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Raise OSError for a tensor that is not; by NumPy, since torch's threads disturb a step's."""
    for name, value in tensors.items():
        known = value.float() if value.dtype == torch.bfloat16 else value
        if known.is_floating_point() and not np.isfinite(known.numpy()).all():
            raise OSError(f"{name} has invalid values (NaN or infinite)")
