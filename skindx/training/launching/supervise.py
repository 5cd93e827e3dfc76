"""A launcher and its ranks: forwards a stop, reports dead ranks, terminates the rest.

A rank is asked to stop by SIGTERM, SIGINT, a file, or the end of the process that started it. Each
rank notes its own end: one that was killed is known by its missing note.
"""

import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Literal, Protocol, Self

from skindx.core.atomic_files import write_json
from skindx.core.errors import JobError, UserError

RANKS = "ranks"
STOP = "stop"

WORKER = "SKINDX_WORKER"
"""Set for a worker that trains alone: its number among the others, since its rank is 0."""

Ending = Literal["at work", "asked to stop", "stopped", "finished", "refused", "failed", "left"]
"""`refused`: an error of the user; `left`: another rank was gone. The first two are no end."""


@dataclass(frozen=True)
class Note:
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


LIFELINE = "SKINDX_LIFELINE"
"""Set for ranks whose standard input ends when the process that started the job ends, or stops it.

This reaches a rank through any number of launchers, even when those were killed.
"""

ECHO_S = 2.0
"""Seconds within which a launcher's repeat of a signal that its ranks got too is the same one."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


class StoppedError(Exception):
    """The training was asked to stop and has saved what it did; the text says where it stands.

    `why` names what asked: a signal, or whatever else ended it before its last epoch.
    """

    def __init__(self, where: str, why: str = "") -> None:
        super().__init__(where)
        self.why = why

    @property
    def code(self) -> int:
        """The exit code by which a shell names a process that a signal ended: 143 for SIGTERM."""
        interrupted = self.why.startswith(signal.SIGINT.name)
        return 128 + (signal.SIGINT if interrupted else signal.SIGTERM)

    @property
    def rank_code(self) -> int:
        """The exit code of a rank that has stopped: 0, since all others have stopped as well."""
        return 0


def end_with_parent(how: signal.Signals = signal.SIGTERM) -> None:
    """Ask the kernel for a signal to this process when the one that started it ends (Linux)."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(how))
    except (OSError, AttributeError):
        return


class Stop(Protocol):
    """The request to stop that a training polls between its steps."""

    @property
    def requested(self) -> bool:
        """Whether the training is to save and stop."""

    def done(self) -> None:
        """Note that all is saved, so that further signals are ignored."""


class StopRequest:
    """Notices a request to stop at once, whatever the main thread is waiting for.

    The training looks at `requested` between its steps. A second signal, or a stop that takes
    longer than the grace time, ends the process.
    """

    def __init__(self, grace_s: float, notes: Path | None = None) -> None:
        """Listen from `with` on; a file among the ranks' `notes` asks to stop as well."""
        self.requested, self.why = False, ""
        self.reasons: list[str] = []
        """Everything that asked for a stop; `why` came first."""
        self._grace_s, self._notes = grace_s, notes
        self._requested_at = 0.0
        self._done = False

    def __enter__(self) -> Self:
        self._ours, theirs = os.pipe()
        os.set_blocking(theirs, False)
        self._wake = theirs
        # Python's own handlers wait for the main thread, which may be inside a collective.
        self._before = {number: signal.signal(number, _nothing) for number in _SIGNALS}
        self._wakeup_before = signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, name="skindx-stop", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.write(self._wake, b"\0")
        self._thread.join()
        os.close(self._wake)
        os.close(self._ours)

    def ask(self, why: str) -> None:
        """Request a stop; `why` names what asked for it."""
        self.reasons.append(why)
        if not self.requested:
            self.why = why
            # The note first: the next one is written as soon as `requested` is true, and must stay.
            if self._notes:
                write_note(self._notes, "asked to stop", why=why)
            self._requested_at, self.requested = time.monotonic(), True

    def done(self) -> None:
        """Note that all is saved, so that further signals are ignored."""
        self._done = True

    def _listen(self) -> None:
        sources = [self._ours] + ([0] if os.environ.get(LIFELINE) else [])
        while True:
            ready, _, _ = select.select(sources, [], [], 0.5)
            if 0 in ready and not os.read(0, 1):
                sources.remove(0)
                self.ask("the end of the process that started the ranks")
            for number in os.read(self._ours, 64) if self._ours in ready else b"":
                if number == 0:
                    return
                self._on_signal(number)
            if self._notes and not self.requested and (self._notes / STOP).exists():
                self.ask(f"the file {self._notes / STOP}")
            self._watch_the_clock()

    def _on_signal(self, number: int) -> None:
        if number not in _SIGNALS or self._done:
            return
        if self.requested and time.monotonic() - self._requested_at > ECHO_S:
            os._exit(128 + number)
        self.ask(signal.Signals(number).name)

    def _watch_the_clock(self) -> None:
        if (
            not self.requested
            or self._done
            or time.monotonic() - self._requested_at < self._grace_s
        ):
            return
        rank = os.environ.get("RANK", "0")
        print(
            f"rank {rank} could not save in the {self._grace_s:g} s of checkpoint.grace_s; "
            "the last checkpoint stands",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Stand in for a handler: the listening thread reads the signal's number."""


_POLL_S = 0.1

_SPARE_S = 5.0
"""Seconds after the grace time, in which ranks end themselves, until they are killed."""


Deciding = Callable[[int, list[Note]], list[Note]]
"""Takes a launcher's exit code and all notes; may raise what `supervise` raises."""


def supervise(
    command: list[str],
    environment: dict[str, str],
    notes: Path,
    grace_s: float,
    *,
    local: bool,
    ranks: int | None = None,
    deciding: Deciding | None = None,
) -> None:
    """Run a launcher and its ranks to the end; none of them outlives the call.

    On SIGTERM and SIGINT the ranks are asked to save and stop, on a second one they are killed.
    `local` ranks are asked through their standard input, others by a file among the `notes`.
    `ranks` is how many are expected, where that is known: one that leaves no note is missed.
    `deciding` chooses the notes that tell how the job ended, where ranks may die before.
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
    result = read_notes(notes)
    shutil.rmtree(notes, ignore_errors=True)
    if deciding:
        result = deciding(process.returncode, result)
    _raise_error(process.returncode, result, received, ranks)


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
        requested_at = received[0][1]
        again = received[-1][1] - requested_at > ECHO_S
        if again or time.monotonic() - requested_at > grace_s + _SPARE_S:
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

    result = []
    for process in psutil.process_iter(["status"]):
        try:
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                result.append(process.pid)
        except ProcessLookupError:
            continue
    return result


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
        why = " and ".join(f"{note.why} to rank {note.rank}" for note in notes if note.why)
        raise StoppedError(stopped[0].words, why)
    missing = set(range(ranks or 0)) - {note.rank for note in notes}
    if code and missing and (notes or code < 0):
        numbers = " and ".join(f"rank {rank}" for rank in sorted(missing))
        raise JobError(
            f"{numbers} stopped before training began; read its error above (without one, the "
            "process was killed), and run the same command again"
        )
    # A launcher ends the other ranks when one is gone: one that was asked to stop did not go first.
    silent = [note for note in notes if note.ending == "at work"]
    silent = silent or [note for note in notes if note.ending == "asked to stop"]
    if silent:
        raise JobError(
            f"{_names(silent)} was killed from outside, most often because memory ran out, and "
            "all ranks stopped; run the same command again to continue from the last checkpoint, "
            "or from the start if there is none"
        )
    if code:
        raise JobError(f"a rank stopped with exit code {code}; read its error above")


def _names(notes: list[Note]) -> str:
    return " and ".join(f"rank {note.rank} (process {note.pid} on {note.host})" for note in notes)
