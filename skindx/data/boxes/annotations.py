"""Boxes by person: a table beside the manifest, the latest in it, and how far two people agree."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.data.answer_log import read_answers_to
from skindx.data.box import Box, match
from skindx.data.manifest import Record, read_manifest, read_rows, write_manifest, write_table
from skindx.metrics import Interval, Statistic, confidence_interval

ANNOTATIONS = "annotations.parquet"
PROPOSALS = "proposals.parquet"

BUILT = "recipe"
"""The annotator of the boxes that a dataset was built with."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """One annotator's boxes in one image; boxes () means that there is none."""

    sha256: str
    annotator: str
    """A person, `BUILT`, or a model's name with the start of its hash."""
    when: str
    """UTC, ISO 8601."""
    boxes: tuple[Box, ...]


def read_annotations(dataset: Path) -> list[Annotation]:
    """Return the boxes that people drew, none before the first. Raises UserError."""
    return _read(dataset / ANNOTATIONS, "import the boxes again")


def read_proposals(dataset: Path) -> list[Annotation]:
    """Read what a model proposes, least confident image first. Raises UserError."""
    return _read(dataset / PROPOSALS, "run `skindx boxes propose` again")


def write_annotations(dataset: Path, rows: Iterable[Annotation]) -> None:
    """Write what people drew, atomically, by image and then annotator."""
    ordered = sorted(rows, key=lambda row: (row.sha256, row.annotator))
    write_table(dataset / ANNOTATIONS, ordered, Annotation)


def write_proposals(dataset: Path, rows: Sequence[Annotation]) -> None:
    """Write a model's proposals, atomically, least confident image first.

    An image in which nothing was found comes before all others: it is a miss, or there is none,
    and the model cannot say which.
    """
    ordered = sorted(rows, key=lambda row: (confidence(row), row.sha256))
    write_table(dataset / PROPOSALS, ordered, Annotation)


def confidence(row: Annotation) -> float:
    """Return the highest score among an image's proposed boxes, 0 when there is none."""
    return max((box.score or 0.0 for box in row.boxes), default=0.0)


def annotated(
    old: Iterable[Annotation], new: Iterable[Annotation], records: Iterable[Record]
) -> list[Annotation]:
    """Add drawings; one takes the place of the same annotator's older one of the same image.

    What the manifest held before anybody drew is kept under `BUILT`.
    """
    rows = {(row.sha256, row.annotator): row for row in old}
    drawn = {row.sha256 for row in rows.values()}
    new = list(new)
    for record in records:
        if record.boxes is not None and record.sha256 not in drawn:
            rows[record.sha256, BUILT] = Annotation(record.sha256, BUILT, "", record.boxes)
    rows |= {(row.sha256, row.annotator): row for row in new}
    touched = {row.sha256 for row in new} | drawn
    return [row for row in rows.values() if row.sha256 in touched]


def accepted(
    rows: Iterable[Annotation], wrong: Mapping[str, str] | None = None
) -> dict[str, tuple[Box, ...]]:
    """Return SHA-256 -> boxes of the latest drawing of a person.

    What was drawn before somebody called an image's boxes `wrong` (SHA-256 -> when) is left out.
    """
    since = {sha256: _instant(when) for sha256, when in (wrong or {}).items()}
    people = [
        row
        for row in rows
        if row.annotator != BUILT and not _instant(row.when) <= since.get(row.sha256, float("nan"))
    ]
    people.sort(key=lambda row: (_instant(row.when), row.annotator))
    return {row.sha256: row.boxes for row in people}


def wrong_boxes(dataset: Path) -> dict[str, str]:
    """Return SHA-256 -> when a person called the boxes of an image wrong."""
    answers = read_answers_to(dataset, "box").items()
    return {key[0]: one.when for key, one in answers if one.verdict == "box wrong"}


