"""One page of the annotator in a process of its own, under the network guard."""

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
def annotating(serve: str, folder: Path, dataset: Path, by: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the address and the lines that the process printed, which are complete at the end.

    `serve` is a function of skindx.ui.annotator.annotator_server, `folder` where the process runs.
    """
    port = free_port()
    code = "from skindx.core.startup import collect_rarely; collect_rarely()\n"
    code += "import sys; from pathlib import Path; "
    code += f"from skindx.ui.annotator.annotator_server import {serve}\n"
    code += f"{serve}(Path(sys.argv[1]), sys.argv[2], port=int(sys.argv[3]))"
    lines: list[str] = []
    with (folder / "stdout").open("w") as stdout, (folder / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", code, dataset, by, str(port)],
            env=guarded_environment(folder),
            cwd=folder,
            stdout=stdout,
            stderr=stderr,
        )
        try:
            deadline = time.monotonic() + 120
            while "annotate is at" not in (folder / "stdout").read_text():
                assert process.poll() is None, (folder / "stderr").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}", lines
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)
    assert process.returncode == 0, (folder / "stderr").read_text()
    lines += (folder / "stdout").read_text().splitlines()
    assert len(lines) == 2, lines  # Gradio adds no line of its own
    assert lines[0].startswith("skindx annotate is at ")
    assert calls_in(folder) == []
    assert not list(folder.glob("skindx-uploads-*"))
