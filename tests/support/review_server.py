"""A running `skindx review`, which calls nobody and ends in order."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from network_guard import calls_in, guarded_environment
from served import free_port


@contextmanager
def review_of(folder: Path, *options: str) -> Iterator[str]:
    """Serve the review of `folder`/data; yield the address that the terminal shows."""
    log = folder / "stdout"
    with log.open("w") as stdout, (folder / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "skindx", "review", "data",
             "--port", str(free_port()), *options],
            env=guarded_environment(folder), cwd=folder, stdout=stdout, stderr=stderr,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 120
            while "Ctrl+C" not in log.read_text():
                assert process.poll() is None, (folder / "stderr").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield re.findall(r"http://\S+", log.read_text())[0]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)
    assert process.returncode == 0, (folder / "stderr").read_text()
    assert "items are answered" in log.read_text()
    assert (folder / "stderr").read_text() == ""
    assert calls_in(folder) == []
