"""What the report of a dataset tells: counts of its manifest, its issues table and its summary."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from skindx.core.seven_points import QUESTIONS, answers_from
from skindx.core.text import counted, printable
from skindx.data.blocklist import TAKEN_DOWN
from skindx.data.decisions import Flag
from skindx.data.manifest import (
    COUNTED,
    REST,
    SKIN_TYPES,
    SPLITS,
    UNKNOWN,
    Issue,
    Record,
    Split,
    count_images,
)
from skindx.data.origin import parse_licence
from skindx.data.report.reason_texts import REASON_TEXTS
from skindx.data.summary import STAGES, CopyCounts
from skindx.metrics.share_intervals import proportion_interval
from skindx.taxonomy import Taxonomy

LARGEST, SMALLEST = 40, 20
"""Classes that the report lists where there are more."""
_NAMED = 8
_ROWS = 20
_STAGE_ROWS = 30
_SAMPLES = 5
_LONGEST = 160
_LONGEST_NOTE = 800
_MOST_REASONS = 60
"""A build has fewer; a table of unknown origin may have any number."""
FEW_GROUPS = 10
"""Fewest groups in test that give a class a figure worth reading."""

_OF_PEOPLE = ("confirmed_by", "skin_type", "age", "sex", "site")
_GROUP_SIZES = ((1, 1), (2, 2), (3, 5), (6, 20), (21, 0))
_LONGER_SIDES = ((1, 200), (201, 400), (401, 640), (641, 1024), (1025, 2048), (2049, 0))


@dataclass(frozen=True, slots=True)
class ClassFacts:
    """One class of the dataset."""

    key: str
    name: str
    urgency: str
    images: int
    groups: int
    splits: Mapping[Split, tuple[int, int]]
    """Split -> images and groups."""


@dataclass(frozen=True, slots=True)
class StageFacts:
    """How many images of one class came through each of STAGES, and why most others did not."""

    name: str
    images: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class ReasonFacts:
    """One reason for which images were left out."""

    reason: str
    text: str
    images: int
    classes: str
    samples: tuple[Issue, ...]
    """Samples of the images, without those taken down, which are named in few places."""


@dataclass(frozen=True, slots=True)
class Bars:
    """Values with their images, most of them first; `total` is 100 %."""

    title: str
    total: int
    rows: tuple[tuple[str, int], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """All that the report of a dataset tells but its pictures."""

    name: str
    images: int
    found: int
    groups: int
    classes: tuple[ClassFacts, ...]
    """Classes that are listed, by falling number of images."""
    all_classes: int
    missing_classes: tuple[tuple[str, str], ...]
    """Classes without an image, and why."""
    more_missing: int
    stages: tuple[StageFacts, ...]
    """Stages of the classes that lost most images; none where the summary does not say."""
    more_stages: int
    splits: tuple[tuple[str, int, int, int], ...]
    """Split, images, groups, classes."""
    folds: int
    divided: int
    """Groups in several splits."""
    gaps: tuple[str, ...]
    """Which figures the splits cannot give, in sentences."""
    reasons: tuple[ReasonFacts, ...]
    """The most frequent; a build has fewer than are listed at most."""
    all_reasons: int
    left_out: int
    sources: Bars
    licences: tuple[tuple[str, int, str], ...]
    """Licence in the source's words, number of images, and what the licence allows."""
    people: tuple[Bars, ...]
    unknown: tuple[str, ...]
    """Facts that no image has."""
    asked: tuple[str, ...]
    """What was asked about the lesion of some image."""
    answers: tuple[tuple[str, tuple[tuple[int, int], ...]], ...]
    """Class -> images with yes and images with an answer, by `asked`; classes as listed."""
    sizes: Bars
    size_words: str
    group_sizes: Bars
    copies: tuple[str, ...]
    flags: tuple[tuple[str, int], ...]
    boxes: tuple[int, int]
    """Images of which somebody said where their lesions are, and boxes."""
    notes: tuple[str, ...]
    more_notes: int


