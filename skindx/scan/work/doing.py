"""A worker's task: read, infer, write an answer that may be written twice."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skindx.core.errors import UserError
from skindx.data.box import Box
from skindx.scan.blend import save_patch
from skindx.scan.lesion import Lesion
from skindx.scan.lesion_file import write_lesions
from skindx.scan.settings import ScanSettings
from skindx.scan.work.folder import Plan, WorkFolder
from skindx.scan.work.tasks import ScanTask

if TYPE_CHECKING:
    from skindx.diagnosis.predictor import Predictor
    from skindx.models.tile_detector import BatchDetector

    Load = Callable[[Path, str, str, ScanSettings], tuple[Predictor, BatchDetector]]


class TaskDoer:
    """A worker's networks, loaded when the first task comes, and the scan's folder."""

    def __init__(self, folder: Path, device: str = "cpu", load: "Load | None" = None) -> None:
        """Read the plan. Raises UserError."""
        self.folder, self.plan, self._device = WorkFolder(folder), Plan.load(folder), device
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
        from skindx.scan.finding import find_in_tiles

        store = self.folder.store(task.photo)
        grid = self.folder.grid(self.plan, task.photo, task.level)
        numbers = range(task.first, task.last)
        detector = self._networks()[1]
        found = find_in_tiles(detector, store, grid, numbers, self.plan.settings)
        if self.plan.settings.score_map and task.level == 0:
            for number, scores_GG in found.maps.items():
                rows, columns = grid.patches.size
                file = self.folder.patch(task.photo, number)
                save_patch(file, scores_GG[:rows, :columns])
        return {"skipped": found.skipped, "rows": found.rows_R8.tolist()}

    def _lesions(self, task: ScanTask) -> list[Lesion]:
        from skindx.scan.diagnosing import diagnose_lesions

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
