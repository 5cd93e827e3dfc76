"""The answer of a cleaning method for a folder of images, computed in a process of its own."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

# P = pairs, S = images with a score

_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


class NoAnswerError(Exception):
    """A method has no answer; the message says why in a few words."""


@dataclass(frozen=True)
class Answer:
    """Two ranked lists, and what they took.

    `pairs_P2` are positions first < second of the folder's images, sorted by falling `score_P`;
    `accepted_P` are those that the method itself calls copies. `strange_S` are positions, and
    `strangeness_S` their scores, greater for images that belong less; empty where a method does
    not look for such images.
    """

    pairs_P2: NDArray[np.int64]
    score_P: NDArray[np.float64]
    accepted_P: NDArray[np.bool_]
    strange_S: NDArray[np.int64]
    strangeness_S: NDArray[np.float64]
    wall_s: float
    cpu_s: float
    memory_mb: float
    """Largest resident size of its process, and of its largest child."""
    version: str


def ask(
    command: Sequence[str], names: Sequence[str], *, threads: int, timeout_s: float, listed: int
) -> Answer:
    """Run `command` with the path of its answer appended, and read that answer.

    It is given `threads` threads by the usual environment variables. The `listed` first pairs
    count, after those it accepts. Raises NoAnswerError.
    """
    with TemporaryDirectory(prefix="skindx-clean-") as work:
        file = Path(work) / "answer.json"
        wall_s, cpu_s = _run([*command, str(file)], threads, timeout_s)
        try:
            written = json.loads(file.read_text(encoding="utf-8"))
            return read_answer(written, names, listed, wall_s=wall_s, cpu_s=cpu_s)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NoAnswerError(f"its answer cannot be read ({error})") from None


def read_answer(
    written: Mapping[str, Any],
    names: Sequence[str],
    listed: int,
    *,
    wall_s: float = 0.0,
    cpu_s: float = 0.0,
) -> Answer:
    """Turn a written answer into arrays; names are file names. Raises KeyError for unknown ones.

    A pair that stands twice counts once, by its greatest score.
    """
    position = {Path(name).name: i for i, name in enumerate(names)}
    best: dict[tuple[int, int], tuple[float, bool]] = {}
    for first, second, score, accepted in written["pairs"]:
        i, j = sorted((position[first], position[second]))
        if i != j:
            before = best.get((i, j), (-np.inf, False))
            best[i, j] = max(before[0], float(score)), before[1] or bool(accepted)
    rows = sorted((-score, i, j, accepted) for (i, j), (score, accepted) in best.items())
    rows = [row for number, row in enumerate(rows) if number < listed or row[3]]
    strange = written.get("off_topic") or []
    return Answer(
        pairs_P2=np.array([row[1:3] for row in rows], np.int64).reshape(-1, 2),
        score_P=-np.array([row[0] for row in rows], np.float64),
        accepted_P=np.array([row[3] for row in rows], np.bool_),
        strange_S=np.array([position[name] for name, _ in strange], np.int64),
        strangeness_S=np.array([float(score) for _, score in strange], np.float64),
        wall_s=wall_s,
        cpu_s=cpu_s,
        memory_mb=float(written["memory_mb"]),
        version=str(written["version"]),
    )


def _run(command: Sequence[str], threads: int, timeout_s: float) -> tuple[float, float]:
    """Run a command to its end; return its wall and processor seconds."""
    environment = {**os.environ, **dict.fromkeys(_THREADS, str(threads))}
    before, start = _children_s(), time.perf_counter()
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            _, said = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise NoAnswerError(f"stopped after {timeout_s:g} s") from None
        finally:
            # What it started itself ends with it, also when this process is interrupted.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    wall_s, cpu_s = time.perf_counter() - start, _children_s() - before
    if process.returncode:
        lines = [line for line in said.splitlines() if line.strip()]
        reason = lines[-1].strip()[:200] if lines else f"ended with {process.returncode}"
        raise NoAnswerError(reason)
    return wall_s, cpu_s


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
