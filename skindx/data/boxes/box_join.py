"""The boxes of a file join the images of a dataset; what does not fit is counted, with reasons.

Boxes were drawn on pixels as the file stores them, or turned upright as EXIF says: a tool that does
not heed EXIF shows a photo as it is stored, and gives the stored size. Boxes on stored pixels are
turned here. Where turning leaves the size as it is (180 degrees, mirrored, square photos), sizes
tell nothing: then other photos of the same file tell which tool it was, or in Label Studio that the
person turned the view just as EXIF would have.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from skindx.data.box import SLACK, UNKNOWN_SIZE, Box, BoxedImage, recut
from skindx.data.boxes.box_file import BoxEntry, BoxFile, BoxFinding, BoxFindings
from skindx.data.boxes.image_names import match_entries
from skindx.imaging.image_formats import image_suffix

DrawnOn = Literal["upright", "stored", "unknown", "missized"]

_HEAD = 1 << 18
"""Bytes: EXIF stands at the head of a JPEG, in 64 KiB, perhaps behind other segments."""
_VIEW_DEG = {3: 180, 6: 90, 8: 270}
"""EXIF orientation -> clockwise turn that makes the stored pixels upright."""


@dataclass(frozen=True, slots=True)
class FramedEntry:
    """An entry in the frame of its image, and how that frame was known."""

    entry: BoxEntry
    sha256: str
    image: BoxedImage
    frame: DrawnOn
    turned: bool = False


def place(matched: Sequence[tuple[BoxEntry, str, tuple[int, int], int]]) -> list[FramedEntry]:
    """Put the boxes of entries into the upright frames of their images.

    Each comes with the image's SHA-256, its upright (width, height), and its EXIF orientation.
    Where an entry's sizes do not tell its frame, the other entries imply it: stored pixels if some
    were drawn on stored pixels and none on upright ones. An image whose boxes stay uncertain is
    taken as upright.
    """
    frames = [_frame(entry, size, orientation) for entry, _, size, orientation in matched]
    sized = {frame for frame, (*_, turn) in zip(frames, matched, strict=True) if turn >= 5}
    known = sized & {"upright", "stored"}
    implied: DrawnOn = "unknown"
    if len(known) == 1:
        implied = "stored" if "stored" in known else "upright"
    placed = []
    for frame, (entry, sha256, size, orientation) in zip(frames, matched, strict=True):
        final = implied if frame == "unknown" and entry.frame != "unsized" else frame
        turned = final == "stored" and bool(entry.image.boxes)
        image = entry.image
        if entry.frame == "either" and final != "missized":
            swapped = final == "stored" and orientation >= 5
            image = recut(image, size[::-1] if swapped else size)
        if final == "stored":
            image = turn_upright(image, size, orientation)
        placed.append(FramedEntry(entry, sha256, image, final, turned))
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


MISSIZED = "the dataset has the image in another size"
ODD = "it has boxes that are empty or reach outside the image, or shapes that are not boxes"
UNREAD = "none of its rows can be used, which does not say that there is no lesion"
PARTLY_READ = "some of its rows cannot be used, so its boxes may not be all: look at them"
LEFT_OUT = "the image was left out of the dataset"
TURNED = "drawn on the stored pixels of a photo that EXIF turns, so turned with it"
UNCERTAIN = (
    "the photo is turned or mirrored by EXIF, and nothing says whether the boxes are on the "
    "stored or on the upright pixels; they are taken as upright: look at them"
)


@dataclass(frozen=True, slots=True)
class DatasetImage:
    """An image of the dataset: upright (width, height), and its file."""

    size: tuple[int, int]
    file: Path


@dataclass(frozen=True, slots=True)
class JoinedEntry:
    """An entry of a box file, its image's SHA-256, and its boxes in that image."""

    entry: BoxEntry
    sha256: str
    image: BoxedImage


@dataclass(frozen=True, slots=True)
class BoxCounts:
    """What became of a box file, as summary.json has it."""

    file: str
    named: int
    """Images that the file names."""
    joined: int
    """Images of the dataset that have boxes of it, or are known from it to have none."""
    boxes: int
    findings: tuple[BoxFinding, ...] = ()

    def lines(self) -> list[str]:
        return [
            f"box file {self.file}: {self.joined} of {self.named} images that it names are in the "
            f"dataset, with {self.boxes} boxes.",
            *(f"box file {self.file}: {finding.line()}." for finding in self.findings),
        ]


@dataclass(slots=True)
class Joined:
    """What fits, and what does not."""

    file: BoxFile
    entries: list[JoinedEntry] = field(default_factory=list)
    findings: BoxFindings = field(default_factory=BoxFindings)

    def all_findings(self) -> tuple[BoxFinding, ...]:
        """Return what was left out of the file and what fits no image."""
        return (*self.file.all_findings(), *self.findings.list())

    def problems(self) -> tuple[BoxFinding, ...]:
        """Return all that `--strict` refuses: not what nobody has annotated yet."""
        return (*self.file.findings.list(), *self.findings.list())

    def counts(self) -> BoxCounts:
        """Return the figures for the summary."""
        latest = {joined.sha256: joined.image for joined in self.entries}
        named = {entry.paths for entry in self.file.entries}
        return BoxCounts(
            self.file.path.name,
            len(named) + len(self.file.waiting),
            len(latest),
            sum(len(image.boxes) for image in latest.values()),
            self.all_findings(),
        )


def join(
    file: BoxFile,
    images: Mapping[str, DatasetImage],
    names: Iterable[tuple[str, str]],
    *,
    cut: bool = False,
) -> Joined:
    """Join the entries of a box file to `images`, by SHA-256.

    `names` gives (SHA-256, path or URL) of every image that was found, also of those that are not
    in the dataset: a box must not land on another one that bears the same name. With `cut`, an
    image keeps those of its boxes that fit; otherwise it is refused for one that does not.
    """
    joined = Joined(file)
    for placed in place(_matched(joined, images, names)):
        name, refused = placed.entry.name, placed.image.refused
        if placed.frame == "missized":
            joined.findings.add("refused", MISSIZED, name)
            continue
        if refused and not cut:
            joined.findings.add("refused", ODD, name)
            continue
        if refused:
            joined.findings.add("refused" if not placed.image.boxes else "cut", ODD, name)
        if refused and not placed.image.boxes:
            continue  # a box that is nowhere in the image does not say that there is no lesion
        if placed.image.unread:
            joined.findings.add("cut", PARTLY_READ, name)
        if placed.turned:
            joined.findings.add("turned", TURNED, name)
        elif placed.frame == "unknown":
            joined.findings.add("uncertain", UNCERTAIN, name)
        joined.entries.append(JoinedEntry(placed.entry, placed.sha256, placed.image))
    return joined


def _matched(
    joined: Joined, images: Mapping[str, DatasetImage], names: Iterable[tuple[str, str]]
) -> list[tuple[BoxEntry, str, tuple[int, int], int]]:
    """Return the entries that have an image, with its SHA-256, upright size and orientation."""
    entries = joined.file.entries
    matches = match_entries(entries, names)
    matched = []
    for position, entry in enumerate(entries):
        sha256 = matches.image.get(position, "")
        if not sha256:
            joined.findings.add("refused", matches.refused[position], entry.name)
        elif sha256 not in images:
            joined.findings.add("refused", LEFT_OUT, entry.name)
        elif entry.image.unread and not entry.image.boxes:
            joined.findings.add("refused", UNREAD, entry.name)
        else:
            stored = images[sha256]
            matched.append((entry, sha256, stored.size, orientation_in(stored.file)))
    return matched
