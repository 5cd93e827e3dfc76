"""Image files beside boxes, for formats that name no size or bring the images along."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from skindx.core.errors import UserError
from skindx.data.boxes.box_file import Frame

Framed = tuple[tuple[int, int], Frame]
"""An image's (width, height) turned as EXIF says, and on which pixels its boxes may be."""


def upright_size(path: Path) -> Framed | None:
    """Return the size of an image and its frame, None for what is no image."""
    from PIL import Image

    from skindx.imaging.decode import FORMATS, MAX_PIXELS, hushed  # numpy: not for a crawl
    from skindx.imaging.decode_cost import check_size

    try:
        with hushed(), Image.open(path, formats=tuple(FORMATS.values())) as image:
            check_size(*image.size, MAX_PIXELS)  # looking for EXIF may decode
            orientation = image.getexif().get(274, 1)
            # Pillow gives the size of a TIFF as it is once turned.
            swapped = orientation in (5, 6, 7, 8) and image.format != "TIFF"
            size = image.size[::-1] if swapped else image.size
            # Shares of the image do not tell on which pixels they were drawn where EXIF turns it.
            return size, "unsized" if orientation in range(2, 9) else "sized"
    except Exception:
        # The build itself says what is wrong with the image; here it only has no boxes.
        return None


def place(folder: Path, files: Mapping[str, Path], *, copy: bool) -> None:
    """Put images into a new folder under their names. Raises UserError for equal stems."""
    folder.mkdir(parents=True)
    stems: dict[str, str] = {}
    for name, source in files.items():
        other = stems.setdefault(Path(name).stem, name)
        if other != name:
            raise UserError(f"{other} and {name} would share one file of boxes; rename one.")
        if copy:
            shutil.copyfile(source, folder / name)
        else:
            (folder / name).symlink_to(source.resolve())
