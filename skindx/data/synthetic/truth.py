"""Ground truth of a synthetic site: every served image, and every planted fault."""

from pathlib import Path

from skindx.core.atomic_files import write_text
from skindx.core.errors import UserError
from skindx.core.settings_base import Settings

TRUTH = "truth.json"


class Served(Settings):
    """One image of the site: the class whose page shows it, and the SHA-256 of its bytes."""

    label: str
    sha256: str


class SiteTruth(Settings):
    """The known truth about a site; a URL path such as /pictures/a.jpg names every image.

    A duplicate group lists all paths that show one image, the first one is the original. The
    groups share no image. In a *conflicting* group the paths carry different classes, so a good
    build drops all of it.
    """

    per_class: int
    """Distinct images of each class that a perfect build keeps."""
    seed: int
    distinct: int
    """Distinct images that a perfect build keeps in all."""
    pictures: dict[str, Served]
    dead_links: tuple[str, ...]
    exact_groups: tuple[tuple[str, ...], ...]
    """Same bytes under several names."""
    near_groups: tuple[tuple[str, ...], ...]
    """Same image encoded again: smaller, brighter, mirrored, turned."""
    not_pictures: tuple[str, ...]
    disallowed: tuple[str, ...]
    """Images that robots.txt forbids to fetch."""

    def conflicting(self, group: tuple[str, ...]) -> bool:
        """Say whether the members of a group carry different classes."""
        return len({self.pictures[path].label for path in group}) > 1

    def write(self, path: Path) -> None:
        """Write the truth as JSON, atomically."""
        write_text(path, self.model_dump_json(indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> "SiteTruth":
        """Read what `write` wrote. Raises UserError when it is absent or something else."""
        if not path.is_file():
            raise UserError(f"{path} does not exist; make the synthetic site first.")
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValueError:
            raise UserError(
                f"{path} is not the truth of a synthetic site; make the site again."
            ) from None
