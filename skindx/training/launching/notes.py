"""Each rank's note about its own end: a rank that was killed is known by its missing note."""

import json
import os
import shutil
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from skindx.core.atomic_files import write_json

RANKS = "ranks"
STOP = "stop"

WORKER = "SKINDX_WORKER"
"""Set for a worker that trains alone: its number among the others, since its rank is 0."""

Ending = Literal["at work", "asked to stop", "stopped", "finished", "refused", "failed", "left"]
"""`refused`: an error of the user; `left`: another rank was gone. The first two are no end."""


@dataclass(frozen=True)
class Note:
    """One rank's note."""

    rank: int
    host: str
    pid: int
    ending: Ending
    words: str = ""
    why: str = ""
    """The cause of this rank's stop."""


def write_note(folder: Path, ending: Ending, words: str = "", why: str = "") -> None:
    """Write or replace this rank's note; a full disk does not matter to it."""
    rank = int(os.environ.get(WORKER) or os.environ.get("RANK", "0"))
    note = Note(rank, socket.gethostname(), os.getpid(), ending, words, why)
    try:
        write_json(folder / f"rank-{rank}.json", asdict(note))
    except OSError:
        return


def read_notes(folder: Path) -> list[Note]:
    """Return all notes, in rank order."""
    notes = []
    for file in folder.glob("rank-*.json"):
        try:
            notes.append(Note(**json.loads(file.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError):
            continue  # a disk that was full
    return sorted(notes, key=lambda note: note.rank)


def clear_notes(folder: Path) -> None:
    """Make an empty folder for the notes of ranks that are about to start."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
