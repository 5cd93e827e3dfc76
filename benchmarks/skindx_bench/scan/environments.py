"""Make the peer's environment: `python -m skindx_bench.scan.environments FOLDER`.

SAHI gets a virtual environment that also sees this one's packages, so that both run the same torch
and ultralytics.
"""

import sys
from pathlib import Path

from skindx_bench.harness.environments import NotInstalledError, PeerEnvironment

NEEDS = ("sahi", "shapely", "terminaltables", "fire", "pybboxes", "tqdm", "click", "requests")


def make(folder: Path) -> int:
    """Make the environment; return the exit code."""
    try:
        python = PeerEnvironment("sahi", NEEDS, sees_ours=True).make(folder)
    except NotInstalledError as error:
        print(error)
        return 1
    print(f"sahi: installed in {python.parent.parent}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    raise SystemExit(make(Path(sys.argv[1])))
