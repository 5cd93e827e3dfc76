"""A rank asked to stop: by SIGTERM, SIGINT, a file, or the end of the process that started it."""

import ctypes
import os
import select
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Protocol, Self

from skindx.training.launching.notes import STOP, write_note

LIFELINE = "SKINDX_LIFELINE"
"""Set for ranks whose standard input ends when the process that started the job ends, or stops it.

This reaches a rank through any number of launchers, even when those were killed.
"""

ECHO_S = 2.0
"""A launcher repeats a signal that its ranks got too: within so long it is the same one."""

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


def end_with_parent(how: signal.Signals = signal.SIGTERM) -> None:
    """Ask the kernel for a signal to this process when the one that started it ends (Linux)."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(how))
    except (OSError, AttributeError):
        return


class Stop(Protocol):
    """The request to stop that a training polls between its steps."""

    @property
    def asked(self) -> bool:
        """It is to save and stop."""

    def done(self) -> None:
        """All is saved: further signals are ignored."""


class StopRequest:
    """Notices a request to stop at once, whatever the main thread is waiting for.

    The training looks at `asked` between its steps. A second signal, or a stop that takes longer
    than the grace time, ends the process.
    """

    def __init__(self, grace_s: float, notes: Path | None = None) -> None:
        """Listen from `with` on; a file among the ranks' `notes` asks to stop as well."""
        self.asked, self.why = False, ""
        self._grace_s, self._notes = grace_s, notes
        self._asked_at = 0.0
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
        if not self.asked:
            self.why = why
            # The note first: the next one is written as soon as `asked` is true, and must stay.
            if self._notes:
                write_note(self._notes, "asked to stop", why=why)
            self._asked_at, self.asked = time.monotonic(), True

    def done(self) -> None:
        """All is saved: further signals are ignored."""
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
            if self._notes and not self.asked and (self._notes / STOP).exists():
                self.ask(f"the file {self._notes / STOP}")
            self._watch_the_clock()

    def _on_signal(self, number: int) -> None:
        if number not in _SIGNALS or self._done:
            return
        if self.asked and time.monotonic() - self._asked_at > ECHO_S:
            os._exit(128 + number)
        self.ask(signal.Signals(number).name)

    def _watch_the_clock(self) -> None:
        if not self.asked or self._done or time.monotonic() - self._asked_at < self._grace_s:
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