def dataset_facts(
    records: Sequence[Record],
    issues: Sequence[Issue],
    taxonomy: Taxonomy | None,
    summary: Mapping[str, Any],
    flags: Iterable[Flag],
    *,
    name: str,
    compared: bool,
) -> DatasetFacts:
    """Count what the report tells; `compared`: the build looked for copies that hashes miss.

    `summary` is that of summary.json, or {}: an older version did not write every key.
    """
    classes = _classes(records, taxonomy)
    stages = list(_stages(summary.get("funnel") or (), taxonomy))
    counts = count_images(records)
    known = {field: counts[field] for field in _OF_PEOPLE}
    known["modality"] = dict(Counter(r.modality or UNKNOWN for r in records).most_common(_ROWS))
    titles = COUNTED | {"modality": "kind of image"}
    missing = [*_mapping(summary, "dropped_classes").items()]
    missing += [*_mapping(summary, "lost_classes").items()]
    absent = [(key, "no source named an image") for key in summary.get("absent_classes") or ()]
    missing += absent
    splits_of = defaultdict(set)
    for record in records:
        splits_of[record.group].add(record.split)
    kept = {record.sha256 for record in records}
    flagged = Counter(
        reason for _, reason in {(f.sha256, f.reason) for f in flags if f.sha256 in kept}
    )
    notes = [str(note) for note in summary.get("notes") or ()]
    return DatasetFacts(
        name=name,
        images=len(records),
        found=int(summary.get("found") or len(records) + len(issues)),
        groups=len(splits_of),
        classes=tuple(_listed(classes)),
        all_classes=len(classes),
        missing_classes=tuple((printable(key), short(why)) for key, why in missing[:_ROWS]),
        more_missing=max(0, len(missing) - _ROWS),
        stages=tuple(stages[:_STAGE_ROWS]),
        more_stages=max(0, len(stages) - _STAGE_ROWS),
        splits=tuple(_splits(records)),
        folds=len({record.fold for record in records} - {None}),
        divided=sum(len(splits) > 1 for splits in splits_of.values()),
        gaps=tuple(gaps(classes)),
        reasons=tuple(_reasons(issues)),
        all_reasons=len({issue.reason for issue in issues}),
        left_out=len(issues),
        sources=_bars("source", len(records), counts["source"]),
        licences=tuple(_licences(counts["licence"])),
        people=tuple(
            _bars(titles[field], len(records), _in_order(field, values))
            for field, values in known.items()
            if values.keys() - {UNKNOWN}
        ),
        unknown=tuple(titles[f] for f, values in known.items() if not values.keys() - {UNKNOWN}),
        asked=(asked := _asked(records)),
        answers=tuple(_answers(records, _listed(classes), asked)),
        sizes=_banded(
            "longer side, pixels", [max(r.width, r.height) for r in records], _LONGER_SIDES
        ),
        size_words=_size_words(records),
        group_sizes=_banded(
            "images a group", Counter(r.group for r in records).values(), _GROUP_SIZES, "groups"
        ),
        copies=tuple(_copies(summary.get("copies"), compared=compared)),
        flags=tuple((short(reason, 60), n) for reason, n in flagged.most_common(_ROWS)),
        boxes=(
            sum(record.boxes is not None for record in records),
            sum(len(record.boxes or ()) for record in records),
        ),
        notes=tuple(short(note, _LONGEST_NOTE) for note in notes[: 2 * _ROWS]),
        more_notes=max(0, len(notes) - 2 * _ROWS),
    )


def short(text: str, most: int = _LONGEST) -> str:
    """Return printable text whose middle is left out where it is long: both ends say most."""
    text = printable(text)
    half = (most - 3) // 2
    return text if len(text) <= most else f"{text[:half]} … {text[-half:]}"


def _mapping(summary: Mapping[str, Any], key: str) -> Mapping[str, str]:
    value = summary.get(key)
    return value if isinstance(value, Mapping) else {}


def _stages(funnel: Iterable[Mapping[str, Any]], taxonomy: Taxonomy | None) -> Iterator[StageFacts]:
    """Yield the classes of which images were lost, those that lost most first."""
    known = {one.key: one.name for one in taxonomy.classes} if taxonomy else {}
    rows = [
        row for row in funnel if row["named"] > row["kept"] or (row["lost"] and not row["kept"])
    ]
    for row in sorted(rows, key=lambda row: (row["kept"] - row["named"], row["label"])):
        ranked = sorted(row["lost"].items(), key=lambda pair: (-pair[1], pair[0]))
        why = ", ".join(f"{short(reason, 60)} {n:,}" for reason, n in ranked[:_SAMPLES])
        images = tuple(int(row[stage]) for stage in STAGES)
        yield StageFacts(short(known.get(row["label"], row["label"])), images, why)


