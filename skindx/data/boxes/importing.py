"""Boxes that a person drew with another tool come back into a dataset."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from skindx.core.atomic_files import only_writer
from skindx.core.errors import UserError
from skindx.data.boxes.annotations import (
    BUILT,
    Annotation,
    annotated,
    check_person,
    now,
    read_annotations,
    store_drawings,
)
from skindx.data.boxes.box_file import BoxFile, Columns, Finding, Unannotated, refuse_all
from skindx.data.boxes.formats import BoxFormat, BoxSource, format_of
from skindx.data.boxes.joining import JoinedEntry, Stored, join
from skindx.data.boxes.labelstudio import read_answers
from skindx.data.layout import ISSUES
from skindx.data.manifest import Record, read_issues, read_manifest

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
    findings: tuple[Finding, ...] = ()
    """All that was left out or is uncertain, what was refused among it."""


def import_boxes(
    dataset: Path,
    path: Path,
    *,
    kind: BoxFormat | None = None,
    by: str = "",
    unannotated: Unannotated = "skip",
    columns: Columns | None = None,
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
            record.sha256: Stored((record.width, record.height), dataset / record.path)
            for record in records
        }
        joined = join(file, images, _names(dataset, records))
        if strict:
            refuse_all(path, joined.problems())
        rows = [_annotation(each) for each in joined.entries]
        if not rows:
            read = len(file.entries) + len(file.waiting.names.get(("refused", UNOPENED), ()))
            said = "; ".join(finding.clause() for finding in joined.all_findings())
            raise UserError(
                f"none of the {read} annotations in {path} fits {dataset}: {said}; nothing was "
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
            for found in (file.waiting, joined.findings)
            for (kind, reason), names in found.names.items()
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
