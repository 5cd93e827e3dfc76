"""The process of a server's scan, for spots: `python spot_scan.py HOW FOLDER`, see `spot_worker`.

Its workers are real processes with a real bundle; only the detector finds dark spots instead.
"""

import sys
from functools import partial
from pathlib import Path

from skindx.diagnosis.scan.work.crew import LocalWorkers
from skindx.ui.scanning.process import main

WORKER = Path(__file__).parents[1] / "diagnosis" / "scan" / "spot_worker.py"


def command(how: str = "sleep") -> list[str]:
    """Return what starts such a scan."""
    return [sys.executable, str(Path(__file__)), how]


def crew(how: str, where: Path | str, token: str) -> LocalWorkers:
    """Return workers that misbehave as `how` says."""
    return LocalWorkers((sys.executable, str(WORKER), str(where), token, how), 1)


if __name__ == "__main__":
    main(sys.argv[2:], partial(crew, sys.argv[1]))
