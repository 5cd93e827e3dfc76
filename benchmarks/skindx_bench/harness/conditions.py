"""What else the machine did during a measurement: clock, load of others, a process tree's use."""

import ctypes
import os
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from skindx.core.machine import cpu_count

_PR_SET_CHILD_SUBREAPER = 36  # <sys/prctl.h>


@dataclass(frozen=True)
class ProcessTree:
    """A process and all below it."""

    pid: int

    def processes(self) -> list[int]:
        """Return the numbers of all processes."""
        children: dict[int, list[int]] = defaultdict(list)
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (fields := _stat(int(entry.name))):
                children[int(fields[1])].append(int(entry.name))
        found = [self.pid]
        for pid in found:
            found += children[pid]
        return found

    def cpu_s(self) -> float:
        """Return the seconds of processor time of all its processes, ended children included."""
        ticks = sum(
            sum(map(int, fields[11:15])) for pid in self.processes() if (fields := _stat(pid))
        )
        return ticks / os.sysconf("SC_CLK_TCK")

    def memory_bytes(self) -> int:
        """Return the memory of all its processes, what they share counted once (PSS)."""
        total = 0
        for pid in self.processes():
            try:
                text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            except OSError:  # it has just ended
                continue
            total += sum(
                int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:")
            )
        return total


def adopt_orphans(adopt: bool) -> None:
    """Become the parent of what ended children leave behind, or leave that to the system again.

    A fork server of ranks outlives the bench that started it, and the system's first process would
    take its seconds over. Linux alone can do this; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)


def _stat(pid: int) -> list[str] | None:
    """Return a process' fields after its name (proc(5)): state, parent, ..; None when it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


_EVERY_S = 0.2
_DRIFT = 0.05
"""A clock that changes by more between the first and the last third of a run has drifted."""
_NOISE = 0.05
"""Share of the cores' time that others may take before a run is marked as noisy."""

_CPUS = Path("/sys/devices/system/cpu")
_CPUINFO = Path("/proc/cpuinfo")
_STAT = Path("/proc/stat")


class Conditions:
    """Samples the clock while it is entered, and tells how busy other processes were.

    `clock_mhz` returns None where no clock can be read, `busy_s` the processor seconds that the
    whole machine has used, `own_s` those of this process and its children.
    """

    def __init__(
        self,
        clock_mhz: Callable[[], float | None] | None = None,
        busy_s: Callable[[], float | None] | None = None,
        own_s: Callable[[], float] | None = None,
        every_s: float = _EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock_mhz = clock_mhz or cpu_mhz
        self._busy_s = busy_s or machine_busy_s
        self._own_s = own_s or ProcessTree(os.getpid()).cpu_s
        self._every_s, self._clock = every_s, clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.samples_mhz: list[float] = []
        self.others_share: float | None = None
        """Share of all cores' time that other processes used; None where it cannot be read."""

    def __enter__(self) -> Self:
        adopt_orphans(True)  # or their seconds would count as those of other processes
        self._start = self._clock(), self._busy_s(), self._own_s()
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()
        began, busy, own = self._start
        now_busy, seconds = self._busy_s(), self._clock() - began
        adopt_orphans(False)
        if busy is not None and now_busy is not None and seconds > 0:
            others = (now_busy - busy) - (self._own_s() - own)
            self.others_share = max(0.0, others / (seconds * (os.cpu_count() or 1)))

    def _watch(self) -> None:
        while not self._stop.wait(self._every_s):
            self._sample()

    def _sample(self) -> None:
        if (mhz := self._clock_mhz()) is not None:
            self.samples_mhz.append(mhz)

    @property
    def marks(self) -> tuple[str, ...]:
        """What makes the figures of this run doubtful: a clock that drifted, other processes."""
        found = []
        if drifted(self.samples_mhz):
            found.append(
                f"the clock drifted, {min(self.samples_mhz):.0f} to {max(self.samples_mhz):.0f} MHz"
            )
        if self.others_share is not None and self.others_share > _NOISE:
            found.append(f"other processes used {100 * self.others_share:.0f} % of the cores' time")
        return tuple(found)

    def as_dict(self) -> Mapping[str, Any]:
        """Return plain values for a JSON file."""
        mhz = self.samples_mhz
        return {
            "clock_mhz": [min(mhz), statistics.median(mhz), max(mhz)] if mhz else None,
            "others_share": self.others_share,
            "marks": list(self.marks),
        }


def drifted(samples_mhz: Sequence[float]) -> bool:
    """Return whether the clock's median changed between the first and the last third."""
    third = len(samples_mhz) // 3
    if third == 0:
        return False
    first = statistics.median(samples_mhz[:third])
    last = statistics.median(samples_mhz[-third:])
    return abs(last - first) > _DRIFT * max(first, last)


def cpu_mhz(cpus: Path = _CPUS, cpuinfo: Path = _CPUINFO) -> float | None:
    """Return the mean clock of the cores, or None where the system does not tell."""
    found = []
    for file in cpus.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"):
        try:
            found.append(int(file.read_text()) / 1e3)
        except (OSError, ValueError):
            continue
    if not found:
        try:
            lines = cpuinfo.read_text().splitlines()
            found = [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
        except (OSError, ValueError):
            return None
    return statistics.fmean(found) if found else None


def machine_busy_s(stat: Path = _STAT) -> float | None:
    """Return processor seconds of all cores that were neither idle nor waiting (proc(5))."""
    try:
        fields = [int(field) for field in stat.read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    ticks = user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK")


def load_now() -> float | None:
    """Return runnable processes a core over the last minute, or None where it is not known."""
    try:
        return os.getloadavg()[0] / cpu_count()
    except OSError:
        return None
