"""FiftyOne's folders of images with a class or with boxes: data/ and labels.json.

FiftyOneImageClassificationDataset and FiftyOneImageDetectionDataset as FiftyOne 1 reads and writes
them (fiftyone/utils/data/importers.py): a key of `labels` is a path in data/ without its ending, a
number counts in `classes`, and a box is [left, top, width, height] in shares of the image as it is
shown, which is turned as EXIF says.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from skindx.core.atomic_files import below, write_json
from skindx.core.errors import UserError
from skindx.data.box import BoxedImage, RawBox, boxed, sha256_in
from skindx.data.boxes.box_file import (
    UNLABELLED,
    BoxEntry,
    BoxFile,
    BoxRules,
    mapping,
    place,
    score_of,
    upright_size,
)
from skindx.data.boxes.coco import read_json

DATA, LABELS = "data", "labels.json"
_RULES = BoxRules()


@dataclass(frozen=True, slots=True)
class LabelledFile:
    """One image of data/: its path from the folder, and what labels.json says of it."""

    path: str
    target: Any
    """Target as in the file; None where it says nothing."""
    classes: tuple[str, ...] = ()
    """The classes that it names, of the image or of its boxes, sorted."""


def is_fiftyone(folder: Path) -> bool:
    """Tell whether a folder is laid out as FiftyOne does."""
    return (folder / DATA).is_dir() and (folder / LABELS).is_file()


def labelled_files(root: Path) -> tuple[list[LabelledFile], list[str]]:
    """Return each file below data/, and the keys of labels.json without one. Raises UserError."""
    if not is_fiftyone(root):
        raise UserError(
            f"{root} has no {DATA}/ and {LABELS}; give a folder that was exported by FiftyOne."
        )
    raw = read_json(root / LABELS)
    table = raw.get("labels") if isinstance(raw, dict) else None
    classes = raw.get("classes") if isinstance(raw, dict) else None
    if not isinstance(table, dict) or not isinstance(classes, list | None):
        raise UserError(
            f"{root / LABELS} is not a labels file of FiftyOne; export the dataset again as an "
            "image classification or detection dataset."
        )
    targets = {PurePosixPath(str(key).replace("\\", "/")).as_posix(): table[key] for key in table}
    files: list[LabelledFile] = []
    for path in below(root / DATA):
        inner = path.relative_to(root / DATA)
        if path.is_file() and not any(part.startswith(".") for part in inner.parts):
            target = targets.pop(inner.with_suffix("").as_posix(), None)
            named = sorted({_name(each, classes) for each in _each(target)} - {""})
            files.append(LabelledFile(path.relative_to(root).as_posix(), target, tuple(named)))
    return files, sorted(targets)


def read_fiftyone(path: Path, rules: BoxRules = _RULES) -> BoxFile:
    """Read the boxes of a folder, each relative to the image in data/.

    An image whose list is empty was looked at; one without a list counts as `rules.unannotated`
    says. Boxes of images that EXIF turns are uncertain, except in our own exports, whose images are
    named by their SHA-256. Raises UserError.
    """
    root = path.parent if path.name == LABELS else path
    files, missing = labelled_files(root)
    classes = read_json(root / LABELS).get("classes")
    file = BoxFile(root)
    for key in missing:
        file.skip(f"a label whose image is not in {DATA}/", key)
    for labelled in files:
        name = PurePosixPath(labelled.path).relative_to(DATA).as_posix()
        if labelled.target is None and rules.unannotated == "skip":
            file.wait(UNLABELLED, name)
            continue
        framed = upright_size(root / labelled.path)
        if framed is None:
            file.skip("the image of a label cannot be read", name)
            continue
        (width, height), frame = framed
        drawn, unread = [], 0
        for number, each in enumerate(_each(labelled.target), start=1):
            try:
                drawn.append(_raw(each, classes, (width, height), root.name))
            except (ValueError, TypeError, OverflowError) as error:
                unread += 1
                file.skip(str(error), f"{name}, {number}")
        sha256 = sha256_in(name)
        image = boxed((width, height), drawn, sha256, unread)
        file.entries.append(BoxEntry((name,), image, frame="upright" if sha256 else frame))
    return file


def write_fiftyone(
    folder: Path,
    images: Mapping[str, BoxedImage],
    files: Mapping[str, Path],
    labels: Sequence[str],
    *,
    copy: bool = False,
) -> None:
    """Write data/ with a link or a copy of each image, and labels.json with its boxes."""
    place(folder / DATA, {name: files[name] for name in images}, copy=copy)
    write_labels(folder / LABELS, labels, {name: box_list(images[name], labels) for name in images})


def write_labels(path: Path, classes: Sequence[str], targets: Mapping[str, object]) -> None:
    """Write file name -> position in `classes`, or list of boxes, atomically."""
    by_stem = {Path(name).stem: target for name, target in targets.items()}
    write_json(path, {"classes": list(classes), "labels": by_stem})


def box_list(image: BoxedImage, classes: Sequence[str]) -> list[dict[str, Any]]:
    """Return the boxes of an image as labels.json has them."""
    boxes = []
    for box in image.boxes:
        left, top = box.x1 / image.width, box.y1 / image.height
        shares = [left, top, box.x2 / image.width - left, box.y2 / image.height - top]
        more = {"drawn_by": box.drawn_by, "drawn_at": box.drawn_at}
        each: dict[str, Any] = {"label": classes.index(box.label), "bounding_box": shares}
        each |= {} if box.score is None else {"confidence": box.score}
        boxes.append(each | {"attributes": {key: text for key, text in more.items() if text}})
    return boxes


def _each(target: Any) -> Iterator[Any]:
    if target is not None:
        yield from target if isinstance(target, list) else [target]


def _name(target: Any, classes: Sequence[Any] | None) -> str:
    """Return the class that a number, a name or an object with one means; "" for none."""
    label = target.get("label") if isinstance(target, dict) else target
    if isinstance(label, int) and not isinstance(label, bool) and classes is not None:
        label = classes[label] if 0 <= label < len(classes) else ""
    return str(label).strip() if isinstance(label, str | int) else ""


def _raw(each: Any, classes: Sequence[Any] | None, size: tuple[int, int], drawn_by: str) -> RawBox:
    row = mapping(each)
    label = _name(row, classes)
    if not label:
        raise ValueError("a box without a class that the file has")
    shares = row.get("bounding_box")
    if not isinstance(shares, list) or len(shares) != 4:
        raise ValueError("a label without bounding_box (left, top, width, height)")
    left, top, width, height = (float(share) for share in shares)
    more = row.get("attributes")
    more = more if isinstance(more, dict) else {}
    return RawBox(
        left * size[0],
        top * size[1],
        (left + width) * size[0],
        (top + height) * size[1],
        label,
        str(more.get("drawn_by") or drawn_by),
        score_of(row.get("confidence")),
        str(more.get("drawn_at") or ""),
    )
