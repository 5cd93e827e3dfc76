"""The formats of box files, one line each, and a file of boxes as a recipe names it.

A file's content says which format it is. supervision's writers were tried and left: they round
Pascal VOC to whole pixels and YOLO to five decimals, take an image without a file for one without
boxes, decode every image, and drop who drew. Tests read what is written here with supervision,
pycocotools, ultralytics and FiftyOne. Masks of lesions, one PNG an image, are read here: the box
lies around all that a mask marks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from skindx.core.atomic_files import below
from skindx.core.errors import UserError
from skindx.core.settings_base import NamePattern, Settings
from skindx.data.box import Box, BoxedImage
from skindx.data.boxes.box_file import (
    MASK_NAME,
    BoxEntry,
    BoxFile,
    BoxFormat,
    BoxRules,
    Unannotated,
    YoloColumns,
)
from skindx.data.boxes.coco import read_coco, read_json, write_coco
from skindx.data.boxes.cvat import is_cvat, read_cvat, write_cvat
from skindx.data.boxes.fiftyone import LABELS, is_fiftyone, read_fiftyone, write_fiftyone
from skindx.data.boxes.labelstudio import LabelTask, read_labelstudio, write_labelstudio
from skindx.data.boxes.voc import read_voc, write_voc
from skindx.data.boxes.yolo import DATA, read_yolo, write_yolo
from skindx.data.manifest import Split
from skindx.data.name_patterns import first_groups
from skindx.imaging.sandboxed_images import decode_limited

WHOLE = 0.9
"""Share of an image; a mask of more says that the lesion goes beyond it, or was drawn in haste."""
_MAX_BYTES = 50_000_000
_RULES = BoxRules()


def holds_masks(folder: Path) -> bool:
    """Tell whether the first PNG of a folder is grey, as masks are; photos have colours."""
    first = next(iter(below(folder, "*.png")), None)
    if first is None:
        return False
    try:
        with first.open("rb") as file:
            return file.read(26)[25:] == b"\0"  # the colour type in IHDR
    except OSError:
        return False


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


@dataclass(frozen=True, slots=True)
class BoxExport:
    """What an export writes: the reviewed images of each split, by file name."""

    parts: Sequence[tuple[Split, Mapping[str, BoxedImage]]]
    files: Mapping[str, Path]
    """Where each image lies."""
    labels: Sequence[str]
    """The classes of the boxes, sorted; never none, since YOLO needs one."""
    tasks: Callable[[], list[LabelTask]]
    """One an image, reviewed or not."""
    copy: bool
    """Copy the images; otherwise they are linked."""

    @property
    def images(self) -> dict[str, BoxedImage]:
        """The reviewed images of all splits."""
        return {name: image for _, images in self.parts for name, image in images.items()}


@dataclass(frozen=True, slots=True)
class BoxFormatKind:
    """One format: its functions, and what it has a place for."""

    claims: Callable[[Path], bool]
    """Whether the content of a file or folder is of this format, unless one before it claims it."""
    read: Callable[[Path, BoxRules], BoxFile]
    write: Callable[[Path, BoxExport], object] | None = None
    suffix: str = ""
    """Suffix of its single file; "": it is a folder, with images."""
    names_all: bool = False
    """It names images whether somebody looked at them or not: `unannotated` says what they are."""


FORMATS: Mapping[BoxFormat, BoxFormatKind] = {
    "yolo": BoxFormatKind(
        lambda path: path.suffix in (".yaml", ".yml") or (path / DATA).is_file(),
        read_yolo,
        lambda out, e: write_yolo(out, e.parts, e.files, e.labels, copy=e.copy),
        names_all=True,
    ),
    "fiftyone": BoxFormatKind(
        lambda path: is_fiftyone(path) or (path.name == LABELS and is_fiftyone(path.parent)),
        read_fiftyone,
        lambda out, e: write_fiftyone(out, e.images, e.files, e.labels, copy=e.copy),
        names_all=True,
    ),
    "cvat": BoxFormatKind(
        is_cvat,
        read_cvat,
        lambda out, e: write_cvat(out, e.images, e.labels),
        ".xml",
        names_all=True,
    ),
    "voc": BoxFormatKind(
        lambda path: path.suffix == ".xml" or bool(below(path, "*.xml")),
        read_voc,
        lambda out, e: write_voc(out, e.images, e.files, copy=e.copy),
    ),
    "masks": BoxFormatKind(
        lambda path: path.is_dir() and holds_masks(path), read_masks, names_all=True
    ),
    "labelstudio": BoxFormatKind(
        lambda path: path.is_file() and isinstance(read_json(path), list),
        read_labelstudio,
        lambda out, e: write_labelstudio(out, e.tasks()),
        ".json",
    ),
    "coco": BoxFormatKind(
        Path.is_file, read_coco, lambda out, e: write_coco(out, e.images), ".json", names_all=True
    ),
}


class BoxSource(Settings):
    """A file or folder of boxes; a bare path in a recipe is one, too."""

    path: Path
    kind: BoxFormat | None = None
    """null: detected from the content."""
    unannotated: Unannotated = Field("skip", exclude_if=lambda value: value == "skip")
    """Images that a file names without annotation, or a YOLO folder has without label file.

    skip: nobody looked at them; negative: somebody did, and there is no lesion."""
    columns: YoloColumns | None = Field(None, exclude_if=lambda value: value is None)
    """What YOLO lines of six and more values after the class are, where the folder does not tell.

    box: each begins with a box, and the rest does not count; polygon: each is one."""
    pattern: NamePattern = Field(MASK_NAME, exclude_if=lambda value: value == MASK_NAME)
    """Masks: a regular expression; its first group is the image's name in the name of a mask."""
    strict: bool = Field(False, exclude_if=lambda value: not value)
    """Refuse the file for a row that cannot be used; otherwise it is left out and counted."""
    optional: bool = Field(False, exclude_if=lambda value: not value)
    """Build without boxes where there is nothing at `path`."""

    @model_validator(mode="before")
    @classmethod
    def _bare_path(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str | Path) else value

    def read(self) -> BoxFile:
        """Read the boxes of any format. Raises UserError, also where none of them can be used."""
        kind = self.kind or format_of(self.path)
        self.check(kind)
        file = FORMATS[kind].read(self.path, BoxRules(self.unannotated, self.columns, self.pattern))
        file.check(strict=self.strict)
        return file

    def check(self, kind: BoxFormat) -> None:
        """Raise UserError for what the format has no place for."""
        if self.columns and kind != "yolo":
            raise UserError(
                f"--columns (`boxes.columns`) does not apply to the format {kind}; remove it."
            )
        if self.pattern != MASK_NAME and kind != "masks":
            raise UserError(
                f"`boxes.pattern` does not apply to the format {kind}; remove it from the recipe."
            )
        if self.unannotated == "negative" and not FORMATS[kind].names_all:
            raise UserError(
                f"--unannotated (`boxes.unannotated`) does not apply to the format {kind}, which "
                "itself marks the annotated images; remove it."
            )


def read_boxes(source: BoxSource) -> BoxFile:
    """Read boxes of any format. Raises UserError."""
    return source.read()


def format_of(path: Path) -> BoxFormat:
    """Return the format that a file's or folder's content shows. Raises UserError."""
    if not path.exists():
        raise UserError(f"{path} does not exist; give a file or folder of boxes.")
    if path.suffix.lower() == ".zip":
        raise UserError(f"{path} is an archive; unpack it and give the unpacked folder.")
    for kind, form in FORMATS.items():
        if form.claims(path):
            return kind
    raise UserError(
        f"{path} has no annotations in a known format: {DATA} (YOLO), {LABELS} with data/ "
        "(FiftyOne), XML (CVAT, VOC) or masks (PNG); give such a folder, or a JSON file of COCO "
        "or Label Studio."
    )
