"""Start the ranks of one machine.

`python -m skindx.training.launching.local IMPORTS RANKS PORT MODULE ARGUMENTS` imports modules,
whose names commas separate, and forks the ranks. With `-` in their place it imports nothing heavy,
and each rank is a new process, as a GPU needs. DeepSpeed's launcher, which starts the ranks of
several machines, imports all of DeepSpeed in two processes before the first rank begins.

With `--elastic=MIN_RANKS,TIMEOUT_S` before IMPORTS a rank that dies is started again while the
others go on. The first of ARGUMENTS is then the run, in which each rank notes its end.
"""

import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from skindx.core.child_python import child_environment, python_command
from skindx.training.launching.supervise import LIFELINE, RANKS, TOO_FEW, read_notes
from skindx.workers.forked_module import ForkContext, ForkedModule, import_once
from skindx.workers.worker_process import leave_process

ADDRESS = "127.0.0.1"
_POLL_S = 0.05
_GRACE_S = 30.0
"""A rank that was asked to end by SIGTERM is killed after this time."""

NO_IMPORTS = "-"
AS_ELASTIC = "--elastic="

Rank = subprocess.Popen[bytes] | ForkedModule


def main(arguments: list[str]) -> int:
    """Run `python -m MODULE ARGUMENTS` for each rank; return 0, or the code of the first failure.

    When one rank fails, and on SIGTERM and SIGINT, the others get SIGTERM and 30 s to end.
    """
    elastic = arguments[0].startswith(AS_ELASTIC)
    limits = arguments[0].removeprefix(AS_ELASTIC).split(",")
    imports, ranks, port, module, *rest = arguments[elastic:]
    address = os.environ.get("MASTER_ADDR", ADDRESS) if elastic else ADDRESS
    world = {"MASTER_ADDR": address, "MASTER_PORT": port, "WORLD_SIZE": ranks, "LOCAL_SIZE": ranks}
    running: list[Rank] = []

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(_shell_code(_end(running) or 1))

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    if imports != NO_IMPORTS:
        import_once(imports.split(","))
    start = partial(_start, world, module, rest, forks=imports != NO_IMPORTS)
    running.extend(map(start, range(int(ranks))))
    if elastic:
        notes = Path(rest[0]) / RANKS
        return ElasticRanks(running, start, int(limits[0]), float(limits[1]), notes).run()
    while any(process.poll() is None for process in running):
        if code := _failed(running):
            _end(running)
            return code
        time.sleep(_POLL_S)
    return _failed(running)


def _start(
    world: Mapping[str, str], module: str, arguments: Sequence[str], rank: int, *, forks: bool
) -> Rank:
    place = {**world, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    if forks:
        return ForkedModule(module, arguments, ForkContext(place))
    command = python_command("-u", "-m", module, *arguments)
    return subprocess.Popen(command, env=child_environment(place))


_PAUSES_S = 1.0, 60.0
"""Before a rank is started again: the first, and the longest, to which it doubles."""
_AT_ONCE_S = 30.0
"""A rank that lives shorter than this has died at once, and the pause doubles."""
_REFUSED = 2
_ASKED = (-signal.SIGTERM, 128 + signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGINT)
"""How a rank ends that was asked to before it listened."""


@dataclass
class _Slot:
    """What becomes of a rank's number: its process now, or the next one's beginning."""

    started: float
    pause_s: float = 0.0
    again: float | None = None
    """When it is started again; none: its process runs, infinity: it is not."""


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
                _end(self._running)
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


def _failed(processes: list[Rank]) -> int:
    codes = (process.poll() for process in processes)
    return next((code for code in codes if code), 0)


def _end(processes: list[Rank]) -> int:
    """End what still runs; return the code of the first process that failed before."""
    code = _failed(processes)
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + _GRACE_S
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()
    return code


def _shell_code(code: int) -> int:
    """Return the code that a shell gives to a process, also to one that a signal ended."""
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
    except SystemExit as end:
        status = int(end.code or 0)
    leave_process(_shell_code(status))