def store_drawings(
    dataset: Path, rows: Sequence[Annotation], records: Sequence[Record]
) -> list[Record]:
    """Write annotations and the manifest that accepts them; return its records.

    The caller is the dataset's `only_writer`.
    """
    write_annotations(dataset, rows)
    boxes = accepted(rows, wrong_boxes(dataset))
    renewed = [
        record
        if boxes.get(record.sha256, record.boxes) == record.boxes
        else dataclasses.replace(record, boxes=boxes[record.sha256])
        for record in records
    ]
    # A kill before this line is mended by the next drawing, import or build.
    write_manifest(dataset, renewed)
    return renewed


def check_person(name: str) -> None:
    """Raise UserError for a name that no annotator may have."""
    if name == BUILT:
        raise UserError(
            f"the name {BUILT!r} belongs to the boxes from the build; give another name with --by."
        )


def now() -> str:
    """Return the time as annotations carry it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _instant(when: str) -> float:
    """Return seconds since 1970; a time that cannot be read is older than all others."""
    try:
        read = datetime.fromisoformat(when)
    except ValueError:
        return float("-inf")
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()


def _read(path: Path, advice: str) -> list[Annotation]:
    if not path.exists():
        return []
    return [Annotation(**row) for row in read_rows(path, Annotation, advice)]


# N = images, A, B = boxes of either annotator, M = matched pairs, C = classes, D = draws

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Figures with 95 % intervals over groups of images; None where nothing can be said."""

    first: str
    second: str
    images: int
    """Images in which both looked."""
    groups: int
    boxes_first: int
    boxes_second: int
    matched: int
    threshold: float
    """The least IoU of a matched pair."""
    iou: Interval | None
    """Mean over the matched pairs."""
    rate_first: Interval | None
    """Share of the first annotator's boxes that the second drew as well."""
    rate_second: Interval | None
    kappa_presence: Interval | None
    """Kappa on whether an image holds a lesion; None when both always gave the same one answer."""
    kappa_class: Interval | None
    """Kappa on the classes of matched boxes; None when there is but one, or they share none."""


def agree(
    dataset: Path, names: Sequence[str] = (), *, threshold: float = 0.5, draws: int = 1000
) -> Agreement:
    """Compare two annotators of a dataset folder, by default the only two there are.

    An annotator is a person, `recipe` (what the dataset was built with), or a model whose
    proposals are there. Raises UserError for unknown names and for annotators that
    never looked at the same image.
    """
    if not 0 < threshold <= 1:
        raise UserError(
            f"--threshold is {threshold}, but it must be above 0 and at most 1; give such a number."
        )
    records = read_manifest(dataset)
    people = read_annotations(dataset)
    seen = {row.sha256 for row in people}
    built = [
        Annotation(record.sha256, BUILT, "", record.boxes)
        for record in records
        if record.boxes is not None and record.sha256 not in seen
    ]
    rows = [*people, *built, *read_proposals(dataset)]
    first, second = _choose(rows, names, dataset)
    of_first = {row.sha256: row.boxes for row in rows if row.annotator == first}
    of_second = {row.sha256: row.boxes for row in rows if row.annotator == second}
    both = [record for record in records if record.sha256 in of_first.keys() & of_second.keys()]
    if not both:
        raise UserError(
            f"{first} and {second} have not annotated the same images of {dataset}; let both "
            "annotate some of the same images."
        )
    pairs = [(of_first[record.sha256], of_second[record.sha256]) for record in both]
    groups = [record.group for record in both]
    return compare(first, second, pairs, groups, threshold=threshold, draws=draws)


