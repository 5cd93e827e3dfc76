"""Looks on while child processes work: how large they get, and what they have loaded."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self


class Watch:
    """Follows descendants of this process that start meanwhile and run one of some modules."""

    def __init__(self, *names: str) -> None:
        self.peak_mb: dict[tuple[int, str], float] = {}
        """(process, module) -> largest resident memory it ever had, 10^6 bytes."""
        self.parents: dict[int, int] = {}
        self.with_torch: set[int] = set()
        self._names = names
        self._earlier: set[int] = set()
        """Decoders of an earlier test may not have ended yet."""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._earlier = set(descendants(os.getpid()))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ending.wait(0.05):
            for pid in set(descendants(os.getpid())) - self._earlier:
                with suppress(OSError):  # it has ended meanwhile
                    self._note(pid)

    def _note(self, pid: int) -> None:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        status = Path(f"/proc/{pid}/status").read_text()
        fields = {
            name: text for name, _, text in (line.partition(":") for line in status.split("\n"))
        }
        for name in self._names:
            if name in arguments and "VmHWM" in fields:
                self.peak_mb[pid, name] = int(fields["VmHWM"].split()[0]) * 1024 / 1e6
                self.parents[pid] = int(fields["PPid"])
                if "libtorch" in Path(f"/proc/{pid}/maps").read_text():
                    self.with_torch.add(pid)


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes below a process."""
    with suppress(OSError):
        for task in list(Path(f"/proc/{pid}/task").iterdir()):
            with suppress(OSError):  # a thread that ends takes none of the others' children along
                for child in (task / "children").read_text().split():
                    yield int(child)
                    yield from descendants(int(child))


def reader_of(fifo: Path) -> tuple[int, int]:
    """Wait for a decoder that reads the pipe; return it and our writing end, which keeps it."""
    while True:
        try:
            writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
            break
        except OSError:  # nobody reads yet
            time.sleep(0.01)
    while True:
        for pid in descendants(os.getpid()):
            if str(fifo) in opened_by(pid):
                return pid, writer


def on_each_reader(fifo: Path, *acts: signal.Signals | bytes) -> threading.Thread:
    """Kill or feed one decoder after the other that reads the pipe."""

    def wait() -> None:
        for act in acts:
            pid, writer = reader_of(fifo)
            if isinstance(act, bytes):
                os.write(writer, act)
            else:
                os.kill(pid, act)
                while str(fifo) in opened_by(pid):
                    time.sleep(0.01)
            os.close(writer)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def opened_by(pid: int) -> list[str]:
    """Return the files that a process has open."""
    try:
        return [str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return []
