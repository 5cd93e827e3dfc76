"""Box files into a dataset and out of it: import by a person, export for other tools."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from skindx.core.atomic_files import FolderKind, atomic_folder, only_writer
from skindx.core.errors import UserError
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
    BoxFile,
    BoxFinding,
    BoxFormat,
    Unannotated,
    WrittenFormat,
    YoloColumns,
    refuse_all,
)
from skindx.data.boxes.box_formats import FORMATS, BoxExport, BoxSource, format_of
from skindx.data.boxes.box_join import DatasetImage, JoinedEntry, join
from skindx.data.boxes.labelstudio import Drawing, LabelTask, read_answers
from skindx.data.layout import DIFF, ISSUES, SUMMARY, stored_file
from skindx.data.manifest import (
    SPLITS,
    Record,
    Split,
    box_labels,
    read_issues,
    read_manifest,
    split_of,
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
                f"no annotation in {path} fits {dataset} ({clauses}; {read} annotations in all), "
                "and nothing was imported; export annotations of images of this dataset."
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
                f"{path} already names its annotators ({', '.join(people)}); remove --by."
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

    Label Studio gets a task for every image, its address `prefix` and the path in the dataset
    folder; with `proposals` the least confident image comes first. All other formats get the
    reviewed images; those that are folders link them, or copy them with `copy`. Raises UserError,
    before anything is written.
    """
    suffix, write = FORMATS[kind].suffix, FORMATS[kind].write
    assert write is not None
    _check_out(out, kind, suffix)
    if out.exists() and out.resolve() in {(dataset / name).resolve() for name in (SUMMARY, DIFF)}:
        raise UserError(f"{out} is a file of the dataset; give another path as --out.")
    if proposals and kind != "labelstudio":
        raise UserError(f"the format {kind} cannot hold proposals; use --format labelstudio.")
    if copy and suffix:
        raise UserError(
            f"--copy does not apply to the format {kind}, which has no folder of images; remove "
            "--copy."
        )
    splits = (split,) if split else SPLITS
    records = [record for record in read_manifest(dataset) if record.split in splits]
    looked = [record for record in records if record.boxes is not None]
    drawn = read_annotations(dataset)
    proposed = read_proposals(dataset) if proposals else []
    if proposals and not proposed:
        raise UserError(
            f"{dataset} has no proposed boxes; run `skindx boxes propose {dataset}` first."
        )
    if not (looked or kind == "labelstudio"):
        raise UserError(
            f"{dataset} has no annotated images; import boxes first, or use --format labelstudio "
            "to export every image for annotation."
        )
    files = {Path(record.path).name: stored_file(dataset, record.path) for record in looked}
    export = BoxExport(
        parts=[(split, images_of(split_of(looked, split))) for split in splits],
        files=files,
        labels=box_labels(looked) or ("lesion",),
        tasks=lambda: _tasks(records, drawn, proposed, prefix),
        copy=copy,
    )
    if suffix:
        write(out, export)
    else:
        with atomic_folder(out, _BOXES) as folder:
            write(folder, export)
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


def _check_out(out: Path, kind: WrittenFormat, suffix: str) -> None:
    if not suffix:
        _BOXES.check(out)
    elif out.suffix != suffix or out.is_dir():
        raise UserError(f"--out {out} must end in {suffix} for the format {kind}; change the name.")
