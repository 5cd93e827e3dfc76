"""Run a command so that every attempt to reach another machine is noted and refused."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Third-party packages keep quiet when they see a test running: a user's process has none of these.
_TELLTALE = ("PYTEST_CURRENT_TEST", "GITHUB_ACTIONS", "CI")
# What skindx itself sets must come from skindx, not from whoever started the tests.
_OURS = ("YOLO_", "GRADIO_", "HF_", "NO_ALBUMENTATIONS_UPDATE", "DO_NOT_TRACK", "TRANSFORMERS_")


def guarded_environment(folder: Path) -> dict[str, str]:
    """Return an environment like a user's, with HOME in `folder` and the guard in every Python."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in _TELLTALE and not key.startswith(_OURS)
    }
    return kept | {
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "PYTHONPATH": os.pathsep.join(
            [
                str(ROOT / "tests/support/network"),
                str(ROOT),
                str(ROOT / "methods"),
                str(ROOT / "benchmarks"),
            ]
        ),
        "SKINDX_NETWORK_LOG": str(log_of(folder)),
        "OMP_NUM_THREADS": "1",
    }


def log_of(folder: Path) -> Path:
    return folder / "network.log"


def calls_in(folder: Path) -> list[str]:
    """Return the attempts to reach another machine, one line each."""
    log = log_of(folder)
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


@dataclass(frozen=True)
class Guarded:
    """How a guarded command ended, and whom it tried to reach."""

    returncode: int
    stdout: str
    stderr: str
    calls: list[str]
    folder: Path


def run_guarded(arguments: Sequence[str | Path], folder: Path, timeout_s: float = 120) -> Guarded:
    """Run `python ARGUMENTS` under the guard; `folder` becomes its HOME and temporary folder."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=guarded_environment(folder),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Guarded(done.returncode, done.stdout, done.stderr, calls_in(folder), folder)
