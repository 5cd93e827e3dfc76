"""The folder of a scan at work, and its tasks: plan, pixel stores, boxes and answers.

A task is some tiles of one scale of a photo, or some of its lesions. All files are written whole.
"""

import hashlib
import json
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from skindx import __version__
from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.core.untrusted import MEGABYTE, read_json
from skindx.scan.pixel_store import PixelStore
from skindx.scan.scan_settings import ScanSettings
from skindx.scan.tile_search import Grid, grids
from skindx.workers.lease_queue import LeaseTask

WORK = "_scan"
"""Beside the results while a scan is at work; it holds pixels of the photos."""
DATABASE = "leases.sqlite"
PLAN, _BOXES = "plan.json", "boxes.json"
_LONGEST_BOXES = 512 * MEGABYTE


class ScanPlan(Settings):
    """What a scan does; all its workers have the same."""

    token: str
    """The scan's name among others of a database."""
    bundle: Path
    digest: str
    """Of the bundle, which may be a copy at the same place on another machine."""
    tile: int
    photos: tuple[str, ...]
    """SHA-256 of the files, in their order."""
    settings: ScanSettings
    version: str = __version__

    @property
    def fingerprint(self) -> str:
        """Hash of everything that decides the answer."""
        facts = (self.digest, self.tile, self.photos, self.settings.model_dump(mode="json"))
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def write(self, folder: Path) -> None:
        write_json(folder / PLAN, self.model_dump(mode="json"))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read a plan. Raises UserError where there is none, or one of another version."""
        if not (folder / PLAN).is_file():
            raise UserError(
                f"{folder} holds no scan at work; workers on other machines need the scan's folder "
                "at the same path."
            )
        raw = read_json(folder / PLAN)
        version = str(raw.get("version"))
        if version != __version__:
            raise UserError(
                f"the scan in {folder} was begun by skindx {version}, and this is {__version__}; "
                "go on with that version, or remove the folder to begin again."
            )
        return cls.parse(raw, str(folder / PLAN), expand=False)


def new_token() -> str:
    """Return a name that no other scan has."""
    return secrets.token_hex(8)


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
        write_json(self.path / _BOXES, {"photos": boxes})

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
    def of(cls, key: str) -> Self:
        """Read a name. Raises UserError for one that is none."""
        match = _KEY.fullmatch(key)
        if not match:
            raise UserError(f"{key[:80]!r} is no task of a scan; the queue is another program's.")
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


def leased(tasks: Sequence[ScanTask]) -> list[LeaseTask]:
    return [LeaseTask(task.key, weight=len(task)) for task in tasks]
