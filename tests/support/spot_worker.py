"""A worker process of a scan for spots, or its driver, that misbehaves as it is told."""

import errno
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

# Started as a worker it finds no module of its folder by itself (skindx/core/machine.py).
sys.path.insert(0, str(Path(__file__).parent))

import spots
from whole_photo import ThisProcess

from skindx.cli import one_sentence
from skindx.scan.scan_run import run_scan
from skindx.scan.tile_search import ScanSettings
from skindx.scan.work.scan_worker import ScanTask, ScanTaskRunner, work
from skindx.workers.worker_process import exit_with_parent


class Doer(ScanTaskRunner):
    """Finds spots, and does `before` before each task."""

    def __init__(self, folder: Path, before: Callable[[], None]) -> None:
        super().__init__(folder, load=spots.load)
        self._before = before

    def do(self, task: ScanTask) -> dict[str, Any]:
        """Do it, if what comes before allows."""
        answer = super().do(task)
        self._before()
        return answer


def misbehave(how: str) -> Callable[[], None]:
    """Return what a worker does between its answer and the acknowledgement."""
    kind, _, rest = how.partition(":")
    if kind == "die":
        count, _, folder = rest.partition(":")
        return partial(die, int(count), Path(folder))
    if kind == "late":
        real = time.time
        time.time = lambda: real() + float(rest)
        return partial(time.sleep, 0.05)
    return full if kind == "full" else partial(time.sleep, 0.05)


def die(count: int, folder: Path) -> None:
    """Be killed, unless `count` workers were before."""
    for number in range(count):
        try:
            (folder / f"died-{number}").touch(exist_ok=False)
        except FileExistsError:
            continue
        os.kill(os.getpid(), signal.SIGKILL)


def full() -> None:
    """Find no room."""
    raise OSError(errno.ENOSPC, "No space left on device")


def main(arguments: list[str]) -> None:
    """Work, or drive."""
    if arguments[0] == "drive":
        photo, bundle, out = map(Path, arguments[1:4])
        doer = partial(Doer, before=partial(time.sleep, 0.3))
        crew = partial(ThisProcess, make_runner=doer)
        settings = ScanSettings(score_map=True, batch=4, least_side=4)
        run_scan([photo], bundle, out, settings, make_workers=crew)
        return
    where, token, how = arguments
    exit_with_parent()
    with one_sentence():
        place = where if "://" in where else Path(where)
        work(place, token=token, patience_s=1e9, make_runner=partial(Doer, before=misbehave(how)))


if __name__ == "__main__":
    main(sys.argv[1:])
