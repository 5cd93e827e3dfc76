"""Box files into a dataset and out of it: the formats, import by a person, export for other tools.

A file's content says which format it is. supervision's writers were tried and left: they round
Pascal VOC to whole pixels and YOLO to five decimals, take an image without a file for one without
boxes, decode every image, and drop who drew. Tests read what is written here with supervision,
pycocotools and ultralytics.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from skindx.core.atomic_files import FolderKind, atomic_folder, only_writer
from skindx.core.errors import UserError
from skindx.core.settings_base import NamePattern, Settings
from skindx.data.box import BoxedImage
from skindx.data.boxes.annotations import (
    BUILT,
    Annotation,
    annotated,
    check_person,
    now,
    read_annotations,
    read_proposals,
    store_drawings,
)
from skindx.data.boxes.box_file import (
    MASK_NAME,
    BoxFile,
    BoxFinding,
    BoxRules,
    Unannotated,
    YoloColumns,
    refuse_all,
)
from skindx.data.boxes.box_join import DatasetImage, JoinedEntry, join
from skindx.data.boxes.coco import read_coco, read_json, write_coco
from skindx.data.boxes.labelstudio import (
    Drawing,
    LabelTask,
    read_answers,
    read_labelstudio,
    write_labelstudio,
)
from skindx.data.boxes.masks import holds_masks, read_masks
from skindx.data.boxes.voc import read_voc, write_voc
from skindx.data.boxes.yolo import DATA, read_yolo, write_yolo
from skindx.data.layout import ISSUES, stored_file
from skindx.data.manifest import SPLITS, Record, Split, read_issues, read_manifest, split_of

WrittenFormat = Literal["coco", "yolo", "voc", "labelstudio"]
BoxFormat = WrittenFormat | Literal["masks"]

READERS: Mapping[BoxFormat, Callable[[Path, BoxRules], BoxFile]] = {
    "coco": read_coco,
    "yolo": read_yolo,
    "voc": read_voc,
    "labelstudio": read_labelstudio,
    "masks": read_masks,
}


class BoxSource(Settings):
    """A file or folder of boxes; a bare path in a recipe is one, too."""

    path: Path
    kind: BoxFormat | None = None
    """null: detected from the content."""
    unannotated: Unannotated = Field("skip", exclude_if=lambda value: value == "skip")
    """Images that a COCO file names without annotation, or a YOLO folder has without label file.

    skip: nobody looked at them; negative: somebody did, and there is no lesion."""
    columns: YoloColumns | None = Field(None, exclude_if=lambda value: value is None)
    """What YOLO lines of six and more values after the class are, where the folder does not tell.

    box: each begins with a box, and the rest does not count; polygon: each is one."""
    pattern: NamePattern = Field(MASK_NAME, exclude_if=lambda value: value == MASK_NAME)
    """Masks: a regular expression; its first group is the image's name in the name of a mask."""
    strict: bool = Field(False, exclude_if=lambda value: not value)
    """Refuse the file for a row that cannot be used; otherwise it is left out and counted."""

    @model_validator(mode="before")
    @classmethod
    def _bare_path(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str | Path) else value

    def read(self) -> BoxFile:
        """Read the boxes of any format. Raises UserError, also where none of them can be used."""
        kind = self.kind or format_of(self.path)
        self.check(kind)
        file = READERS[kind](self.path, BoxRules(self.unannotated, self.columns, self.pattern))
        file.check(strict=self.strict)
        return file

    def check(self, kind: BoxFormat) -> None:
        """Raise UserError for what the format has no place for."""
        if self.columns and kind != "yolo":
            raise UserError(f"{kind} has no columns; leave out --columns (boxes.columns).")
        if self.pattern != MASK_NAME and kind != "masks":
            raise UserError(f"{kind} has no pattern of names; leave out boxes.pattern.")
        if self.unannotated == "negative" and kind not in ("coco", "yolo", "masks"):
            raise UserError(
                f"{kind} itself says which images were looked at; leave out --unannotated "
                f"(boxes.unannotated)."
            )


def read_boxes(source: BoxSource) -> BoxFile:
    """Read boxes of any format. Raises UserError."""
    return source.read()


def format_of(path: Path) -> BoxFormat:
    """Return the format that a file's or folder's content shows. Raises UserError."""
    if not path.exists():
        raise UserError(f"{path} does not exist; give a file or folder of boxes.")
    if path.is_dir():
        if (path / DATA).is_file():
            return "yolo"
        if any(path.rglob("*.xml")):
            return "voc"
        if holds_masks(path):
            return "masks"
    elif path.suffix in (".yaml", ".yml"):
        return "yolo"
    elif path.suffix == ".xml":
        return "voc"
    else:
        return "labelstudio" if isinstance(read_json(path), list) else "coco"
    raise UserError(
        f"{path} holds neither {DATA} (YOLO) nor XML files (Pascal VOC) nor masks (PNG); COCO and "
        f"Label Studio are single JSON files: give one of them."
    )


UNOPENED = "not annotated in Label Studio"


