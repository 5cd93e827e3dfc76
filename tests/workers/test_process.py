"""Processes of `multiprocessing` do not outlive a parent that is killed."""

import subprocess
import sys
import time
from pathlib import Path

CODE = """
import sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from skindx.workers.worker_process import exit_with_parent_process

if __name__ == "__main__":
    pool = ProcessPoolExecutor(2, get_context("spawn"), initializer=exit_with_parent_process)
    for _ in range(2):
        pool.submit(time.sleep, 600)
    while len(pool._processes) < 2:
        time.sleep(0.01)
    print(*pool._processes, flush=True)
    time.sleep(600)
"""


def test_a_pool_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "pool.py"
    script.write_text(CODE)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        children = process.stdout.readline().split()
        process.kill()
    assert len(children) == 2
    deadline = time.monotonic() + 60
    while any(_runs(child) for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _runs(process: str) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
