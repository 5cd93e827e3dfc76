"""Start the ranks of one machine.

`python -m skindx.training.launching.local IMPORTS RANKS PORT MODULE ARGUMENTS` imports modules,
whose names commas separate, and forks the ranks. With `-` in their place it imports nothing heavy,
and each rank is a new process, as a GPU needs. DeepSpeed's launcher, which starts the ranks of
several machines, imports all of DeepSpeed in two processes before the first rank begins.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FrameType

from skindx.core.machine import child_environment, python_command
from skindx.workers.forked_module import ForkContext, ForkedModule, import_once
from skindx.workers.worker_process import leave_process

ADDRESS = "127.0.0.1"
_POLL_S = 0.05
_GRACE_S = 30.0
"""A rank that was asked to end by SIGTERM is killed after this time."""

NO_IMPORTS = "-"

Rank = subprocess.Popen[bytes] | ForkedModule


def main(arguments: list[str]) -> int:
    """Run `python -m MODULE ARGUMENTS` for each rank; return 0, or the code of the first failure.

    When one rank fails, and on SIGTERM and SIGINT, the others get SIGTERM and 30 s to end.
    """
    running, _ = start_ranks(arguments)
    while any(process.poll() is None for process in running):
        if code := _failed(running):
            end_ranks(running)
            return code
        time.sleep(_POLL_S)
    return _failed(running)


def start_ranks(
    arguments: Sequence[str], address: str = ADDRESS
) -> tuple[list[Rank], Callable[[int], Rank]]:
    """Start the ranks of IMPORTS RANKS PORT MODULE ARGUMENTS; return them, and what starts one.

    They end with this process on SIGTERM and SIGINT.
    """
    imports, ranks, port, module, *rest = arguments
    world = {"MASTER_ADDR": address, "MASTER_PORT": port, "WORLD_SIZE": ranks, "LOCAL_SIZE": ranks}
    running: list[Rank] = []

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(_shell_code(end_ranks(running) or 1))

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    if imports != NO_IMPORTS:
        import_once(imports.split(","))
    start = partial(_start, world, module, rest, forks=imports != NO_IMPORTS)
    running.extend(map(start, range(int(ranks))))
    return running, start


def _start(
    world: Mapping[str, str], module: str, arguments: Sequence[str], rank: int, *, forks: bool
) -> Rank:
    place = {**world, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    if forks:
        return ForkedModule(module, arguments, ForkContext(place))
    command = python_command("-u", "-m", module, *arguments)
    return subprocess.Popen(command, env=child_environment(place))


def _failed(processes: list[Rank]) -> int:
    codes = (process.poll() for process in processes)
    return next((code for code in codes if code), 0)


def end_ranks(processes: list[Rank]) -> int:
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


def run_launcher(main: Callable[[list[str]], int]) -> None:
    """Run this process as a launcher; its exit code is that of `main`, as a shell names it."""
    try:
        status = main(sys.argv[1:])
    except SystemExit as end:
        status = int(end.code or 0)
    leave_process(_shell_code(status))


if __name__ == "__main__":
    run_launcher(main)