@dataclass(frozen=True, slots=True)
class Imported:
    """Imported and refused entries."""

    annotators: Mapping[str, int]
    """Name -> images."""
    boxes: int
    empty: int
    """Images that were reviewed and have no box."""
    replaced: int
    """Images that the same annotator had drawn in before."""
    labels: Mapping[str, int]
    refused: Mapping[str, tuple[str, ...]]
    """Reason -> names of images."""
    findings: tuple[BoxFinding, ...] = ()
    """All that was left out or is uncertain, what was refused among it."""


def import_boxes(
    dataset: Path,
    path: Path,
    *,
    kind: BoxFormat | None = None,
    by: str = "",
    unannotated: Unannotated = "skip",
    columns: YoloColumns | None = None,
    strict: bool = False,
) -> Imported:
    """Take the boxes of a file into the annotations and the manifest of a dataset folder.

    They count as drawn by `by`, now. Label Studio records who drew and when; without `by` the boxes
    of different people stay separate. Annotations that came with our tasks and were not opened
    there are no answer. Rows that cannot be used, images that the dataset does not have, or has in
    another size, and images with boxes outside are left out and counted. Raises UserError, with
    nothing written, when no image is left, and with `strict` when anything is left out or
    uncertain.
    """
    source = BoxSource(path=path, kind=kind or format_of(path), unannotated=unannotated)
    source = source.model_copy(update={"columns": columns, "strict": strict})
    file = _answers(source, by.strip())
    with only_writer(dataset):
        records = read_manifest(dataset)
        images = {
            record.sha256: DatasetImage((record.width, record.height), dataset / record.path)
            for record in records
        }
        joined = join(file, images, _names(dataset, records))
        if strict:
            refuse_all(path, joined.problems())
        rows = [_annotation(each) for each in joined.entries]
        if not rows:
            read = len(file.entries) + len(file.waiting.names.get(("refused", UNOPENED), ()))
            clauses = "; ".join(finding.clause() for finding in joined.all_findings())
            raise UserError(
                f"none of the {read} annotations in {path} fits {dataset}: {clauses}; nothing was "
                f"written."
            )
        old = read_annotations(dataset)
        drawn = annotated(old, rows, records)
        store_drawings(dataset, drawn, records)
    had = {(row.sha256, row.annotator) for row in old}
    taken = {(row.sha256, row.annotator): row for row in rows}
    return Imported(
        annotators=dict(Counter(who for _, who in taken)),
        boxes=sum(len(row.boxes) for row in taken.values()),
        empty=sum(not row.boxes for row in taken.values()),
        replaced=len(had & taken.keys()),
        labels=dict(Counter(box.label for row in taken.values() for box in row.boxes)),
        refused={
            reason: tuple(names)
            for findings in (file.waiting, joined.findings)
            for (kind, reason), names in findings.names.items()
            if kind == "refused"
        },
        findings=joined.all_findings(),
    )


def _names(dataset: Path, records: Iterable[Record]) -> Iterator[tuple[str, str]]:
    """Yield (SHA-256, path or URL) of all images that the build found, also of those left out."""
    for record in records:
        yield record.sha256, record.source_url
    if (dataset / ISSUES).exists():
        yield from ((issue.sha256, issue.url) for issue in read_issues(dataset) if issue.sha256)


def _answers(source: BoxSource, by: str) -> BoxFile:
    """Read a file's entries, each with its person and time, oldest first."""
    check_person(by)
    kind, path = source.kind, source.path
    if kind != "labelstudio":
        if not by:
            raise UserError(f"{kind} does not say who drew the boxes; add --by NAME.")
        file = source.read()
        when = now()
        file.entries = [replace(entry, by=by, at=when) for entry in file.entries]
    else:
        source.check(kind)
        file = read_answers(path, unopened=False)
        file.check(strict=source.strict)
        people = sorted({entry.by for entry in file.entries} - {""})
        if by and len(people) > 1:
            raise UserError(
                f"{path} holds annotations of {', '.join(people)}; leave --by out, and they are "
                f"kept apart."
            )
        # Those of the recipe are in the dataset since it was built.
        unnamed = {""} if by else {"", BUILT}
        for entry in file.entries:
            if entry.by in unnamed:
                file.wait(UNOPENED, entry.name, "refused")
        file.entries = [
            replace(entry, by=by or entry.by, at=entry.at or now())
            for entry in sorted(file.entries, key=lambda entry: entry.at)
            if entry.by not in unnamed
        ]
    return file


def _annotation(joined: JoinedEntry) -> Annotation:
    # The person who imports boxes confirms them, also those that a model proposed.
    who, when = joined.entry.by, joined.entry.at
    boxes = [replace(box, drawn_by=who, drawn_at=when, score=None) for box in joined.image.boxes]
    return Annotation(joined.sha256, who, when, tuple(boxes))


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
    kind: WrittenFormat,
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
) -> list[LabelTask]:
    """Return a task an image; what people drew apart stays apart."""
    people, models = _drawings(drawn), _drawings(proposed)
    tasks = [
        LabelTask(
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


def _check_out(out: Path, kind: WrittenFormat) -> None:
    if kind in ("coco", "labelstudio"):
        if out.suffix != ".json" or out.is_dir():
            raise UserError(f"{out} must be a .json file: {kind} is one; correct --out.")
    else:
        _BOXES.check(out)
