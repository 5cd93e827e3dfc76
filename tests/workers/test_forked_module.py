"""A process forked from one that has imported all, as a module and in a place of its own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import os, sys
from pathlib import Path
from skindx.workers.forked_module import ForkContext, ForkedModule, import_once
import_once(["json", "code_of_test"])
read, write = os.pipe()
stdin, stdout = os.pipe()
place = ForkContext({"WORD": "blue"}, streams=(stdin, write), closed=(read, stdout, stdin, write))
process = ForkedModule("code_of_test", sys.argv[1:], place)
os.close(write)
os.close(stdin)
print(process.pid, flush=True)
print(os.fdopen(read).read(), flush=True)
print(process.wait(60), flush=True)
"""
CODE = """
import os, sys, time
if __name__ == "__main__":
    print(os.environ["WORD"], "json" in sys.modules, *sys.argv[1:], flush=True)
    if sys.argv[1] == "sleep":
        time.sleep(600)
    if sys.argv[1] == "raise":
        1 / 0
    sys.exit({"exit": 7, "words": "no"}.get(sys.argv[1]))
"""


def _start(folder: Path, how: str) -> "subprocess.Popen[str]":
    (folder / "code_of_test.py").write_text(CODE)
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, how],
        env=os.environ | {"PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("how", "code", "error"),
    [
        ("well", 0, ""),
        ("exit", 7, ""),
        ("words", 1, "no\n"),
        ("raise", 1, "ZeroDivisionError: division by zero\n"),
    ],
)
def test_it_ends_as_python_m_would(tmp_path: Path, how: str, code: int, error: str) -> None:
    with _start(tmp_path, how) as process:
        printed, said = process.communicate(timeout=60)
    assert printed.split("\n", 1)[1] == f"blue True {how}\n\n{code}\n"
    assert said.endswith(error)
    assert bool(said) == bool(error)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_is_its_negative_code(tmp_path: Path, number: signal.Signals) -> None:
    with _start(tmp_path, "sleep") as process:
        assert process.stdout
        pid = int(process.stdout.readline())
        deadline = time.monotonic() + 60
        while not Path(f"/proc/{pid}").exists():
            assert time.monotonic() < deadline
        os.kill(pid, number)
        printed, _ = process.communicate(timeout=60)
    assert printed.endswith(f"\n{-number}\n")
