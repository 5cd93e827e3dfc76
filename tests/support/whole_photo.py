"""A photo in memory as a whole, and the tasks of a scan done by this process."""

import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from skindx.core.errors import UserError
from skindx.scan.pixel_store import Pixels, resized
from skindx.scan.work.scan_worker import MakeRunner, ScanTaskRunner, work
from skindx.scan.work.worker_processes import ScanWorkers
from skindx.workers.leases import Leases


@dataclass(frozen=True)
class ArrayPhoto:
    """A photo that is in memory as a whole; an instance is a `ReadRegion`."""

    pixels_HW3: Pixels

    def __call__(self, x1: int, y1: int, x2: int, y2: int, scale: float) -> Pixels:
        """Return pixels_HW3 of a region."""
        region_HW3 = self.pixels_HW3[y1:y2, x1:x2]
        return region_HW3 if scale >= 1 else resized(region_HW3, scale)


@dataclass(frozen=True)
class ThisProcess(ScanWorkers):
    """All tasks are done here, one after the other."""

    where: Path | str
    token: str
    make_runner: MakeRunner = ScanTaskRunner

    def supervise(self, leases: Leases) -> None:
        """Do all of them."""
        work_here(self.where, self.token, self.make_runner)


def work_here(where: Path | str, token: str, make_runner: MakeRunner = ScanTaskRunner) -> None:
    """Do the tasks of a scan in this process, a task that fails as often as a queue allows."""
    while True:
        try:
            work(where, token=token, patience_s=0.0, make_runner=make_runner)
            return
        except UserError:
            raise
        except Exception:
            traceback.print_exc(file=sys.stderr)
