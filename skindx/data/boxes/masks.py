"""Masks of lesions as a source of boxes: one PNG an image, and the box around all that it marks."""

from pathlib import Path

import numpy as np

from skindx.core.atomic_files import below
from skindx.core.errors import UserError
from skindx.data.box import Box, BoxedImage
from skindx.data.boxes.box_file import BoxEntry, BoxFile, BoxRules
from skindx.data.name_patterns import first_groups
from skindx.imaging.sandboxed_images import decode_limited

WHOLE = 0.9
"""Share of an image; a mask of more says that the lesion goes beyond it, or was drawn in haste."""
_MAX_BYTES = 50_000_000
_RULES = BoxRules()


def holds_masks(folder: Path) -> bool:
    """Tell whether the first PNG of a folder is grey, as masks are; photos have colours."""
    first = next(iter(below(folder, "*.png")), None)
    try:
        return first is not None and _is_grey(first)
    except OSError:
        return False


def _is_grey(png: Path) -> bool:
    with png.open("rb") as file:
        return file.read(26)[25:] == b"\0"  # the colour type in IHDR


def read_masks(path: Path, rules: BoxRules = _RULES) -> BoxFile:
    """Read a folder of masks; the first group of `rules.pattern` in a file's name is its image.

    A mask is a PNG of two grey levels, black outside the lesion; where it is in pieces, the box
    holds them all. An empty one says that nobody found the outline, unless `rules.unannotated` is
    negative. Who drew is not in the format: `drawn_by` is the folder. Raises UserError.
    """
    if not path.is_dir():
        raise UserError(f"{path} is no folder; give the folder of the masks (PNG).")
    file, bounds = BoxFile(path), path.resolve()
    masks = below(path, "*.png")
    images = first_groups(rules.pattern, (mask.name for mask in masks))
    for mask in masks:
        shown = mask.relative_to(path)
        named = images[mask.name]
        if not named:
            file.skip(f"the file name does not fit the pattern {rules.pattern!r}", str(shown))
        elif not mask.is_file() or not mask.resolve().is_relative_to(bounds):
            file.skip("it is no file, or a link out of the folder", str(shown))
        else:
            _take(file, mask, (shown.parent / named).as_posix(), rules)
    if not masks:
        raise UserError(f"{path} holds no PNG; give the folder of the masks.")
    file.drop_repeated()
    return file


def _take(file: BoxFile, mask: Path, image: str, rules: BoxRules) -> None:
    """Add one mask's box, or why it has none."""
    name = mask.relative_to(file.path).as_posix()
    try:
        with mask.open("rb") as opened:
            data = opened.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES} bytes")
        grey_HW = decode_limited(data).max(2)
    except (OSError, ValueError) as error:
        return file.skip("the mask cannot be read", f"{name} ({error})")
    marked_HW = grey_HW > 0
    if (grey_HW[marked_HW] != grey_HW.max()).any():
        return file.skip("it has more than two grey levels, so it is no mask", name)
    height, width = marked_HW.shape
    boxes: tuple[Box, ...] = ()
    if marked_HW.any():
        rows, columns = (np.flatnonzero(marked_HW.any(axis)).tolist() for axis in (1, 0))
        x1, y1, x2, y2 = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
        boxes = (Box(x1, y1, x2, y2, drawn_by=file.path.name),)
        if marked_HW.mean() > WHOLE:
            covers = f"its mask covers more than {WHOLE:.0%} of the image, and the box is kept"
            file.findings.add("uncertain", covers, name)
    elif rules.unannotated == "skip":
        return file.wait("the mask is empty, which does not say that there is no lesion", name)
    file.entries.append(BoxEntry((image,), BoxedImage(width, height, boxes)))
    return None
