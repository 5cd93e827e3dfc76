"""The process of a server's scan, for spots: `python spot_scan.py HOW FOLDER`, see `spot_worker`.

Its workers are real processes with a real bundle; only the detector finds dark spots instead.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

from skindx.scan.work.worker_processes import LocalWorkers
from skindx.ui.scans.scan_process import main

WORKER = Path(__file__).with_name("spot_worker.py")


def photo_with_spots(count: int) -> Any:
    """Return a wide photo with so many dark spots, H x W x 3."""
    from spots import photo_with

    places = [(70.0 + 90 * (n % 6), 60.0 + 90 * (n // 6), 8.0 + n % 5) for n in range(count)]
    return photo_with(places, 600, 90 * (count // 6) + 300)


def command(how: str = "sleep") -> list[str]:
    """Return what starts such a scan."""
    return [sys.executable, str(Path(__file__)), how]


def crew(how: str, where: Path | str, token: str) -> LocalWorkers:
    """Return workers that misbehave as `how` says."""
    return LocalWorkers((sys.executable, str(WORKER), str(where), token, how), 1)


if __name__ == "__main__":
    main(sys.argv[2:], partial(crew, sys.argv[1]))
