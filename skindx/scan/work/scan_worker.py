"""A worker of scans: it takes a task, infers, writes the answer, and only then acknowledges it.

An answer may be written twice.
"""

import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from sqlalchemy import select

from skindx import __version__
from skindx.core.errors import UserError, needs_room
from skindx.core.private_files import write_private_json
from skindx.core.settings_base import Settings
from skindx.core.untrusted import MEGABYTE, read_json
from skindx.data.box import Box
from skindx.models.detector import BatchDetector
from skindx.models.shipped_detector import open_shipped
from skindx.scan.patches import save_patch
from skindx.scan.pixel_store import PixelStore
from skindx.scan.scanned_lesions import ScannedLesion, diagnose_lesions, write_lesions
from skindx.scan.tile_search import Grid, ScanSettings, find_in_tiles, grids
from skindx.workers.lease_queue import QUEUES, LeaseQueue, database_errors
from skindx.workers.leases import Heartbeat, Leases

if TYPE_CHECKING:
    from skindx.diagnosis.predictor import Predictor
    from skindx.models.detector import BatchDetector

    Load = Callable[["ScanPlan", str], tuple[Predictor, BatchDetector]]


WORK = "_scan"
"""Folder beside the results while a scan runs; it holds pixels of the photos."""
DATABASE = "leases.sqlite"
PLAN, _BOXES = "plan.json", "boxes.json"
_LONGEST_BOXES = 512 * MEGABYTE


class ScanPlan(Settings):
    """What a scan does; all its workers have the same."""

    token: str
    """The scan's name among others of a database."""
    bundle: Path
    digest: str
    """Digest of the bundle, which may be a copy at the same path on another machine."""
    detector: Path | None = None
    """A detector in the place of the bundle's."""
    detector_digest: str | None = None
    tile: int
    photos: tuple[str, ...]
    """SHA-256 of the files, in their order."""
    settings: ScanSettings
    version: str = __version__

    @property
    def fingerprint(self) -> str:
        """Hash of everything that decides the answer."""
        settings = self.settings.model_dump(mode="json")
        facts = (self.digest, self.detector_digest, self.tile, self.photos, settings)
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def write(self, folder: Path) -> None:
        write_private_json(folder / PLAN, self.model_dump(mode="json"))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read a plan. Raises UserError where there is none, or one of another version."""
        if not (folder / PLAN).is_file():
            raise UserError(
                f"{folder} has no running scan; make the folder of the scan available at the same "
                "path on this machine."
            )
        raw = read_json(folder / PLAN)
        version = str(raw.get("version"))
        if version != __version__:
            raise UserError(
                f"the scan in {folder} was started with skindx {version}, but this is skindx "
                f"{__version__}; install that version, or delete the folder to start again."
            )
        return cls.parse(raw, str(folder / PLAN), expand=False)


@dataclass(frozen=True)
class WorkFolder:
    """The files of a scan at work."""

    path: Path

    def store_folder(self, photo: int) -> Path:
        return self.path / f"photo-{photo}"

    def store(self, photo: int) -> PixelStore:
        return PixelStore.open(self.store_folder(photo))

    def grids(self, plan: ScanPlan, photo: int) -> list[Grid]:
        return grids(self.store(photo), plan.tile, plan.settings)

    def grid(self, plan: ScanPlan, photo: int, level: int) -> Grid:
        return next(grid for grid in self.grids(plan, photo) if grid.level == level)

    def patch(self, photo: int, number: int) -> Path:
        """Where the scores of a tile of the finest scale are, if a map is wanted."""
        return self.path / f"map-{photo}" / f"{number}.npy"

    def answer(self, key: str) -> Path:
        """Where the answer to a task is that is too large for a database."""
        return self.path / "answers" / f"{key}.npz"

    @property
    def has_boxes(self) -> bool:
        """Whether the lesions are known and only their diagnosis is left."""
        return (self.path / _BOXES).is_file()

    def write_boxes(self, boxes: list[dict[str, Any]]) -> None:
        """Keep the joined boxes of all photos and the counts of their tiles."""
        write_private_json(self.path / _BOXES, {"photos": boxes})

    def read_boxes(self) -> list[dict[str, Any]]:
        photos: list[dict[str, Any]] = read_json(self.path / _BOXES, _LONGEST_BOXES)["photos"]
        return photos


Kind = Literal["tiles", "lesions"]

TILES_A_TASK, LESIONS_A_TASK = 16, 16
"""About a second of work: what a worker that dies has done in vain."""

_KEY = re.compile(r"(tiles|lesions)-(\d+)-(\d+)-(\d+)-(\d+)")


@dataclass(frozen=True)
class ScanTask:
    """Numbers `first` to `last` (not included) of a photo's tiles at a level, or lesions."""

    kind: Kind
    photo: int
    level: int
    first: int
    last: int

    @property
    def key(self) -> str:
        return f"{self.kind}-{self.photo}-{self.level}-{self.first}-{self.last}"

    @classmethod
    def from_key(cls, key: str) -> Self:
        """Read a name. Raises UserError for one that is none."""
        match = _KEY.fullmatch(key)
        if not match:
            raise UserError(f"{key[:80]!r} is no task of a scan; give the queue of a scan.")
        photo, level, first, last = map(int, match.groups()[1:])
        kind: Kind = "tiles" if match[1] == "tiles" else "lesions"
        return cls(kind, photo, level, first, last)

    def singles(self) -> list["ScanTask"]:
        return [
            type(self)(self.kind, self.photo, self.level, number, number + 1)
            for number in range(self.first, self.last)
        ]

    def __len__(self) -> int:
        return self.last - self.first


