"""Scans with real worker processes: how they scale, how much memory they take, what kills cost."""

import json
import os
import signal
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import cv2
import numpy as np

from skindx.scan.outputs.scan_files import LESIONS
from skindx.scan.scan_run import run_scan
from skindx.scan.scan_settings import ScanSettings
from skindx.scan.work.worker_processes import LocalWorkers
from skindx.workers.leases import Leases
from skindx_bench.harness.conditions import ProcessTree

_WINDOW = (0.3, 0.9)
"""Shares of the tiles between which the speed is measured."""


@dataclass
class WatchedWorkers:
    """Local workers; some of them are killed while they work, and their memory is watched."""

    inner: LocalWorkers
    kills: int = 0
    seed: int = 0
    memory: list[int] = field(default_factory=list)
    """Bytes of all of them together, at every sample."""
    killed: list[int] = field(default_factory=list)

    def __enter__(self) -> Self:
        self.inner.__enter__()
        self._random = np.random.default_rng(self.seed)
        return self

    def __exit__(self, *error: object) -> None:
        self.inner.__exit__(*error)

    def supervise(self, leases: Leases) -> None:
        """Tend them, look at their memory, and kill one that works, at a random time."""
        self.inner.supervise(leases)
        self.memory.append(sum(ProcessTree(pid).memory_bytes() for pid in self.inner.pids))
        busy = [
            int(w.note["pid"]) for w in leases.workers() if int(w.note["pid"]) in self.inner.pids
        ]
        if busy and len(self.killed) < self.kills and self._random.random() < 0.3:
            self.killed.append(busy[0])
            os.kill(busy[0], signal.SIGKILL)


@dataclass(frozen=True)
class LoadRun:
    """One scan: how fast tiles went once the first were done, the memory, and the answer."""

    tiles_a_second: float
    peak_bytes: int
    killed: int
    lesions: list[dict[str, Any]]


def load_run(
    photo: Path, bundle: Path, settings: ScanSettings, workers: int, *, kills: int = 0
) -> LoadRun:
    """Scan a photo by worker processes."""
    marks: list[tuple[float, int]] = []

    def progress(stage: str, done: int, total: int) -> None:
        if stage == "1-tiles":
            marks.append((time.monotonic(), done))

    watched: list[WatchedWorkers] = []

    def crew(where: Path | str, token: str) -> WatchedWorkers:
        watched.append(WatchedWorkers(LocalWorkers.of(where, token, workers), kills))
        return watched[0]

    with tempfile.TemporaryDirectory(prefix="skindx-scan-") as name:
        out = Path(name) / "out"
        scanned = run_scan([photo], bundle, out, settings, progress=progress, make_workers=crew)
        lesions = json.loads((out / LESIONS).read_text())["photos"][0]["lesions"]
    times, done = np.array(marks).T
    # In between all workers are at work: none is still loading, none has nothing left.
    begun, ended = (np.interp(share * done[-1], done, times) for share in _WINDOW)
    tiles = (_WINDOW[1] - _WINDOW[0]) * scanned.photos[0].tiles
    speed = float(tiles / max(ended - begun, 1e-9))
    return LoadRun(speed, max(watched[0].memory), len(watched[0].killed), lesions)


def lost_tasks(undisturbed: LoadRun, disturbed: LoadRun) -> int:
    """Return how many lesions are in one answer only, or twice."""
    boxes = [sorted(tuple(x["box"]) for x in run.lesions) for run in (undisturbed, disturbed)]
    return len(set(boxes[0]) ^ set(boxes[1])) + abs(len(boxes[0]) - len(boxes[1]))


def write_mosaic(photo: Path, out: Path, times: int) -> Path:
    """Write a JPEG that shows the photo `times` x `times`: long work for several workers."""
    import pyvips

    image = pyvips.Image.new_from_file(str(photo), access="random")
    image.replicate(times, times).jpegsave(str(out), Q=92)
    return out


def write_wide(photo: Path, out: Path, megapixels: int) -> Path:
    """Write a JPEG of so many megapixels: the photo on a wall that shows no skin."""
    import pyvips

    image = pyvips.Image.new_from_file(str(photo), access="random")
    side = max(image.width, round((1e6 * megapixels) ** 0.5))
    rng = np.random.default_rng(0)
    cloth = np.clip(rng.normal((60, 110, 120), 9, (512, 512, 3)), 0, 255).astype(np.uint8)
    wall = pyvips.Image.new_from_memory(
        cv2.GaussianBlur(cloth, (0, 0), 1).tobytes(), 512, 512, 3, "uchar"
    )
    times = -(-side // 512)
    wide = wall.replicate(times, times).crop(0, 0, side, side).insert(image, 0, 0)
    wide.copy(interpretation="srgb").jpegsave(str(out), Q=92)
    return out