def compare(
    first: str,
    second: str,
    pairs: Sequence[tuple[Sequence[Box], Sequence[Box]]],
    groups: Sequence[str],
    *,
    threshold: float = 0.5,
    draws: int = 1000,
) -> Agreement:
    """Measure the agreement on images that both looked at, one pair and one group an image."""
    matches = [match(a, b, threshold) for a, b in pairs]
    matched_counts = [len(matched) for matched in matches]
    overlap = [sum(iou for _, _, iou in matched) for matched in matches]
    boxes_a, boxes_b = [len(a) for a, _ in pairs], [len(b) for _, b in pairs]
    labels = [
        [(a[i].label, b[j].label) for i, j, _ in matched]
        for (a, b), matched in zip(pairs, matches, strict=True)
    ]
    presence = [[(str(bool(a)), str(bool(b)))] for a, b in pairs]

    def interval(statistic: Statistic | None) -> Interval | None:
        return None if statistic is None else confidence_interval(statistic, groups, draws=draws)

    return Agreement(
        first,
        second,
        len(pairs),
        len(set(groups)),
        sum(boxes_a),
        sum(boxes_b),
        sum(matched_counts),
        threshold,
        interval(_ratio(overlap, matched_counts)),
        interval(_ratio(matched_counts, boxes_a)),
        interval(_ratio(matched_counts, boxes_b)),
        interval(cohens_kappa(presence)),
        interval(cohens_kappa(labels) if _share_words(labels) else None),
    )


def _share_words(labels: Iterable[Sequence[tuple[str, str]]]) -> bool:
    """False when two name classes in vocabularies of their own: a model's "lesion", say."""
    pairs = [pair for group in labels for pair in group]
    return bool({a for a, _ in pairs} & {b for _, b in pairs})


def cohens_kappa(pairs_N: Sequence[Sequence[tuple[str, str]]]) -> Statistic | None:
    """Return Cohen's kappa (1960) of what two said, zero or more pairs an image.

    None when only one thing was ever said: chance alone then agrees everywhere. A bootstrap draw
    of which that holds counts as full agreement.
    """
    classes = sorted({label for pairs in pairs_N for labels in pairs for label in labels})
    if len(classes) < 2:
        return None
    number = {label: i for i, label in enumerate(classes)}
    counts_NCC = np.zeros((len(pairs_N), len(classes), len(classes)))
    for n, pairs in enumerate(pairs_N):
        for (a, b), count in Counter(pairs).items():
            counts_NCC[n, number[a], number[b]] = count

    def finish(totals_DF: Floats) -> Floats:
        counts_DCC = totals_DF.reshape(-1, len(classes), len(classes))
        all_D = np.maximum(counts_DCC.sum(axis=(1, 2)), 1)
        observed_D = np.trace(counts_DCC, axis1=1, axis2=2) / all_D
        rows_DC, columns_DC = counts_DCC.sum(axis=2), counts_DCC.sum(axis=1)
        chance_D = (rows_DC * columns_DC).sum(axis=1) / all_D**2
        kappa_D: Floats = np.ones_like(chance_D)
        np.divide(observed_D - chance_D, 1 - chance_D, out=kappa_D, where=chance_D < 1)
        return kappa_D

    return Statistic(counts_NCC.reshape(len(pairs_N), -1), finish, low=-1.0)


def _ratio(part_N: Iterable[float], whole_N: Iterable[float]) -> Statistic | None:
    """Return the share of two totals, None of nothing; 0 in a draw that holds nothing."""
    features_NF = np.array([list(part_N), list(whole_N)], dtype=float).T
    if not features_NF[:, 1].any():
        return None

    def finish(totals_DF: Floats) -> Floats:
        part_D, whole_D = totals_DF.T
        share_D: Floats = np.divide(part_D, whole_D, out=np.zeros_like(part_D), where=whole_D > 0)
        return share_D

    return Statistic(features_NF, finish)


def _choose(rows: Iterable[Annotation], names: Sequence[str], dataset: Path) -> tuple[str, str]:
    counts = Counter(row.annotator for row in rows)
    there = ", ".join(f"{name} ({count} images)" for name, count in sorted(counts.items()))
    for name in names:
        if name not in counts:
            raise UserError(f"{dataset} has no boxes by {name!r}; choose a name from: {there}.")
    chosen = list(names) or sorted(counts)
    if len(chosen) != 2 or chosen[0] == chosen[1]:
        raise UserError(
            f"{dataset} has the annotators {there or 'none'}; name two annotators to compare."
        )
    return chosen[0], chosen[1]
