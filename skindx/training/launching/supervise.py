"""Supervises a launcher and its ranks: passes a stop on, says who died, leaves no process."""

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from skindx.core.errors import JobError, UserError
from skindx.training.launching.notes import STOP, Note, clear_notes, read_notes
from skindx.training.launching.stopping import ECHO_S, LIFELINE, StoppedError

_POLL_S = 0.1

_SPARE_S = 5.0
"""Ranks end themselves after the grace time; so much later they are killed."""


def supervise(
    command: list[str],
    environment: dict[str, str],
    notes: Path,
    grace_s: float,
    *,
    local: bool,
    ranks: int | None = None,
) -> None:
    """Run a launcher and its ranks to the end; none of them outlives the call.

    On SIGTERM and SIGINT the ranks are asked to save and stop, on a second one they are killed.
    `local` ranks are asked through their standard input, others by a file among the `notes`.
    `ranks` is how many are expected, where that is known: one that leaves no note is missed.
    Raises StoppedError (KeyboardInterrupt after SIGINT) when they stopped, UserError when a rank
    refused (it printed the sentence), JobError when one failed or died.
    """
    clear_notes(notes)
    lifeline = _Lifeline() if local else None
    if lifeline:
        environment = {**environment, LIFELINE: "1"}
    # A session of its own: Ctrl-C comes to this process alone, and all can be ended together.
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=lifeline.theirs if lifeline else None,
        start_new_session=True,
    )
    ask = lifeline.cut if lifeline else (notes / STOP).touch
    with _signals() as received:
        try:
            _wait(process, received, ask, grace_s)
        finally:
            _end(process, ask, grace_s)
    found = read_notes(notes)
    shutil.rmtree(notes, ignore_errors=True)
    _raise_error(process.returncode, found, received, ranks)


class _Lifeline:
    """A pipe that is the standard input of every rank; closing it asks the ranks to stop."""

    def __init__(self) -> None:
        self.theirs, self._ours = os.pipe()

    def cut(self) -> None:
        """Ask the ranks to stop."""
        for descriptor in (self.theirs, self._ours):
            if descriptor >= 0:
                os.close(descriptor)
        self.theirs = self._ours = -1


@contextmanager
def _signals() -> Iterator[list[tuple[int, float]]]:
    """Collect (signal, when) instead of dying of signals; only the main thread can."""
    received: list[tuple[int, float]] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def note(number: int, frame: FrameType | None) -> None:
        received.append((number, time.monotonic()))

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(
    process: subprocess.Popen[bytes],
    received: list[tuple[int, float]],
    ask: Callable[[], None],
    grace_s: float,
) -> None:
    """Wait for the launcher's end, or for a reason to end it."""
    while process.poll() is None:
        time.sleep(_POLL_S)
        if not received:
            continue
        ask()
        asked_at = received[0][1]
        again = received[-1][1] - asked_at > ECHO_S
        if again or time.monotonic() - asked_at > grace_s + _SPARE_S:
            return


def _end(process: subprocess.Popen[bytes], ask: Callable[[], None], grace_s: float) -> None:
    """Kill what is left; ranks whose launcher is gone may still save before."""
    if process.poll() is not None:
        ask()
        deadline = time.monotonic() + grace_s + _SPARE_S
        while _members(process.pid) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
    if _members(process.pid):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    # Ranks are not our children, and one that holds much memory takes a moment to die.
    deadline = time.monotonic() + _SPARE_S
    while _members(process.pid) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _members(group: int) -> list[int]:
    """Return the living processes of a process group."""
    import psutil

    found = []
    for process in psutil.process_iter(["status"]):
        try:
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except ProcessLookupError:
            continue
    return found


def _raise_error(
    code: int, notes: list[Note], received: list[tuple[int, float]], ranks: int | None
) -> None:
    """Raise the error that the notes, the launcher's exit code and the signals show."""
    endings = {note.ending for note in notes}
    if "refused" in endings:
        raise UserError("training stopped; see the error above.")
    if failed := [note for note in notes if note.ending == "failed"]:
        raise JobError(f"{_names(failed)} failed; see its error above")
    if received:
        if received[0][0] == signal.SIGINT:
            raise KeyboardInterrupt
        where = next((note.words for note in notes if note.words), "the last checkpoint stands")
        raise StoppedError(where, signal.Signals(received[0][0]).name)
    if stopped := [note for note in notes if note.ending == "stopped"]:
        raise StoppedError(stopped[0].words, _why(notes))
    missing = set(range(ranks or 0)) - {note.rank for note in notes}
    if code and missing and (notes or code < 0):
        numbers = " and ".join(f"rank {rank}" for rank in sorted(missing))
        raise JobError(
            f"{numbers} ended before it began to train (it was killed, if there is no "
            "error of it above); run the same command again"
        )
    # A launcher ends the other ranks when one is gone: one that was asked to stop did not go first.
    silent = [note for note in notes if note.ending == "at work"]
    silent = silent or [note for note in notes if note.ending == "asked to stop"]
    if silent:
        raise JobError(
            f"{_names(silent)} was killed (not by an error of its own; out of memory is the most "
            "common reason), and the others ended; run the same command again to go on from the "
            "last checkpoint, or from the start where there is none"
        )
    if code:
        raise JobError(f"a rank ended with code {code}; see its error above")


def _why(notes: list[Note]) -> str:
    """Say which ranks were asked to stop, and by what."""
    return " and ".join(f"{note.why} to rank {note.rank}" for note in notes if note.why)


def _names(notes: list[Note]) -> str:
    return " and ".join(f"rank {note.rank} (process {note.pid} on {note.host})" for note in notes)
