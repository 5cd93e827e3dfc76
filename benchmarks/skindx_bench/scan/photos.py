"""Composed photos as files, what each arm finds on them, and scans with real worker processes."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import cv2
import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import JobError
from skindx.core.machine import ONE_THREAD
from skindx.imaging.decode import decode
from skindx.models.bundle.bundle import Bundle
from skindx.models.detector import BatchDetector, Detector
from skindx.scan.outputs.scan_files import LESIONS
from skindx.scan.photo_store import photo_store
from skindx.scan.pixel_store import PixelStore
from skindx.scan.scan_run import run_scan
from skindx.scan.tile_search import ScanSettings, TileDetections, find_in_tiles, grids, join
from skindx.scan.work.worker_processes import LocalWorkers
from skindx.workers.leases import Leases
from skindx_bench.harness.conditions import ProcessTree
from skindx_bench.harness.environments import SOURCES
from skindx_bench.scan import sahi_peer
from skindx_bench.scan.compose import Composite, compose
from skindx_bench.scan.material import Material

Boxes = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Boxes N x 4 and scores N."""


def search(store: PixelStore, detector: BatchDetector, settings: ScanSettings) -> Boxes:
    """Return boxes N x 4 in pixels of the upright photo and their scores, best first."""
    tile = settings.tile or detector.spec.size
    answers = [
        find_in_tiles(detector, store, grid, range(len(grid.patches)), settings)
        for grid in grids(store, tile, settings)
    ]
    rows = np.concatenate([one.rows_R8 for one in answers])
    boxes_N4, scores_N, _ = join(TileDetections.from_rows(rows), settings.least_side)
    return boxes_N4, scores_N


@dataclass(frozen=True)
class Truth:
    """A photo, its true boxes, K x 4, and which of the lesions are malignant, K."""

    path: Path
    boxes_K4: NDArray[np.float64]
    urgent_K: NDArray[np.bool_]


def write_photos(
    folder: Path,
    size_wh: tuple[int, int],
    count: int,
    lesions: int,
    *,
    material: Material,
    seed: int,
) -> list[Truth]:
    """Compose photos and write them as JPEG."""
    made: list[Truth] = []
    for number in range(count):
        rng = np.random.default_rng((seed, number))
        composite = compose(*size_wh, lesions, material, rng)
        path = write_photo(folder / f"photo-{number}.jpg", composite)
        boxes = np.array([(b.x1, b.y1, b.x2, b.y2) for b in composite.boxes]).reshape(-1, 4)
        made.append(Truth(path, boxes, np.array(composite.urgent, bool)))
    return made


def write_photo(path: Path, composite: Composite) -> Path:
    """Write a composed photo as JPEG."""
    image = cv2.cvtColor(composite.pixels_HW3, cv2.COLOR_RGB2BGR)
    cv2.imwrite(str(path), image, [cv2.IMWRITE_JPEG_QUALITY, 92])
    return path


class Ours:
    """Our search in this process, from the file to boxes."""

    def __init__(self, detector: BatchDetector, settings: ScanSettings) -> None:
        self.detector, self.settings = detector, settings

    def __call__(self, path: Path) -> tuple[Boxes, float]:
        """Return boxes and the seconds that they took."""
        started = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="skindx-scan-") as name:
            found = search(photo_store(path, Path(name) / "store"), self.detector, self.settings)
        return found, time.perf_counter() - started


def whole_image(detector: Detector, path: Path, side: int, floor: float) -> Boxes:
    """Return what one pass over the whole photo finds, scaled down to `side` pixels."""
    spec = detector.spec.model_copy(update={"size": side})
    (found,) = Detector(detector.net, spec).detect([decode(path.read_bytes())], floor)
    rows = np.array([(b.x1, b.y1, b.x2, b.y2, b.score or 0.0) for b in found]).reshape(-1, 5)
    return rows[:, :4], rows[:, 4]


class Sahi:
    """SAHI in its own environment, from the file to boxes."""

    def __init__(self, process: "subprocess.Popen[str]", least_side: float) -> None:
        self._process, self._least_side = process, least_side

    def ask(self, value: Any) -> dict[str, Any]:
        """Send a line and return its answer. Raises JobError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(value) + "\n")
            self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        except (OSError, ValueError):
            raise JobError("SAHI's process ended; its own words stand above.") from None
        return answer

    def __call__(self, path: Path) -> tuple[Boxes, float]:
        """Return boxes and the seconds that they took."""
        answer = self.ask(str(path))
        rows = np.array(answer["boxes"], np.float64).reshape(-1, 5)
        rows = rows[(rows[:, 2:4] - rows[:, :2]).max(axis=1, initial=0) >= self._least_side]
        return (rows[:, :4], rows[:, 4]), float(answer["seconds"])


@contextmanager
def sahi(peers: Path, bundle: Bundle, settings: ScanSettings, threads: int) -> Iterator[Sahi]:
    """Start the peer with the same detector, tiles, overlap and threshold."""
    assert bundle.spec.detector is not None
    command = [str((peers / "sahi" / "bin" / "python").absolute()), str(sahi_peer.__file__)]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    variables = {**os.environ, **ONE_THREAD, "OMP_NUM_THREADS": str(threads)}
    variables["PYTHONPATH"] = str(SOURCES[0].parent)
    with subprocess.Popen(command, text=True, env=variables, **streams) as process:  # type: ignore[call-overload]
        try:
            peer = Sahi(process, settings.least_side)
            spec = bundle.spec.detector
            peer.ask(
                {
                    "detector": str((bundle.path / "detector").absolute()),
                    "spec": spec.model_dump(mode="json"),
                    "tile": settings.tile or spec.size,
                    "overlap": settings.overlap,
                    "confidence": settings.confidence,
                    "threads": threads,
                }
            )
            yield peer
        finally:
            process.kill()


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
        watched.append(WatchedWorkers(LocalWorkers.for_scan(where, token, workers), kills))
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
