"""The side of a rank that a bench commands: how it ends."""

import subprocess
import sys

import pytest

_RANK = """
import threading, time
from pathlib import Path
from types import SimpleNamespace
from skindx_bench.harness.answering import answer_commands
from skindx.core.errors import UserError

def first(**words):
    return {"score": int(Path("/proc/self/oom_score_adj").read_text())}

def refuse():
    raise UserError("this cannot be.")

def fail():
    raise KeyError("lost")

threading.Thread(target=time.sleep, args=(600,)).start()  # would hold an exit up
answer_commands(lambda job: SimpleNamespace(first=first, refuse=refuse, fail=fail))
"""


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [("refuse", 2, "error: this cannot be."), ("fail", 1, "KeyError: 'lost'"), (None, 0, "")],
)
def test_a_rank_answers_and_ends_with_its_error(command: str | None, code: int, words: str) -> None:
    lines = ["{}", '{"do": "first"}', *([f'{{"do": "{command}"}}'] if command else [])]
    done = subprocess.run(
        [sys.executable, "-c", _RANK],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == code
    assert words in done.stderr
    # Where memory runs out, the rank goes and the bench stays to say so.
    assert done.stdout.splitlines() == ['{"score": 500}']
