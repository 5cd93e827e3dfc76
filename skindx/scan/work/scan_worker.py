"""A worker of scans: it takes a task, infers, writes the answer, and only then acknowledges it.

An answer may be written twice.
"""

import os
import socket
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from skindx import __version__
from skindx.core.errors import UserError, needs_room
from skindx.data.box import Box
from skindx.scan.patches import save_patch
from skindx.scan.scan_settings import ScanSettings
from skindx.scan.scanned_lesions import ScannedLesion, write_lesions
from skindx.scan.work.work_folder import ScanPlan, ScanTask, WorkFolder
from skindx.workers.lease_queue import QUEUES, LeaseQueue, database_errors
from skindx.workers.leases import Heartbeat, Leases

if TYPE_CHECKING:
    from skindx.diagnosis.predictor import Predictor
    from skindx.models.tile_detector import BatchDetector

    Load = Callable[[Path, str, str, ScanSettings], tuple[Predictor, BatchDetector]]


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
        plan = self.plan
        return self._load(plan.bundle, plan.digest, self._device, plan.settings)

    def _tiles(self, task: ScanTask) -> dict[str, Any]:
        from skindx.scan.tile_search import find_in_tiles

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
        from skindx.scan.lesion_diagnosis import diagnose_lesions

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
    """Return a box from x1, y1, x2, y2, score, label."""
    x1, y1, x2, y2, score, label = row
    return Box(x1, y1, x2, y2, label, "detector", score)


@lru_cache(maxsize=1)
def load_networks(
    bundle: Path, digest: str, device: str, settings: ScanSettings
) -> "tuple[Predictor, BatchDetector]":
    """Load a bundle once for all tasks of a scan. Raises UserError for one without a detector."""
    from skindx.diagnosis.predictor import Predictor
    from skindx.models.tile_detector import BatchDetector

    predictor = Predictor.load(bundle, device, expect=digest, miss_rate=settings.miss_rate)
    if predictor.detector is None:
        raise UserError(predictor.missing or f"bundle {bundle} has no detector.")
    precision = "fp32" if settings.precision == "auto" else settings.precision
    return predictor, BatchDetector(predictor.detector, device, precision)


PREFIX = "scan-"
"""Of the names of all queues of scans."""
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
                        f"the queue is of skindx {version}, and this is {__version__}; install the "
                        "same version on every machine."
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
        answer = runner.do(ScanTask.of(taken.key))
    leases.finish(name, taken.key, answer)  # one that others have meanwhile is dropped
    return True
