"""A file or folder of boxes as a reader gives it: images by name, and what it left out and why."""

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from skindx.core.errors import UserError
from skindx.data.box import BoxedImage

WrittenFormat = Literal["coco", "yolo", "voc", "cvat", "fiftyone", "labelstudio"]
BoxFormat = Literal["coco", "yolo", "voc", "cvat", "fiftyone", "labelstudio", "masks"]
Unannotated = Literal["skip", "negative"]
YoloColumns = Literal["box", "polygon"]
Frame = Literal["sized", "upright", "unsized", "either"]
MASK_NAME = r"^(.+?)(?:[_-](?:segmentation|seg|mask|lesion))?\.png$"
UNLABELLED = (
    "images without annotation; --unannotated negative (in a recipe boxes.unannotated) takes them "
    "as looked at and without a lesion"
)
FIRST = 3
"""Number of examples that a sentence names of what it counts."""
_MOST_REASONS = 30
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class BoxRules:
    """What a person says of a file that the file itself does not."""

    unannotated: Unannotated = "skip"
    """COCO, CVAT, FiftyOne: images without annotation; YOLO: images without a label file; empty
    masks. `negative`: somebody looked at them, and there is no lesion."""
    columns: YoloColumns | None = None
    """YOLO: what lines of more than six columns are. None: as far as the folder itself shows."""
    pattern: str = MASK_NAME
    """Masks: a regular expression whose first group in a file's name is the image's."""


@dataclass(frozen=True, slots=True)
class BoxEntry:
    """What a file says of one image, by one person where it tells them apart."""

    paths: tuple[str, ...]
    """Every path or address under which the file names the image; the first is shown."""
    image: BoxedImage
    by: str = ""
    at: str = ""
    """UTC, ISO 8601."""
    frame: Frame = "sized"
    """sized: the image's size tells on which pixels it was drawn; upright: our export, so on the
    upright ones; unsized: the file has no sizes, and the image beside it is turned by EXIF; either:
    the size is the stored one whatever the boxes were drawn on, and they are not cut to it."""
    view_deg: int = 0
    """Degrees by which the person had turned the view, clockwise; boxes are on the image itself."""
    also: tuple[str, ...] = ()
    """Other names that the file gives it; where one is another image, neither is meant."""

    @property
    def name(self) -> str:
        """The image as messages name it."""
        return self.paths[0]


@dataclass(frozen=True, slots=True)
class BoxFinding:
    """Things of one kind that were left out or are uncertain: how many, why, and the first."""

    kind: Literal["skipped", "refused", "cut", "turned", "uncertain"]
    """skipped: rows of the file; refused: images that it names; cut: images that lost a part of
    their boxes; turned: taken, from the stored pixels to the upright ones; uncertain: taken, and
    perhaps wrong."""
    reason: str
    count: int
    first: tuple[str, ...]

    def line(self) -> str:
        named = f", such as {', '.join(self.first)}" if self.first else ""
        return f"{self.kind} {self.count}: {self.reason}{named}"

    def clause(self) -> str:
        """Return the finding as part of a sentence."""
        named = ", ".join(self.first)
        whole = self.count == len(self.first)
        return f"{self.reason} ({named if whole else f'{self.count}, such as {named}'})"


@dataclass(slots=True)
class BoxFindings:
    """Collects what is counted, by kind and reason, in the order in which it comes."""

    names: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def add(self, kind: str, reason: str, name: str) -> None:
        """Count one thing; a hostile file may have another reason in each row."""
        key = (kind, reason)
        if key not in self.names and len(self.names) >= _MOST_REASONS:
            key = (kind, "for other reasons")
        self.names.setdefault(key, []).append(name[:_LONGEST_NAME])

    def __len__(self) -> int:
        return sum(map(len, self.names.values()))

    def list(self) -> tuple[BoxFinding, ...]:
        return tuple(
            BoxFinding(kind, reason, len(names), tuple(dict.fromkeys(names))[:FIRST])  # type: ignore[arg-type]
            for (kind, reason), names in self.names.items()
        )


