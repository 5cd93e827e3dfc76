"""The process that looks for the ruler on one photo: MEGAPIXELS FOLDER, as `rulers` starts it."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from skindx.core.atomic_files import write_json
from skindx.ui.scanning.order import photo_paths
from skindx.ui.scanning.process import Send, serve
from skindx.ui.scanning.rulers import DRAWN, FOUND

_QUALITY = 92
"""Of the JPEG: lines of one pixel must stay sharp."""


def main(arguments: Sequence[str]) -> None:
    """Look for a ruler; ends with this process's standard input."""
    megapixels, folder = arguments
    serve(Path(folder), partial(_find, int(megapixels) * 10**6))


def _find(most_pixels: int, folder: Path, send: Send) -> None:
    from PIL import Image

    from skindx.scan.photo_store import photo_store
    from skindx.scan.pixel_store import LevelledPhoto
    from skindx.scan.ruler import confirmation_image, find_ruler

    (path,) = photo_paths(folder, 1)
    store = photo_store(path, folder / "store", most_pixels)
    read, (width, height) = LevelledPhoto(store), store.size()
    ruler = find_ruler(read, width, height, path.name)
    drawn = Image.fromarray(confirmation_image(read, width, height, ruler))
    drawn.save(folder / DRAWN, "JPEG", quality=_QUALITY, subsampling=0)
    found = {
        "mm_per_pixel": ruler.mm_per_pixel,
        "relative_error": ruler.relative_error,
        "ticks": len(ruler.row.ticks_T2),
        "pixels_a_tick": ruler.row.period,
        "unit": ruler.unit.division,
        "sentence": ruler.sentence,
    }
    write_json(folder / FOUND, found)


if __name__ == "__main__":
    main(sys.argv[1:])
