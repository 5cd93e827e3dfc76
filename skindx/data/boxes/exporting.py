"""A dataset's boxes as files of other tools: what was looked at, and tasks for what was not.

supervision's writers were tried and left: they round Pascal VOC to whole pixels and YOLO to five
decimals, take an image without a file for one without boxes, decode every image, and drop who
drew. Tests read what is written here with supervision, pycocotools and ultralytics.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from skindx.core.atomic_files import FolderKind, atomic_folder
from skindx.core.errors import UserError
from skindx.data.box import BoxedImage
from skindx.data.boxes.annotations import BUILT, Annotation, read_annotations, read_proposals
from skindx.data.boxes.coco import write_coco
from skindx.data.boxes.formats import BoxFormat
from skindx.data.boxes.labelstudio import Drawing, Task, write_labelstudio
from skindx.data.boxes.voc import write_voc
from skindx.data.boxes.yolo import write_yolo
from skindx.data.layout import stored_file
from skindx.data.manifest import SPLITS, Record, Split, read_manifest, split_of

_BOXES = FolderKind("an export of boxes")


@dataclass(frozen=True, slots=True)
class Exported:
    """Contents of an export; `empty` images were looked at, `waiting` ones were not."""

    images: int
    boxes: int
    empty: int
    waiting: int
    proposed: int
    labels: tuple[str, ...]


def export_boxes(
    dataset: Path,
    out: Path,
    kind: BoxFormat,
    *,
    split: Split | None = None,
    copy: bool = False,
    proposals: bool = False,
    prefix: str = "/data/local-files/?d=",
) -> Exported:
    """Write the boxes of a dataset folder to `out`; images are named by their SHA-256.

    COCO, YOLO and Pascal VOC get the reviewed images; YOLO and VOC link them, or
    copy them with `copy`. Label Studio gets a task for every image, its address `prefix` and the
    path in the dataset folder; with `proposals` the least confident image comes first. Raises
    UserError, before anything is written.
    """
    _check_out(out, kind)
    if proposals and kind != "labelstudio":
        raise UserError(f"{kind} has no place for proposals; export labelstudio with them.")
    if copy and kind in ("coco", "labelstudio"):
        raise UserError(f"{kind} names images and holds none of them; leave out --copy.")
    splits = (split,) if split else SPLITS
    records = [record for record in read_manifest(dataset) if record.split in splits]
    looked = [record for record in records if record.boxes is not None]
    drawn = read_annotations(dataset)
    proposed = read_proposals(dataset) if proposals else []
    if proposals and not proposed:
        raise UserError(f"{dataset} has no proposals; run `skindx boxes propose` first.")
    if not (looked or kind == "labelstudio"):
        raise UserError(
            f"{dataset} has no annotated images; import boxes, or export labelstudio, which has a "
            f"task for each image."
        )
    files = {Path(record.path).name: stored_file(dataset, record.path) for record in looked}
    if kind == "coco":
        write_coco(out, images_of(looked))
    elif kind == "voc":
        with atomic_folder(out, _BOXES) as folder:
            write_voc(folder, images_of(looked), files, copy=copy)
    elif kind == "yolo":
        parts = [(split, images_of(split_of(looked, split))) for split in splits]
        with atomic_folder(out, _BOXES) as folder:
            write_yolo(folder, parts, files, box_labels(looked), copy=copy)
    else:
        write_labelstudio(out, _tasks(records, drawn, proposed, prefix))
    return Exported(
        images=len(records) if kind == "labelstudio" else len(looked),
        boxes=sum(len(record.boxes or ()) for record in looked),
        empty=sum(not record.boxes for record in looked),
        waiting=len(records) - len(looked),
        proposed=len({row.sha256 for row in proposed} & {record.sha256 for record in records}),
        labels=_labels(records, drawn, proposed) or ("lesion",),
    )


def images_of(records: Iterable[Record]) -> dict[str, BoxedImage]:
    """Return file name -> image of the reviewed records."""
    return {
        Path(record.path).name: BoxedImage(record.width, record.height, record.boxes, record.sha256)
        for record in records
        if record.boxes is not None
    }


def box_labels(records: Iterable[Record]) -> tuple[str, ...]:
    """Return the sorted classes of the boxes that the records carry."""
    return tuple(sorted({box.label for record in records for box in record.boxes or ()}))


def _labels(*tables: Iterable[Record | Annotation]) -> tuple[str, ...]:
    """Return every class that a task may show: Label Studio refuses one its project lacks."""
    return tuple(sorted({box.label for rows in tables for row in rows for box in row.boxes or ()}))


def _tasks(
    records: Sequence[Record],
    drawn: Iterable[Annotation],
    proposed: Sequence[Annotation],
    prefix: str,
) -> list[Task]:
    """Return a task an image; what people drew apart stays apart."""
    people, models = _drawings(drawn), _drawings(proposed)
    tasks = [
        Task(
            name=Path(record.path).name,
            sha256=record.sha256,
            size=(record.width, record.height),
            image=f"{prefix}{record.path}",
            annotations=_annotations(record, people.get(record.sha256, [])),
            predictions=tuple(models.get(record.sha256, [])),
        )
        for record in records
    ]
    order = {row.sha256: position for position, row in enumerate(proposed)}
    return sorted(tasks, key=lambda task: order.get(task.sha256, len(order)))


def _drawings(rows: Iterable[Annotation]) -> Mapping[str, list[Drawing]]:
    drawings: dict[str, list[Drawing]] = defaultdict(list)
    for row in rows:
        drawings[row.sha256].append(Drawing(row.annotator, row.when, row.boxes))
    return drawings


def _annotations(record: Record, drawn: Sequence[Drawing]) -> tuple[Drawing, ...]:
    if drawn or record.boxes is None:
        return tuple(drawn)
    return (Drawing(BUILT, "", record.boxes),)


def _check_out(out: Path, kind: BoxFormat) -> None:
    if kind in ("coco", "labelstudio"):
        if out.suffix != ".json" or out.is_dir():
            raise UserError(f"{out} must be a .json file: {kind} is one; correct --out.")
    else:
        _BOXES.check(out)
