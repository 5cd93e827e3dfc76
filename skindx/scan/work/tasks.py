"""Tasks of a scan: some tiles of one scale of a photo, or some of its lesions."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from skindx.core.errors import UserError
from skindx.scan.grid import Grid
from skindx.workers.leases.task import Task

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
        """Its name in a queue."""
        return f"{self.kind}-{self.photo}-{self.level}-{self.first}-{self.last}"

    @classmethod
    def of(cls, key: str) -> Self:
        """Read a name. Raises UserError for one that is none."""
        match = _KEY.fullmatch(key)
        if not match:
            raise UserError(f"{key[:80]!r} is no task of a scan; the queue is another program's.")
        photo, level, first, last = map(int, match.groups()[1:])
        kind: Kind = "tiles" if match[1] == "tiles" else "lesions"
        return cls(kind, photo, level, first, last)

    def singles(self) -> list["ScanTask"]:
        """Return a task for each of its tiles or lesions."""
        return [
            type(self)(self.kind, self.photo, self.level, number, number + 1)
            for number in range(self.first, self.last)
        ]

    def __len__(self) -> int:
        return self.last - self.first


def tile_tasks(photo: int, photo_grids: Sequence[Grid]) -> Iterator[ScanTask]:
    """Yield the tasks that cover all tiles of a photo."""
    for grid in photo_grids:
        for first in range(0, len(grid.patches), TILES_A_TASK):
            last = min(first + TILES_A_TASK, len(grid.patches))
            yield ScanTask("tiles", photo, grid.level, first, last)


def lesion_tasks(photo: int, lesions: int) -> Iterator[ScanTask]:
    """Yield the tasks that cover all lesions of a photo."""
    for first in range(0, lesions, LESIONS_A_TASK):
        yield ScanTask("lesions", photo, 0, first, min(first + LESIONS_A_TASK, lesions))


def leased(tasks: Sequence[ScanTask]) -> list[Task]:
    """Return tasks as a queue takes them."""
    return [Task(task.key, weight=len(task)) for task in tasks]
