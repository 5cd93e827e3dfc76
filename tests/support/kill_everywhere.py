"""Kill a process before each change that it makes to the file system, one run a change.

Or before the first change, and before each n-th from there (`every`). The kills are real (SIGKILL),
each in a fresh fork, so that nothing is left to clean up after itself.
"""

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link")


def kill_everywhere(
    start: Path,
    work: Path,
    act: Callable[[Path], None],
    check: Callable[[Path], None],
    every: int,
) -> int:
    """Run `act` on copies of `start`, each killed later than the one before, to its end.

    After each kill, and after the end, `check` judges the copy. Returns how many changes there
    are at least.
    """
    for kills in range(0, 10_000, every):
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(start, work)
        status = _forked(lambda: act(work), die_before=kills + 1)
        died = os.WIFSIGNALED(status)
        assert died or os.waitstatus_to_exitcode(status) == 0, f"run {kills}: {status}"
        checked = _forked(lambda: check(work))
        assert os.waitstatus_to_exitcode(checked) == 0, f"after kill {kills + 1}: not sound"
        if not died:
            return kills
    raise AssertionError("it never comes to its end")


def _forked(do: Callable[[], None], die_before: int = 0) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        if die_before:
            _die_before(die_before)
        do()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _die_before(change: int) -> None:
    left = change

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event in CHANGES:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
