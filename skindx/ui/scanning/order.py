"""The parameters of a scan's process: one file in the job's private folder."""

from pathlib import Path

from skindx.core.atomic_files import write_json
from skindx.core.settings_base import Settings
from skindx.core.untrusted import read_json

_FILE = "order.json"
PHOTOS, RESULTS, ANSWER, LIST = "photos", "results", "answer.json", "list.html"
"""Parts of a job's folder: photos until the scan ends; results, and the two forms of the answer."""


class Order(Settings):
    """One scan."""

    bundle: str
    digest: str
    photos: int
    mm_per_pixel: tuple[float | None, ...]
    """Of each photo; empty: of none."""
    miss_rate: float | None
    workers: int
    most_megapixels: int

    def save(self, folder: Path) -> None:
        """Write it into the job's folder."""
        write_json(folder / _FILE, self.model_dump(mode="json"))

    @classmethod
    def of(cls, folder: Path) -> "Order":
        """Read what `save` wrote."""
        return cls.parse(read_json(folder / _FILE), _FILE, expand=False)


def photo_paths(folder: Path, count: int) -> list[Path]:
    """Return where the photos of a job lie.

    Results name them so: a file's own name may tell who it is of.
    """
    return [folder / PHOTOS / f"photo {number}" for number in range(1, count + 1)]
