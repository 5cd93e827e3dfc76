"""`skindx serve` as a process, and the processor time that it and its workers use."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from skindx.errors import JobError


@dataclass(frozen=True)
class Server:
    """A running server."""

    url: str
    pid: int

    def processes(self) -> list[int]:
        """Return the server's process and all below it."""
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


@contextmanager
def running(bundle: Path, *arguments: str) -> Iterator[Server]:
    """Start `skindx serve BUNDLE` on a free port and wait for it; it is over at the end.

    Raises JobError when it does not start.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "skindx", "serve", str(bundle), "--port", str(port)]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if "skindx is at" not in process.stdout.readline():
                raise JobError("`skindx serve` did not start; see its error above")
            yield Server(f"http://127.0.0.1:{port}", process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            _wait(process)


def _wait(process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    if process.poll() is None:
        process.kill()


def _stat(pid: int) -> list[str] | None:
    """Return a process' fields after its name (proc(5)): state, parent, ..; None when it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
