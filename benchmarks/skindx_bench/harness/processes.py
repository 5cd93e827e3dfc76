"""The processor time and the memory of a process and all that it has started."""

import ctypes
import os
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

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
