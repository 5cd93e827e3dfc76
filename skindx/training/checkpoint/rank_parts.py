"""The ranks' parts of a checkpoint until it has its name; each rank answers for its by a file.

Threads write them, which must not take part in the collectives of their training.

.writing/rank-1.json    empty: at work; else the part's files, or why there are none;
                        gone: it failed, and not even the reason could be written
"""

import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from skindx.core.atomic_files import flush, sha256_file, write_json
from skindx.training.checkpoint.saved_state import SplitState, write_state

SHARED = "shared"

_WRITING, _POLL_S = ".writing", 0.01

CANNOT_WRITE = (OSError, SafetensorError)
"""What a full disk raises: safetensors wraps the system's error."""

Files = dict[str, Any]
"""File of a checkpoint -> its hash and size."""


class NotSavedError(Exception):
    """A checkpoint that some rank could not write."""


def rank_folder(rank: int) -> str:
    """Return where a rank's part lies in a checkpoint."""
    return f"rank-{rank}"


def writing(folder: Path, number: int = 0) -> Path:
    """Return where the ranks of a group write a checkpoint before it gets its name."""
    return folder / (f"{_WRITING}-{number}" if number else _WRITING)


def begin(folder: Path, ranks: int = 1, number: int = 0) -> None:
    """Make an empty folder for the ranks to write into; remains of a killed save go.

    A lost rank that comes to itself writes on where the groups before this one wrote.
    """
    temporary = writing(folder, number)
    before = [writing(folder, other) for other in range(number + 1)]
    for other in folder.glob(f"{_WRITING}*") if number < 2 else before:
        if other.exists():
            shutil.rmtree(other)
    temporary.mkdir(parents=True)
    for rank in range(1, ranks):
        _answer(temporary, rank).touch()


def write_part(temporary: Path, parts: Mapping[str, SplitState]) -> Files:
    """Write one rank's parts by their folders, and return each file's hash and size."""
    files = {}
    for name, state in parts.items():
        write_state(temporary / name, state)
        for file in sorted((temporary / name).iterdir()):
            flush(file)
            files[f"{name}/{file.name}"] = {
                "sha256": sha256_file(file),
                "bytes": file.stat().st_size,
            }
        flush(temporary / name)
    return files


def answer_with(temporary: Path, rank: int, work: Callable[[], Files]) -> str:
    """Let a rank that is not the main one do its part, and say so; return why it could not."""
    answer, reason = _answer(temporary, rank), "it failed"
    try:
        try:
            files, reason = work(), ""
        except CANNOT_WRITE as error:
            files, reason = {}, words_of(error)
            shutil.rmtree(temporary / rank_folder(rank), ignore_errors=True)  # room for the answer
        write_json(answer, {"files": files, "problem": reason})
    except OSError as error:
        answer.unlink(missing_ok=True)
        reason = reason or words_of(error)
    except BaseException:
        answer.unlink(missing_ok=True)
        raise
    return reason


def collect(temporary: Path, ranks: int, enough: Callable[[], bool]) -> Files:
    """Wait for the parts of the other ranks and return their files, on the main one.

    Raises NotSavedError for a part that is not there, or not yet when it is `enough`.
    """
    files: Files = {}
    problem = ""
    for rank in range(1, ranks):
        answer = _answer(temporary, rank)
        try:
            while not (text := answer.read_text(encoding="utf-8")) and not enough():
                time.sleep(_POLL_S)
            part = json.loads(text or '{"problem": "it has not answered in time"}')
            answer.unlink()
        except (OSError, ValueError):
            part = {"problem": "it could not write"}
        if part["problem"]:
            problem = problem or f"rank {rank}: {part['problem']}"
        else:
            files |= part["files"]
    if problem:
        raise NotSavedError(problem)
    return files


def abandon(folder: Path, number: int = 0) -> None:
    """Remove what was written of a checkpoint that cannot be finished."""
    shutil.rmtree(writing(folder, number), ignore_errors=True)


def words_of(error: Exception) -> str:
    """Return an error's text on one line."""
    return " ".join(str(error).split())


def _answer(temporary: Path, rank: int) -> Path:
    return temporary / f"{rank_folder(rank)}.json"
