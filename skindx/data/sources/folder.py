"""A folder of class folders, or a YOLO folder, as a source; links are followed only where asked."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from skindx.core.atomic_files import below, entries
from skindx.core.errors import UserError
from skindx.core.settings_base import NamePattern
from skindx.data.box import base_name
from skindx.data.boxes.box_file import BoxEntry, BoxRules, YoloColumns
from skindx.data.boxes.coco import is_coco, read_coco
from skindx.data.boxes.fiftyone import DATA, LABELS, is_fiftyone, labelled_files
from skindx.data.boxes.yolo import label_files, read_yolo
from skindx.data.layout import MANIFEST, STORE
from skindx.data.ledger import LedgerRow
from skindx.data.name_patterns import first_groups
from skindx.data.placeholders import is_no_label
from skindx.data.sources.image_source import LocalSource, SourcePreview
from skindx.data.tables.cells import split_of
from skindx.imaging.image_formats import HEAD, image_suffix, unusable
from skindx.taxonomy import normalise

NOT_OPENED = "it was not opened"
_NO_CLASS = "the recipe's labels say that it is of no class"
MAX_BYTES = 200_000_000
"""No photograph is larger; what is would only fill memory and disk."""


@dataclass(frozen=True, slots=True)
class FolderFile:
    """One file of a folder; `status` is "stored" for what looks like an image, else why not."""

    path: Path
    label: str
    status: str
    detail: str = ""


@dataclass(frozen=True)
class FolderWalk:
    """Goes through folders; links lead out of `bounds` only where there are none."""

    bounds: Path | None
    opened: int | None = None
    """Most files of a folder that are opened, evenly spread; the others count as images."""

    def enters(self, entry: Path) -> bool:
        """Tell whether an entry is a folder to go through."""
        return entry.is_dir() and (self.bounds is None or not entry.is_symlink())

    def files(self, folder: Path, label: str, above: tuple[Path, ...] = ()) -> Iterator[FolderFile]:
        """Yield all files below a folder; `above` are the folders that lead to it."""
        real = _target(folder)
        if real in above:
            yield FolderFile(folder, label, "link-refused", "the link leads back to a folder above")
            return
        entries = visible(folder)
        every = max(1, len(entries) // self.opened) if self.opened else 1
        for number, entry in enumerate(entries):
            if self.enters(entry):
                yield from self.files(entry, label, (*above, real))
            elif number % every:
                yield FolderFile(entry, label, "stored", NOT_OPENED)
            else:
                yield look_at(entry, label, self.bounds)


def look_at(path: Path, label: str, bounds: Path | None) -> FolderFile:
    """Say what a file is; links that lead out of `bounds` are refused, if there are any."""
    try:
        outside = bounds is not None and not _target(path).is_relative_to(bounds)
        if path.is_symlink() and (path.is_dir() or outside):
            detail = "the link leads to a folder or out of the source"
            return FolderFile(path, label, "link-refused", detail)
        if path.exists() and not path.is_file():
            return FolderFile(path, label, "unreadable", "it is neither a file nor a folder")
        with path.open("rb") as file:
            head = file.read(HEAD)
        size_bytes = path.stat().st_size
    except OSError as error:
        return FolderFile(path, label, "unreadable", _unreadable(error))
    if image_suffix(head) is None:
        return FolderFile(path, label, *unusable(head))
    if size_bytes > MAX_BYTES:
        return FolderFile(path, label, "too-large", f"it has more than {MAX_BYTES} bytes")
    return FolderFile(path, label, "stored")


def _target(link: Path) -> Path:
    # Unlike Path.resolve, realpath answers for a link that leads to itself.
    return Path(os.path.realpath(link))


def visible(folder: Path) -> list[Path]:
    try:
        listed = sorted(entries(folder))
    except OSError as error:
        raise UserError(
            f"the folder {folder} cannot be read ({error.strerror}); allow your user to read it "
            "(chmod)."
        ) from None
    return [entry for entry in listed if not entry.name.startswith(".")]


def _unreadable(error: OSError) -> str:
    return f"the file cannot be read ({error.strerror})"


MIN_PER_CLASS = 3
_SPLIT_NAMES = {"train", "training", "test", "testing", "val", "valid", "validation"}
_PART = re.compile(
    r"(?:.*[\W_])?(?:part|train|training|test|testing|val|valid|validation|images?|masks?|split|fold"
    r"|batch)[\W_]*\d*",
    re.IGNORECASE | re.DOTALL,
)
"""Names of folders that divide images, such as HAM10000_images_part_1."""
_ADVICE = "give a folder that holds one folder of images for each class"


class FolderSource(LocalSource):
    """Images on this disk; who made them and what their licence allows."""

    kind: Literal["folder"] = "folder"
    path: Path
    layout: Literal["classes", "yolo", "coco", "fiftyone"] = "classes"
    """classes: one folder a class; yolo: images/ and labels/, the class is that of the boxes; coco:
    the same of COCO JSON in any of its folders; fiftyone: data/ and labels.json, of classes or of
    boxes, or a folder of such folders."""
    columns: YoloColumns | None = Field(None, exclude_if=lambda columns: columns is None)
    """yolo: what lines of more than six columns are, where the folder does not tell: box, polygon.
    """
    labels: Mapping[str, str | None] = Field({}, exclude_if=lambda labels: not labels)
    """Class folder -> class; null leaves its images out. Other folders keep their name."""
    label_pattern: NamePattern | None = Field(None, exclude_if=lambda pattern: pattern is None)
    """Regular expression; its first group is the class in a file name, whatever its folder."""
    group_pattern: NamePattern | None = None
    """Regular expression; its first group is the patient, lesion or original in a file name."""
    follow_links: bool = Field(False, exclude_if=lambda follow: not follow)
    """Follow links to folders, and to files outside this folder."""
    splits: Literal["merged", "kept"] = Field("merged", exclude_if=lambda how: how == "merged")
    """Split folders (train, test …): merged, and the split is made again, or kept as they are."""
    licence: str = ""
    attribution: str = ""
    creator: str = ""

    knows_labels: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return f"folder:{_text(self.path.resolve().name)}"

    @property
    def folder(self) -> Path:
        return self.path

    def preview(self) -> SourcePreview:
        """Return the labels of all images, and which splits are merged. Raises UserError."""
        layout = look_at_folder(self)
        names = " and ".join(layout.merged)
        kept = self.splits == "kept"
        what = "are kept as splits" if kept else "are merged; the split is made again"
        notes = [f"{self.path}: {names} {what}."] if names else []
        return SourcePreview([f.label for f in layout.files if f.status == "stored"], notes)

    def gather(self, dataset: Path) -> list[LedgerRow]:
        """Copy the folder's images into the store; return one row a file, label = class folder.

        `url` is the path relative to the source. Raises UserError, before anything is written, for
        a folder that no dataset can come from (see `look_at_folder`).
        """
        files = look_at_folder(self).files
        names = [file.path.name for file in files] if self.group_pattern else []
        groups = first_groups(self.group_pattern or "", names)
        rows = [_store(file, self, dataset, groups.get(file.path.name) or "") for file in files]
        if not any(row.status == "stored" for row in rows):
            raise UserError(
                f"none of the {len(rows)} files in {self.path} can be used ({rows[0].url}: "
                f"{rows[0].detail}); check that they are images and that your user may read them."
            )
        return rows


@dataclass(frozen=True, slots=True)
class FolderLayout:
    """Contents of a folder, before anything is copied."""

    merged: tuple[str, ...]
    """Names of the split folders whose class folders are read as one."""
    files: tuple[FolderFile, ...]


def look_at_folder(source: FolderSource, opened: int | None = None) -> FolderLayout:
    """Say what a folder holds, without writing anything.

    Split folders (Train, test, val …) at the top are merged: splits that others made are not
    trusted. With `opened`, only so many files of each folder are opened; the others count as
    images. Raises UserError for a path that is no folder, no class folders, one class only, or
    a class of fewer than 3 images; the rule judges the input, not what cleaning leaves of it.
    """
    root = source.path
    if not root.exists():
        raise UserError(f"{root} does not exist; {_ADVICE}.")
    if not root.is_dir():
        raise UserError(f"{root} is a file; {_ADVICE}.")
    if (root / MANIFEST).exists() and (root / STORE).is_dir():
        raise UserError(
            f"{root} is a dataset that `skindx build` wrote, not images to build from; {_ADVICE}."
        )
    if source.layout != "classes":
        return _look_at_labelled(root, source)
    walk = FolderWalk(None if source.follow_links else root.resolve(), opened)
    if source.label_pattern:
        return _look_at_named(root, source, walk)
    tops, merged = _tops(root, walk)
    files: list[FolderFile] = []
    classes: list[str] = []
    labels = {normalise(name): label for name, label in source.labels.items()}
    for entry in (entry for top in tops for entry in visible(top)):
        if walk.enters(entry):
            name = _text(entry.name)
            label = labels.get(normalise(name), name)
            if label:
                classes.append(label)
                files += walk.files(entry, label)
            else:
                left = (replace(file, status="unmapped-label", detail=_NO_CLASS)
                        for file in walk.files(entry, name))  # fmt: skip
                files += left
        else:
            file = look_at(entry, "", walk.bounds)
            loose = replace(file, status="no-class-folder", detail="it lies in no class folder")
            files.append(loose if file.status == "stored" else file)
    _check_links(root, classes, files)
    _check_parts(root, classes)
    _check_classes(root, classes, files)
    return FolderLayout(merged, tuple(files))


def _look_at_named(root: Path, source: FolderSource, walk: FolderWalk) -> FolderLayout:
    """Give each image the class that its name says."""
    found = list(walk.files(root, ""))
    said = first_groups(source.label_pattern or "", [file.path.name for file in found])
    labels = {normalise(name): label for name, label in source.labels.items()}
    files = []
    for file in found:
        name = said.get(file.path.name) or ""
        label = labels.get(normalise(name), name) if name else ""
        if file.status == "stored" and not label:
            detail = _NO_CLASS if name else "label_pattern finds no class in its name"
            status = "unmapped-label" if name else "no-class"
            files.append(replace(file, label=name, status=status, detail=detail))
        else:
            files.append(replace(file, label=label or ""))
    if found and not any(file.label for file in files):
        raise UserError(
            f"`label_pattern` in the recipe finds no class in the file names of {root}, such as "
            f"{found[0].path.name!r}; change `label_pattern`."
        )
    _check_classes(root, [file.label for file in files if file.status == "stored"], files)
    return FolderLayout((), tuple(files))


def _look_at_labelled(root: Path, source: FolderSource) -> FolderLayout:
    """Give each image its class or that of its boxes; without one, or with several, it is none."""
    roots = [root]
    if source.layout == "fiftyone" and not is_fiftyone(root):
        roots = [folder for folder in visible(root) if is_fiftyone(folder)] or roots
    bounds = None if source.follow_links else root.resolve()
    files = []
    for top in roots:
        if source.layout == "yolo":
            named = _yolo_classes(top, source)
        else:
            named = _coco_classes(top) if source.layout == "coco" else _fiftyone_classes(top)
        for path, classes, why in named:
            file = look_at(path, classes[0] if len(classes) == 1 else "", bounds)
            if file.status == "stored" and not file.label:
                detail = f"its boxes are of {' and '.join(classes)}" if classes else why
                detail = f"{detail}, so its class is not known"
                file = replace(file, status="no-class", detail=detail)
            files.append(file)
    _check_classes(root, [file.label for file in files if file.label], files)
    return FolderLayout(tuple(top.name for top in roots if top != root), tuple(files))


def _yolo_classes(root: Path, source: FolderSource) -> Iterator[tuple[Path, Sequence[str], str]]:
    """Yield each image, the classes of its boxes, and what to say if there are none."""
    drawn = read_yolo(root, BoxRules(columns=source.columns))
    drawn.check(strict=False)
    boxes = drawn.images
    for path, _ in label_files(root):
        entry = boxes.get(path.relative_to(root).as_posix())
        known = entry is not None and not entry.unread
        classes = sorted({box.label for box in entry.boxes}) if entry and known else []
        yield path, classes, "it has no box" if known or not entry else "its label file is odd"


def _fiftyone_classes(root: Path) -> Iterator[tuple[Path, Sequence[str], str]]:
    files, missing = labelled_files(root)
    for labelled in files:
        yield root / labelled.path, labelled.classes, f"{LABELS} has no class of it"
    for key in missing:  # which may lead anywhere
        yield root / DATA / base_name(key), (), ""


def _coco_classes(root: Path) -> Iterator[tuple[Path, Sequence[str], str]]:
    """Yield each image, the classes of its boxes, and what to say if there are none."""
    files = [path for path in below(root) if path.is_file()]
    drawn = [read_coco(path) for path in files if path.suffix.lower() == ".json" and is_coco(path)]
    if not drawn:
        raise UserError(
            f"{root} has no COCO JSON file; add such a file, or change `layout` in the recipe."
        )
    ends: dict[str, list[Path]] = {}
    for path in files:
        ends.setdefault(path.name, []).append(path)
    classes: dict[Path, set[str]] = {}
    for file in drawn:
        file.check(strict=False)
        for entry in file.entries:
            named = [path for path in ends.get(base_name(entry.name), []) if _ends(path, entry)]
            beside = [path for path in named if path == file.path.parent / entry.name] or named
            for path in beside if len(beside) == 1 and not entry.image.unread else ():
                classes.setdefault(path, set()).update(box.label for box in entry.image.boxes)
    for path in files:
        if path in classes or image_suffix(_head(path)):
            yield path, sorted(classes.get(path, ())), "no COCO file has a box of it"


def _ends(path: Path, entry: BoxEntry) -> bool:
    return f"/{path.as_posix()}".endswith(f"/{entry.name}")


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(HEAD)
    except OSError:
        return b""


def _tops(root: Path, walk: FolderWalk) -> tuple[list[Path], tuple[str, ...]]:
    """Return the folders that hold the class folders, and the names of the splits among them."""
    folders = [entry for entry in visible(root) if walk.enters(entry)]
    splits = [folder for folder in folders if folder.name.casefold() in _SPLIT_NAMES]
    if not any(entry.is_dir() for split in splits for entry in visible(split)):
        return [root], ()
    outside = [folder.name for folder in folders if folder not in splits]
    if outside:
        raise UserError(
            f"{root} has folders of splits ({splits[0].name}) and other folders ({outside[0]}); "
            f"put all class folders inside the split folders, or all directly into {root}."
        )
    return splits, tuple(split.name for split in splits)


def _check_links(root: Path, classes: list[str], files: list[FolderFile]) -> None:
    """Raise UserError where the classes are links and following them was not asked for."""
    links = [file.path for file in files if file.status == "link-refused" and not file.label]
    links = [path for path in links if path.is_dir()]
    if links and len({normalise(label) for label in classes}) < 2:
        raise UserError(
            f"{links[0]} is a link to a folder, which is not followed by default; if you trust "
            "the link, set `follow_links: true` in the recipe (--set "
            "sources.0.follow_links=true), or give the linked folder itself."
        )


def _check_parts(root: Path, classes: list[str]) -> None:
    """Raise UserError where half of the folders, or more, are named as parts and not as classes."""
    names = list(dict.fromkeys(classes))
    parts = [name for name in names if _PART.fullmatch(name)]
    if parts and 2 * len(parts) >= len(names):
        raise UserError(
            f"the folders in {root} ({', '.join(names[:3])}) have names of dataset parts, not of "
            f"classes; {_ADVICE}, or write a recipe with `kind: files` and the table of classes."
        )


def _check_classes(root: Path, classes: list[str], files: list[FolderFile]) -> None:
    if not classes:
        what = "holds files but no class folders" if files else "is empty"
        raise UserError(f"{root} {what}; {_ADVICE}.")
    shown = {normalise(label): label for label in reversed(classes)}
    if len(shown) == 1:
        raise UserError(
            f"{root} has only one class, {classes[0]!r}, and a classifier needs two or more; "
            f"{_ADVICE}."
        )
    # A file that cannot be opened may well be an image: it counts here and becomes an issue.
    counts = Counter(normalise(f.label) for f in files if f.status in ("stored", "unreadable"))
    for folded, label in sorted(shown.items()):
        if not is_no_label(label) and counts[folded] < MIN_PER_CLASS:
            raise UserError(
                f"the class {label!r} in {root} has {counts[folded]} readable images and needs at "
                f"least {MIN_PER_CLASS}{_why_unread(folded, files)}; add images to its folder, or "
                "remove that folder."
            )


def _why_unread(folded: str, files: list[FolderFile]) -> str:
    """Return why files of a class do not count, by the most frequent reason; "" if all do."""
    unread = [f for f in files if f.status != "stored" and normalise(f.label) == folded]
    if not unread:
        return ""
    (reason, count), *_ = Counter(file.detail for file in unread).most_common(1)
    first = next(file.path.name for file in unread if file.detail == reason)
    number = f"{count} of its files are" if count > 1 else "one of its files is"
    return f" ({number} no image that is read: of {first!r}, {reason})"


def _store(file: FolderFile, source: FolderSource, dataset: Path, group: str) -> LedgerRow:
    status, detail, data = file.status, file.detail, b""
    if status == "stored":
        try:
            data = file.path.read_bytes()
        except OSError as error:
            status, detail = "unreadable", _unreadable(error)
    top = file.path.relative_to(source.path).parts[0]
    split = (split_of(top) if source.splits == "kept" else None) or source.split
    return source.stored(
        dataset,
        _text(file.path.relative_to(source.path).as_posix()),
        file.label,
        data,
        status=status,
        detail=detail,
        licence=source.licence,
        creator=source.creator,
        attribution=source.attribution,
        group=group,
        split=split,
    )


def _text(name: str) -> str:
    """Show a file name that is not valid UTF-8 with its bytes escaped."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