@dataclass(slots=True, eq=False)
class BoxFile(Mapping[str, BoxedImage]):
    """What a reader got from a file, path as the file has it -> image; of one path the last.

    It grows while the file is read.
    """

    path: Path
    entries: list[BoxEntry] = field(default_factory=list)
    findings: BoxFindings = field(default_factory=BoxFindings)
    waiting: BoxFindings = field(default_factory=BoxFindings)
    """Images that the file names and nobody has annotated: they count for nothing."""

    def skip(self, reason: str, name: str) -> None:
        """Leave out one row of the file."""
        self.findings.add("skipped", reason, name)

    def wait(self, reason: str, name: str, kind: Literal["skipped", "refused"] = "skipped") -> None:
        """Leave out an image that nobody is known to have looked at."""
        self.waiting.add(kind, reason, name)

    @property
    def images(self) -> dict[str, BoxedImage]:
        return {entry.name: entry.image for entry in self.entries}

    def __getitem__(self, name: str) -> BoxedImage:
        return self.images[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.images)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def usable(self) -> Iterator[BoxEntry]:
        """Entries that say something: not those of which no row could be read."""
        return (entry for entry in self.entries if entry.image.boxes or not entry.image.unread)

    def drop_repeated(self) -> None:
        """Leave out images that the file names twice: nobody knows which of them counts."""
        counts = Counter(entry.paths for entry in self.entries)
        for entry in self.entries:
            if counts[entry.paths] > 1:
                self.skip("the file names this image more than once", entry.name)
        self.entries = [entry for entry in self.entries if counts[entry.paths] == 1]

    def all_findings(self) -> tuple[BoxFinding, ...]:
        """Return everything that was left out, rows first."""
        return (*self.findings.list(), *self.waiting.list())

    def check(self, *, strict: bool) -> None:
        """Raise UserError where nothing is left, and with `strict` where anything was left out."""
        if strict:
            refuse_all(self.path, self.findings.list())
        findings = self.all_findings()
        if findings and next(self.usable, None) is None:
            clauses = "; ".join(finding.clause() for finding in findings)
            raise UserError(f"no box in {self.path} can be used: {clauses}; correct what it names.")


def refuse_all(path: Path, findings: Sequence[BoxFinding]) -> None:
    """Raise UserError that names what was found, if anything was."""
    if findings:
        clauses = "; ".join(finding.clause() for finding in findings)
        raise UserError(
            f"{path}: {clauses}; correct what it names, or remove --strict (`boxes.strict` "
            "in a recipe) to leave that out."
        )


def text_id(value: object) -> str:
    """Return an id as text, so that 1, 1.0 and "1" are one. Raises ValueError for what is none."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).strip():
        raise ValueError("an id is neither a whole number nor text")
    return str(value).strip()


def score_of(value: object) -> float | None:
    """Return a confidence from 0 to 1, None for anything else."""
    try:
        score = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return score if 0 <= score <= 1 else None


def mapping(value: object) -> Mapping[str, object]:
    """Return a JSON object. Raises ValueError for anything else."""
    if not isinstance(value, dict):
        raise ValueError("a row is not a JSON object")
    return value


Framed = tuple[tuple[int, int], Frame]
"""An image's (width, height) turned as EXIF says, and on which pixels its boxes may be."""


def upright_size(path: Path) -> Framed | None:
    """Return the size of an image and its frame, None for what is no image."""
    from PIL import Image

    from skindx.imaging.decode import (
        FORMATS,
        MAX_PIXELS,
        exif_orientation,
        ignore_warnings,
    )  # numpy: not for a crawl
    from skindx.imaging.decode_cost import check_size

    try:
        with ignore_warnings(), Image.open(path, formats=tuple(FORMATS.values())) as image:
            check_size(*image.size, MAX_PIXELS)  # looking for EXIF may decode
            orientation = exif_orientation(image)
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
            raise UserError(
                f"the files {other} and {name} differ only in their ending; rename one of them."
            )
        if copy:
            shutil.copyfile(source, folder / name)
        else:
            (folder / name).symlink_to(source.resolve())