def _classes(records: Sequence[Record], taxonomy: Taxonomy | None) -> list[ClassFacts]:
    """Return all classes with images, by falling number of images."""
    known = {one.key: one for one in taxonomy.classes} if taxonomy else {}
    images = Counter((record.label, record.split) for record in records)
    pairs = {(record.label, record.split, record.group) for record in records}
    groups = Counter((label, split) for label, split, _ in pairs)
    whole = Counter(label for label, _ in {(label, group) for label, _, group in pairs})
    rows = []
    for key in dict.fromkeys(record.label for record in records):
        one = known.get(key)
        splits = {split: (images[key, split], groups[key, split]) for split in SPLITS}
        rows.append(
            ClassFacts(
                key,
                short(one.name if one else key),
                one.urgency if one else "",
                sum(n for n, _ in splits.values()),
                whole[key],
                splits,
            )
        )
    return sorted(rows, key=lambda row: (-row.images, row.key))


def _listed(classes: Sequence[ClassFacts]) -> Sequence[ClassFacts]:
    if len(classes) <= LARGEST + SMALLEST:
        return classes
    return [*classes[:LARGEST], *classes[-SMALLEST:]]


def _asked(records: Sequence[Record]) -> tuple[str, ...]:
    some = {name for record in records for name in answers_from(record.answers)}
    return tuple(one for one in QUESTIONS if one in some)


def _answers(
    records: Sequence[Record], classes: Sequence[ClassFacts], asked: Sequence[str]
) -> Iterator[tuple[str, tuple[tuple[int, int], ...]]]:
    counts: Counter[tuple[str, str, str]] = Counter()
    for record in records if asked else ():
        counts.update((record.label, *pair) for pair in answers_from(record.answers).items())
    for one in classes if asked else ():
        yes = [counts[one.key, name, "yes"] for name in asked]
        no = [counts[one.key, name, "no"] for name in asked]
        yield one.name, tuple((y, y + n) for y, n in zip(yes, no, strict=True))


def _splits(records: Sequence[Record]) -> Iterator[tuple[str, int, int, int]]:
    for split in SPLITS:
        part = [record for record in records if record.split == split]
        groups = {record.group for record in part}
        yield split, len(part), len(groups), len({record.label for record in part})


def gaps(classes: Sequence[ClassFacts]) -> Iterator[str]:
    """Yield a sentence for each kind of figure that the splits cannot give, or hardly."""

    def without(split: Split) -> list[str]:
        return [row.name for row in reversed(classes) if not row.splits[split][0]]

    if names := without("train"):
        yield f"No image in train of {_names(names)}: no network learns them."
    if names := without("val"):
        yield f"No image in val of {_names(names)}: what is chosen there does not heed them."
    if names := without("calibration"):
        yield (
            f"No image in calibration of {_names(names)}: no threshold is fitted to them, and no "
            f"promise of a prediction set holds for them."
        )
    if names := without("test"):
        yield (
            f"No image in test of {_names(names)}: no figure of them can be computed, and averages "
            f"over classes are those of the others."
        )
    few = [row for row in reversed(classes) if 0 < row.splits["test"][1] < FEW_GROUPS]
    if few:
        named = [f"{row.name} ({_lowest(row.splits['test'][1])})" for row in few]
        yield (
            f"Fewer than {FEW_GROUPS} groups in test: {_names(named)}. The percentage is where the "
            f"95 % interval of a class's sensitivity begins at best, when every group is "
            f"recognised."
        )
    urgent = [row for row in classes if row.urgency == "urgent"]
    groups = sum(row.splits["test"][1] for row in urgent)
    if urgent and groups < FEW_GROUPS:
        yield (
            f"The urgent classes have {counted(groups, 'group')} in test together: the share of "
            f"urgent conditions that a model misses cannot be told from chance."
        )


def _lowest(groups: int) -> str:
    low = int(100 * proportion_interval(1.0, groups).low)
    return f"{counted(groups, 'group')}, {low} %"


def _names(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more:,} more classes" if more > 0 else "")


