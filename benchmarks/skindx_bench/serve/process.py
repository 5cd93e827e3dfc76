"""`skindx serve` as a process."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from skindx.core.errors import JobError
from skindx_bench.harness.processes import ProcessTree


@dataclass(frozen=True)
class Server(ProcessTree):
    """A running server."""

    url: str


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
            yield Server(process.pid, f"http://127.0.0.1:{port}")
        finally:
            process.send_signal(signal.SIGTERM)
            _wait(process)


def _wait(process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    if process.poll() is None:
        process.kill()
