"""On which pixels boxes were drawn: as the file stores them, or turned upright as EXIF says.

A tool that does not heed EXIF shows a photo as it is stored, and gives the stored size. Boxes on
stored pixels are turned here. Where turning leaves the size as it is (180 degrees, mirrored,
square photos), sizes tell nothing: then other photos of the same file tell which tool it was, or in
Label Studio that the person turned the view just as EXIF would have.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from skindx.data.box import SLACK, UNKNOWN_SIZE, Box, BoxedImage, recut
from skindx.data.boxes.box_file import BoxEntry
from skindx.imaging.formats import image_suffix

DrawnOn = Literal["upright", "stored", "unknown", "missized"]

_HEAD = 1 << 18
"""Bytes: EXIF stands at the head of a JPEG, in 64 KiB, perhaps behind other segments."""
_VIEW_DEG = {3: 180, 6: 90, 8: 270}
"""EXIF orientation -> clockwise turn that makes the stored pixels upright."""


@dataclass(frozen=True, slots=True)
class Placed:
    """An entry in the frame of its image, and how that frame was known."""

    entry: BoxEntry
    sha256: str
    image: BoxedImage
    frame: DrawnOn
    turned: bool = False


def place(matched: Sequence[tuple[BoxEntry, str, tuple[int, int], int]]) -> list[Placed]:
    """Put the boxes of entries into the upright frames of their images.

    Each comes with the image's SHA-256, its upright (width, height), and its EXIF orientation.
    Where the sizes do not tell, all other entries do: if some were drawn on stored pixels and none
    on upright ones, so was this one. An image whose boxes remain uncertain is taken as upright.
    """
    frames = [_frame(entry, size, orientation) for entry, _, size, orientation in matched]
    sized = {frame for frame, (*_, turn) in zip(frames, matched, strict=True) if turn >= 5}
    told = sized & {"upright", "stored"}
    others: DrawnOn = "unknown"
    if len(told) == 1:
        others = "stored" if "stored" in told else "upright"
    placed = []
    for frame, (entry, sha256, size, orientation) in zip(frames, matched, strict=True):
        final = others if frame == "unknown" and entry.frame != "unsized" else frame
        turned = final == "stored" and bool(entry.image.boxes)
        image = entry.image
        if entry.frame == "either" and final != "missized":
            swapped = final == "stored" and orientation >= 5
            image = recut(image, size[::-1] if swapped else size)
        if final == "stored":
            image = turn_upright(image, size, orientation)
        placed.append(Placed(entry, sha256, image, final, turned))
    return placed


def _frame(entry: BoxEntry, size: tuple[int, int], orientation: int) -> DrawnOn:
    """Say from one entry alone on which pixels its boxes are."""
    image, stored = entry.image, size[::-1] if orientation >= 5 else size
    given = image.width, image.height
    if given not in (size, stored, UNKNOWN_SIZE):
        return "missized"
    by_size: DrawnOn = "upright" if given in (size, UNKNOWN_SIZE) else "stored"
    if orientation == 1 or not image.boxes or entry.frame == "upright":
        return by_size
    if entry.frame == "unsized":
        return "unknown"
    if size == stored:
        as_exif = entry.view_deg == _VIEW_DEG.get(orientation, 0) != 0
        return "stored" if as_exif else "unknown"
    if entry.frame == "sized" or by_size == "upright":
        return by_size
    fits_size, fits_stored = _fits(image, size), _fits(image, stored)
    return "unknown" if fits_size == fits_stored else "upright" if fits_size else "stored"


def _fits(image: BoxedImage, size: tuple[int, int]) -> bool:
    width, height = size
    return all(box.x2 <= width + SLACK and box.y2 <= height + SLACK for box in image.boxes)


def turn_upright(image: BoxedImage, size: tuple[int, int], orientation: int) -> BoxedImage:
    """Turn boxes on stored pixels as EXIF's orientation 1..8 turns the pixels.

    `size` is the upright (width, height).
    """
    width, height = size
    boxes = [_turned(box, width, height, orientation) for box in image.boxes]
    return replace(image, width=width, height=height, boxes=tuple(boxes))


def _turned(box: Box, width: int, height: int, orientation: int) -> Box:
    x1, y1, x2, y2 = box.x1, box.y1, box.x2, box.y2
    if orientation >= 5:
        x1, y1, x2, y2 = y1, x1, y2, x2
    if orientation in (2, 3, 6, 7):
        x1, x2 = width - x2, width - x1
    if orientation in (3, 4, 7, 8):
        y1, y2 = height - y2, height - y1
    return replace(box, x1=x1, y1=y1, x2=x2, y2=y2)


def orientation_in(file: Path) -> int:
    """Return the EXIF orientation of an image file, 1..8; 1 where nothing says otherwise."""
    from skindx.imaging.decode import FORMATS, orientation_of

    try:
        with file.open("rb") as opened:
            data = opened.read(_HEAD)
            suffix = image_suffix(data[:16])
            if suffix != ".jpg":
                data += opened.read()
    except OSError:
        return 1
    if suffix is None:
        return 1
    orientation = orientation_of(data, FORMATS[suffix])
    return orientation if 1 <= orientation <= 8 else 1
