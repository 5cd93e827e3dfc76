"""Starts the ranks of one machine, and each again that dies while the others go on.

`python -m skindx_methods.elastic.restarts MIN_RANKS,TIMEOUT_S IMPORTS RANKS PORT MODULE RUN …` is
`skindx.training.launching.local` otherwise; in RUN each rank notes its end.
"""

import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from skindx.core.errors import JobError
from skindx.training.launching.local import ADDRESS, Rank, end_ranks, run_launcher, start_ranks
from skindx.training.launching.supervise import LIFELINE, RANKS, Note, read_notes

_POLL_S = 0.05

TOO_FEW = 75
"""Exit code where too few ranks were alive for too long (EX_TEMPFAIL of sysexits.h)."""


def main(arguments: list[str]) -> int:
    """Run the ranks until the run is over; return the exit code of `ElasticRanks.run`."""
    min_ranks, timeout_s = arguments[0].split(",")
    run = Path(arguments[5])
    address = os.environ.get("MASTER_ADDR", ADDRESS)
    running, start = start_ranks(arguments[1:], address)
    return ElasticRanks(running, start, int(min_ranks), float(timeout_s), run / RANKS).run()


def deciding(code: int, notes: list[Note]) -> list[Note]:
    """Return the notes that tell how a run ended: those of the ranks that saw its end.

    All, where none did. Raises JobError where too few ranks were alive.
    """
    if code == TOO_FEW:
        raise JobError(
            "fewer ranks than engine.elastic.min_ranks were alive for engine.timeout_s; read "
            "their errors above, then run the same command again, which continues from the last "
            "checkpoint"
        )
    for ending in ("finished", "stopped"):
        if code == 0 and (result := [note for note in notes if note.ending == ending]):
            return result
    return notes


_PAUSES_S = 1.0, 60.0
"""First pause in seconds before a rank is started again; it doubles up to the second value."""
_AT_ONCE_S = 30.0
"""Lifetime in seconds below which a rank has died at once, and the pause doubles."""
_REFUSED = 2
_ASKED = (-signal.SIGTERM, 128 + signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGINT)
"""Exit codes of a rank that was asked to stop before it listened for signals."""


@dataclass
class _Slot:
    """What becomes of a rank's number: its process now, or the next one's beginning."""

    started: float
    pause_s: float = 0.0
    again: float | None = None
    """Time when it is started again; None: its process runs; infinity: never."""


class ElasticRanks:
    """Starts ranks again that die, while the others go on.

    Not those that ended by themselves, refused or were asked to stop, nor any when the run is to
    stop or one rank has finished it.
    """

    def __init__(
        self,
        running: list[Rank],
        start: Callable[[int], Rank],
        min_ranks: int,
        timeout_s: float,
        notes: Path,
    ) -> None:
        """Take over the ranks that are `running`; `start` starts one again in its place there.

        With less than `min_ranks` alive for `timeout_s` the run ends.
        """
        self._running, self._start, self._notes = running, start, notes
        self._min_ranks, self._timeout_s = min(min_ranks, len(running)), timeout_s
        self._slots = [_Slot(time.monotonic()) for _ in running]
        self._over = False

    def run(self) -> int:
        """Return 0 when the run is over or its last rank ended by itself, else how that one died.

        TOO_FEW: less than `min_ranks` were alive for too long.
        """
        enough, code = time.monotonic(), 0
        while True:
            now = time.monotonic()
            self._over = self._over or _cut_off()
            for rank, slot in enumerate(self._slots):
                ended = self._running[rank].poll() if slot.again is None else None
                if ended is not None:
                    code, slot.again = ended, self._again(rank, slot, ended, now)
            living = [slot for slot in self._slots if slot.again is None]
            if not living:
                return 0 if self._over else code
            if len(living) >= self._min_ranks or self._over:
                enough = now
            elif now - enough > self._timeout_s:
                end_ranks(self._running)
                return TOO_FEW
            for rank, slot in enumerate(self._slots):
                if slot.again is not None and slot.again <= now and not self._over:
                    self._running[rank] = self._start(rank)
                    slot.started, slot.again = now, None
            time.sleep(_POLL_S)

    def _again(self, rank: int, slot: _Slot, code: int, now: float) -> float:
        """Return when a rank that has ended is started again, and say why it ended."""
        if code == 0:
            note = next((note for note in read_notes(self._notes) if note.rank == rank), None)
            self._over = self._over or (note is not None and note.ending == "finished")
        if code in (0, _REFUSED, *_ASKED) or self._over:
            return math.inf
        first, longest = _PAUSES_S
        at_once = now - slot.started < _AT_ONCE_S
        slot.pause_s = min(longest, 2 * slot.pause_s) if at_once and slot.pause_s else first
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else "failed"
        print(
            f"rank {rank} (process {self._running[rank].pid}) {how}; the others go on, and it is "
            f"started again in {slot.pause_s:g} s",
            file=sys.stderr,
            flush=True,
        )
        return now + slot.pause_s


def _cut_off() -> bool:
    """Tell whether the process that started this one has ended, or asks all ranks to stop."""
    if not os.environ.get(LIFELINE):
        return False
    ready, _, _ = select.select([0], [], [], 0)
    return bool(ready) and not os.read(0, 1)


if __name__ == "__main__":
    run_launcher(main)
