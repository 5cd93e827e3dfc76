"""Make the peer's environment: `python -m skindx.bench.scan.environments FOLDER`.

SAHI gets a virtual environment that also sees this one's packages, so that both run the same torch
and ultralytics.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

NEEDS = ("sahi", "shapely", "terminaltables", "fire", "pybboxes", "tqdm", "click", "requests")


def make(folder: Path) -> int:
    """Make the environment; return the exit code."""
    home = folder / "sahi"
    python = str(home / "bin" / "python")
    steps = (
        [sys.executable, "-m", "venv", str(home)],
        [python, "-m", "pip", "install", "--quiet", "--no-deps", *NEEDS],
    )
    for step in steps:
        if subprocess.run(step, check=False).returncode:
            return 1
    (site,) = home.glob("lib/python*/site-packages")
    (site / "skindx-packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    print(f"sahi: installed in {home}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    raise SystemExit(make(Path(sys.argv[1])))