def tile_tasks(photo: int, photo_grids: Sequence[Grid]) -> Iterator[ScanTask]:
    for grid in photo_grids:
        for first in range(0, len(grid.patches), TILES_A_TASK):
            last = min(first + TILES_A_TASK, len(grid.patches))
            yield ScanTask("tiles", photo, grid.level, first, last)


def lesion_tasks(photo: int, lesions: int) -> Iterator[ScanTask]:
    for first in range(0, lesions, LESIONS_A_TASK):
        yield ScanTask("lesions", photo, 0, first, min(first + LESIONS_A_TASK, lesions))


class ScanTaskRunner:
    """A worker's networks, loaded when the first task comes, and the scan's folder."""

    def __init__(self, folder: Path, device: str = "cpu", load: "Load | None" = None) -> None:
        """Read the plan. Raises UserError."""
        self.folder, self.plan, self._device = WorkFolder(folder), ScanPlan.read(folder), device
        self._load = load or load_networks

    def do(self, task: ScanTask) -> dict[str, Any]:
        """Return the answer to a task as plain values. Raises UserError for a broken bundle."""
        if task.kind == "tiles":
            return self._tiles(task)
        write_lesions(self.folder.answer(task.key), self._lesions(task))
        return {}

    def _networks(self) -> "tuple[Predictor, BatchDetector]":
        return self._load(self.plan, self._device)

    def _tiles(self, task: ScanTask) -> dict[str, Any]:
        store = self.folder.store(task.photo)
        grid = self.folder.grid(self.plan, task.photo, task.level)
        numbers = range(task.first, task.last)
        detector = self._networks()[1]
        tiles_answer = find_in_tiles(detector, store, grid, numbers, self.plan.settings)
        if self.plan.settings.score_map and task.level == 0:
            for number, scores_GG in tiles_answer.maps.items():
                rows, columns = grid.patches.size
                file = self.folder.patch(task.photo, number)
                save_patch(file, scores_GG[:rows, :columns])
        return {"skipped": tiles_answer.skipped, "rows": tiles_answer.rows_R8.tolist()}

    def _lesions(self, task: ScanTask) -> list[ScannedLesion]:
        predictor = self._networks()[0]
        boxes = self.folder.read_boxes()[task.photo]["boxes"][task.first : task.last]
        store, batch = self.folder.store(task.photo), self.plan.settings.batch
        return [
            lesion
            for first in range(0, len(boxes), batch)
            for lesion in diagnose_lesions(
                predictor,
                store,
                [to_box(row) for row in boxes[first : first + batch]],
                self.plan.settings.margin,
            )
        ]


def to_box(row: list[Any]) -> Box:
    x1, y1, x2, y2, score, label = row
    return Box(x1, y1, x2, y2, label, "detector", score)