def _reasons(issues: Sequence[Issue]) -> Iterator[ReasonFacts]:
    by_reason = defaultdict(list)
    for issue in issues:
        by_reason[issue.reason].append(issue)
    ordered = sorted(by_reason.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    for reason, rows in ordered[:_MOST_REASONS]:
        ranked = Counter(row.label for row in rows if row.label).most_common()
        words = ", ".join(f"{short(label, 60)} ({n:,})" for label, n in ranked[:_SAMPLES])
        more = len(ranked) - _SAMPLES
        rows.sort(key=lambda row: (row.label, row.url, row.sha256))
        step = max(1, len(rows) // _SAMPLES)
        yield ReasonFacts(
            reason=short(reason, 60),
            text=REASON_TEXTS.get(reason, ""),
            images=len(rows),
            classes=words + (f" and {more:,} more" if more > 0 else ""),
            samples=() if reason == TAKEN_DOWN else tuple(rows[::step][:_SAMPLES]),
        )


def _bars(title: str, total: int, counts: Mapping[str, int], note: str = "") -> Bars:
    return Bars(title, total, tuple((short(value, 80), n) for value, n in counts.items()), note)


def _in_order(field: str, counts: Mapping[str, int]) -> Mapping[str, int]:
    """Return the counts of ages and skin types by rising value, and others as they are."""
    if field == "age":
        keys = sorted(counts.keys() - {UNKNOWN}, key=lambda band: int(band.split()[0]))
    elif field == "skin_type":
        keys = [one for one in SKIN_TYPES if one in counts]
    else:
        return counts
    return {key: counts[key] for key in (*keys, *(counts.keys() & {UNKNOWN}))}


def _banded(
    title: str, values: Iterable[int], bands: Sequence[tuple[int, int]], noun: str = ""
) -> Bars:
    """Count values by bands (lowest, highest); 0: no highest."""
    counts: Counter[tuple[int, int]] = Counter()
    for value in values:
        counts[next(band for band in bands if value <= band[1] or not band[1])] += 1
    rows = []
    for low, high in bands:
        words = (
            f"{low:,}" if low == high else f"{low:,} to {high:,}" if high else f"{low:,} or more"
        )
        if counts[low, high]:
            rows.append((words, counts[low, high]))
    return Bars(title, counts.total(), tuple(rows), noun)


def _size_words(records: Sequence[Record]) -> str:
    if not records:
        return ""
    if len({(r.width, r.height) for r in records}) == 1:
        return f"Every image has {records[0].width:,} × {records[0].height:,} pixels."
    longer = np.percentile([max(r.width, r.height) for r in records], (0, 5, 50, 95, 100))
    low, fifth, middle, most, high = (f"{value:,.0f}" for value in longer)
    common = Counter((r.width, r.height) for r in records).most_common(3)
    sizes = ", ".join(f"{width} × {height} ({n:,})" for (width, height), n in common)
    return (
        f"The longer side has {middle} pixels in the median, {fifth} to {most} in nine of ten "
        f"images, {low} to {high} in all. Most frequent: {sizes}."
    )


def _licences(counts: Mapping[str, int]) -> Iterator[tuple[str, int, str]]:
    for words, n in counts.items():
        if words == UNKNOWN:
            yield "none named", n, "not known: publishing withholds these images"
        elif words == REST:
            yield words, n, "see manifest.parquet"
        else:
            licence = parse_licence(words)
            if not licence.may_redistribute:
                allowed = (
                    "not known: publishing withholds these images"
                    if licence.id == "unknown"
                    else "no copies"
                )
            else:
                conditions = {
                    "copies, none that is changed": not licence.may_adapt,
                    "copies, also changed": licence.may_adapt,
                    "with attribution": licence.needs_attribution,
                    "not for commercial use": licence.non_commercial,
                    "under the same licence": licence.share_alike,
                }
                allowed = ", ".join(text for text, holds in conditions.items() if holds)
            yield short(words, 80), n, allowed


def _copies(counts: Any, *, compared: bool) -> Iterator[str]:
    if not isinstance(counts, Mapping):
        yield "The summary of this dataset does not say what became of copies; build it again."
        return
    names = {one.name for one in fields(CopyCounts)}
    lines = list(CopyCounts(**{key: n for key, n in counts.items() if key in names}).lines())
    if not compared:
        yield "The build did not look for copies that hashes miss (`dedup.copies: off`)."
    elif not lines:
        yield "The build looked for copies that hashes miss, and verified none."
    yield from lines
