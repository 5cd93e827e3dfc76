"""A dataset as static pages: what was kept, dropped and is to be reviewed, with the reasons.

No script, no outside reference, every value escaped: pages of untrusted text that open from the
disk. They show private images and are not for publishing.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import FolderKind, atomic_folder, finish_folder, leftovers, write_json
from skindx.core.errors import UserError
from skindx.core.progress import Progress, silent
from skindx.data.gallery.copies import PAIRS, write_drawings
from skindx.data.gallery.pages import write_pages
from skindx.data.gallery.tiles import VIEWS, read_tiles
from skindx.data.layout import GALLERY
from skindx.imaging.sandboxed_images import THUMBS, write_thumbnails

MARK = "gallery.json"
INDEX = "index.html"
_PAGES = (INDEX, *(f"{view}-*.html" for view in VIEWS))
_GALLERY = FolderKind("a gallery", MARK, (*_PAGES, THUMBS, PAIRS))


def write_gallery(dataset: Path, out: Path, *, progress: Progress = silent) -> Path:
    """Write the gallery of a dataset folder; return its first page.

    An older gallery in `out` stays until the new one is whole, and gives its thumbnails. Raises
    UserError for what is no dataset, and for a folder that holds anything but a gallery.
    """
    finish_folder(out, MARK)
    _GALLERY.check(out)
    if (out / MARK).exists():
        dataset_of(out)
    _sweep(out)
    tiles = read_tiles(dataset)
    with atomic_folder(out, _GALLERY) as folder:
        files = {sha256: dataset / path for sha256, path in tiles.files.items()}
        shown = write_thumbnails(folder / THUMBS, files, out / THUMBS, progress)
        drawn = write_drawings(dataset, folder, tiles.by_view["copies"], progress)
        write_pages(folder, tiles, shown, drawn)
        write_json(folder / MARK, {"dataset": str(dataset.resolve())})
    return out / INDEX


def dataset_of(gallery: Path) -> Path:
    """Return the dataset folder that a gallery shows. Raises UserError for what is no gallery."""
    try:
        mark: Any = json.loads((gallery / MARK).read_text(encoding="utf-8"))
        return Path(mark["dataset"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{gallery} is no gallery; give a folder that `skindx gallery` wrote."
        ) from None


def galleries_in(dataset: Path) -> list[Path]:
    """Return DATASET/gallery, if there is one, or what a killed writing left of it."""
    folder = dataset / GALLERY
    return [folder] if folder.is_dir() or leftovers(folder) else []


def _sweep(out: Path) -> None:
    # They hold thumbnails, maybe of an image that was taken down since.
    for folder in leftovers(out):
        shutil.rmtree(folder)