@lru_cache(maxsize=1)
def load_networks(plan: ScanPlan, device: str) -> "tuple[Predictor, BatchDetector]":
    """Load the networks once for all tasks of a scan. Raises UserError without a detector."""
    from skindx.diagnosis.predictor import Predictor

    settings = plan.settings
    predictor = Predictor.load(
        plan.bundle, device, expect=plan.digest, miss_rate=settings.miss_rate
    )
    detector = predictor.detector
    if plan.detector is not None:
        detector = open_shipped(plan.detector, plan.detector_digest).load()
    if detector is None:
        raise UserError(predictor.missing or f"bundle {plan.bundle} has no detector.")
    precision = "fp32" if settings.precision == "auto" else settings.precision
    return predictor, BatchDetector(detector, device, precision)


PREFIX = "scan-"
"""Prefix of the names of all scan queues."""
_POLL_S = (0.05, 1.0)
"""First and longest pause of a worker that finds nothing to do."""

MakeRunner = Callable[[Path], ScanTaskRunner]


def queue_name(token: str, stage: str = "") -> str:
    """Return the name of a scan's queue; its queues begin with the name of no stage."""
    return f"{PREFIX}{token}-{stage}"


def work(
    where: Path | str,
    *,
    token: str = "",
    patience_s: float = 60.0,
    make_runner: MakeRunner = ScanTaskRunner,
) -> int:
    """Do tasks of the scans in a database, or of one, until none came for `patience_s` seconds.

    Returns how many were done. Raises UserError for a queue of another version, a folder or bundle
    that is not here, a full disk.
    """
    done, idle_since, pause = 0, time.monotonic(), _POLL_S[0]
    runners: dict[str, ScanTaskRunner] = {}
    with LeaseQueue(where, "") as any_queue:
        while True:
            answered, open_work = 0, False
            for name, version in _queues(any_queue, token):
                if version != __version__:
                    raise UserError(
                        f"the scan was started with skindx {version}, but this machine has skindx "
                        f"{__version__}; install the same version on every machine."
                    )
                with LeaseQueue(where, name) as queue:
                    count, left = _serve(queue, runners, make_runner)
                    answered, open_work = answered + count, open_work or left
            done += answered
            if answered or open_work:  # others' tasks may come back
                idle_since = time.monotonic()
            if answered:
                pause = _POLL_S[0]
            elif not open_work and time.monotonic() - idle_since >= patience_s:
                return done
            else:
                time.sleep(pause)
                pause = min(1.5 * pause, _POLL_S[1])


def _queues(any_queue: LeaseQueue, token: str) -> list[tuple[str, str]]:
    """Return (name, version) of the queues of scans, the newest stage of each last."""
    start = queue_name(token) if token else PREFIX
    with database_errors(any_queue.where), any_queue.engine.begin() as connection:
        rows = connection.execute(
            select(QUEUES.c.queue, QUEUES.c.version)
            .where(QUEUES.c.queue.startswith(start, autoescape=True))
            .order_by(QUEUES.c.queue)
        ).all()
    return [(row.queue, row.version) for row in rows]


def _serve(
    queue: LeaseQueue, runners: dict[str, ScanTaskRunner], make_runner: MakeRunner
) -> tuple[int, bool]:
    """Do tasks of one queue until none is open; return how many, and whether others do some."""
    facts = queue.facts()
    if facts is None:  # its scan has just ended
        return 0, False
    leases = Leases(queue, float(facts["lease_s"]))
    if not leases.has_work():
        return 0, False
    folder = str(facts["folder"])
    runner = runners.get(folder)
    if runner is None:
        runners.clear()  # one bundle in memory is enough
        runner = runners[folder] = make_runner(Path(folder))
    done = 0
    name = leases.enter({"host": socket.gethostname(), "pid": os.getpid()})
    with Heartbeat(leases, name) as heartbeat:
        try:
            while not heartbeat.lost and _turn(leases, name, runner):
                done += 1
        except (UserError, KeyboardInterrupt):
            leases.leave(name)  # the task is not to blame
            raise
        except BaseException:
            leases.lose(name)
            raise
        leases.leave(name)
    return done, leases.has_work()


def _turn(leases: Leases, name: str, runner: ScanTaskRunner) -> bool:
    """Do one task as the worker of this name; False: there is none now."""
    taken = leases.take(name, lambda waiting: waiting[0])
    if taken is None:
        return False
    with needs_room(runner.folder.path):
        answer = runner.do(ScanTask.from_key(taken.key))
    leases.finish(name, taken.key, answer)  # one that others have meanwhile is dropped
    return True
