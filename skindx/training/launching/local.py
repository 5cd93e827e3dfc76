"""Start the ranks of one machine.

`python -m skindx.training.launching.local RANKS PORT MODULE ARGUMENTS` imports nothing heavy.
DeepSpeed's launcher, which starts the ranks of several machines, imports all of DeepSpeed in two
processes before the first rank begins.
"""

import os
import signal
import subprocess
import sys
import time
from types import FrameType

ADDRESS = "127.0.0.1"
_POLL_S = 0.05
_GRACE_S = 30.0
"""A rank that was asked to end by SIGTERM is killed after this time."""


def main(arguments: list[str]) -> int:
    """Run `python -m MODULE ARGUMENTS` for each rank; return 0, or the code of the first failure.

    When one rank fails, and on SIGTERM and SIGINT, the others get SIGTERM and 30 s to end.
    """
    ranks, port, module, *rest = arguments
    world = {"MASTER_ADDR": ADDRESS, "MASTER_PORT": port, "WORLD_SIZE": ranks, "LOCAL_SIZE": ranks}
    command = [sys.executable, "-u", "-m", module, *rest]
    running: list[subprocess.Popen[bytes]] = []

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(_shell_code(_end(running) or 1))

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    for rank in range(int(ranks)):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        running.append(subprocess.Popen(command, env=os.environ | world | place))
    while any(process.poll() is None for process in running):
        if code := _failed(running):
            _end(running)
            return code
        time.sleep(_POLL_S)
    return _failed(running)


def _failed(processes: list[subprocess.Popen[bytes]]) -> int:
    return next((process.returncode for process in processes if process.poll()), 0)


def _end(processes: list[subprocess.Popen[bytes]]) -> int:
    """End what still runs; return the code of the first process that failed before."""
    code = _failed(processes)
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + _GRACE_S
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()
    return code


def _shell_code(code: int) -> int:
    """Return the code that a shell gives to a process, also to one that a signal ended."""
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(_shell_code(main(sys.argv[1:])))
