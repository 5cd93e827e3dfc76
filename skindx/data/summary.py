"""Summary of a build, as text and as JSON: images found, kept and dropped.

By class: the funnel from sources to kept images, and what each source gave against the recipe's
targets. Of copies: pairs, families, and how much of planted copies the search finds, as measured
by the benchmark.
"""

import json
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skindx.core.text import cell, printable
from skindx.data.boxes.box_join import BoxCounts
from skindx.data.decisions import Flag
from skindx.data.ledger import LedgerRow
from skindx.data.manifest import SPLITS, Issue, Record
from skindx.imaging.stored_colours import SRGB, Decoding, colour_sentences
from skindx.taxonomy import Taxonomy, normalise

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class ClassCount:
    """One class: the aim, and by source the sound images found and those kept of them."""

    label: str
    target: int | None
    found: Mapping[str, int]
    kept: Mapping[str, int]

    @property
    def all_kept(self) -> int:
        return sum(self.kept.values())

    @property
    def missing(self) -> int:
        """Images still missing to the aim; 0 where there is none."""
        return max(0, (self.target or 0) - self.all_kept)


def print_counts(counts: Sequence[ClassCount], console: "Console") -> None:
    """Print each class's kept images by source, the aim, and how much of it is reached.

    Sources are columns by number: their names may be long and begin alike.
    """
    sources = _sources(counts)
    numbers = [str(number) for number in range(1, len(sources) + 1)]
    rows = [
        (
            row.label,
            *_against(row.target, row.all_kept),
            *(str(row.kept.get(source, 0)) for source in sources),
        )
        for row in counts
    ]
    target = sum(row.target or 0 for row in counts)
    totals = [sum(row.kept.get(source, 0) for row in counts) for source in sources]
    all_sources = (*_against(target, sum(totals)), *map(str, totals))
    _print_table(console, ("target", "kept", "reached", *numbers), rows, all_sources)
    for number, source in zip(numbers, sources, strict=True):
        console.print(f"source {number}: {printable(source)}", markup=False, highlight=False)


def _print_table(
    console: "Console",
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    totals: Sequence[str],
    last: str = "",
) -> None:
    """Print rows (class, *counts) and totals; a `last` column holds words."""
    from rich.table import Table

    table = Table("class")
    for column in columns:
        table.add_column(column, justify="right")
    if last:
        table.add_column(last)
    for row in rows:
        table.add_row(*map(cell, row))
    table.add_section()
    table.add_row("all", *totals)
    console.print(table)


def _against(target: int | None, kept: int) -> tuple[str, str, str]:
    return str(target or "–"), str(kept), f"{kept / target:.0%}" if target else "–"


def _sources(counts: Sequence[ClassCount]) -> list[str]:
    return sorted({source for row in counts for source in row.found})


RECALL_FILE = Path(__file__).parent / "copies" / "recall.json"


@cache
def _read() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(RECALL_FILE.read_text(encoding="utf-8"))
    return read


def measured_recall() -> dict[str, dict[str, Any]]:
    """Return found, n, low and high by kind of copy, as `skindx bench clean` measured them."""
    recall: dict[str, dict[str, Any]] = _read()["recall"]
    return recall


def false_links() -> tuple[int, int]:
    """Return how many links of the same runs join different images, and how many links they are."""
    counted = _read()["false_links"]
    return counted["false"], counted["links"]


def recall_sentence() -> str:
    """Say which share of which kinds is found, and how many links are false."""
    recall = measured_recall()
    whole = [row for row in recall.values() if row["found"] == row["n"]]
    parts = []
    if whole:
        low = 100 * min(row["low"] for row in whole)
        parts.append(f"all of {len(whole)} of {len(recall)} kinds (lower bound {low:.0f} %)")
    parts += [
        f"{100 * row['found'] / row['n']:.0f} % of {kind.replace('_', ' ')} "
        f"[{100 * row['low']:.0f}, {100 * row['high']:.0f}]"
        for kind, row in recall.items()
        if row["found"] < row["n"]
    ]
    false, links = false_links()
    return (
        f"Of planted copies this search finds {', '.join(parts)}; {false or 'none'} of its "
        f"{links:,} links there joined different images."
    )


@dataclass(frozen=True, slots=True)
class CopyCounts:
    """Pairs of copies that a build verified, and the families that they make."""

    pairs: int = 0
    """Pairs verified by the images alone."""
    by_people: int = 0
    """Pairs that a person called the same."""
    refused: int = 0
    """Pairs that a person called different."""
    uncertain: int = 0
    """Pairs that wait for a person; they join nothing."""
    families: int = 0
    """Families of images that are one group because of such pairs."""
    images: int = 0
    """Kept images in these families."""
    dropped: int = 0
    """Images that `dedup.copies: drop` took out."""
    mixed: int = 0
    """Families with images of several classes."""
    torn: int = 0
    """Families that stand in several splits, since earlier builds placed them there."""
    torn_images: Mapping[str, int] = field(default_factory=dict)
    """Images of torn families, by split."""
    would_leave: Mapping[str, int] = field(default_factory=dict)
    """Images that joining torn families would drop, by split."""

    def lines(self) -> Iterator[str]:
        """Say it in sentences; nothing where no pair was found."""
        if self.pairs or self.by_people:
            by = f", {self.by_people} more by people" if self.by_people else ""
            yield (
                f"Copies that hashes miss: {self.pairs} pairs verified{by}; "
                + (f"{self.dropped} images dropped; " if self.dropped else "")
                + f"{self.families} families of {self.images} images are one group each."
            )
            yield recall_sentence()
        if self.mixed:
            yield (
                f"{self.mixed} families of copies have images of several classes: check their "
                f"labels with `skindx review DATASET`, which shows them as doubtful labels."
            )
        if self.uncertain:
            yield (
                f"{self.uncertain} pairs may be copies and join nothing yet: say `same` or "
                f"`different` with `skindx review DATASET`."
            )
        if self.torn:
            where = ", ".join(f"{count} in {split}" for split, count in self.torn_images.items())
            gone = ", ".join(f"{count} of {split}" for split, count in self.would_leave.items())
            yield (
                f"{self.torn} families of copies are divided between splits: earlier builds "
                f"placed them there ({where}). Build with --resplit to place all images again, or "
                f"with --join-copies to keep the splits and drop {gone}."
            )


STAGES = ("named", "fetched", "screened", "distinct", "kept")


@dataclass(frozen=True, slots=True)
class ClassFunnel:
    """One class: how many of its images came through each stage of a build."""

    label: str
    named: int
    """Addresses or files that the sources give for it."""
    fetched: int
    screened: int
    """Fetched images that decode and show something."""
    distinct: int
    """Screened images that are left after de-duplication."""
    kept: int
    lost: Mapping[str, int] = field(default_factory=dict)
    """Reason -> images (or pages, which would have named images), the most frequent first."""

    @property
    def looked_for(self) -> bool:
        """Tell whether any image was named, or might have been by a page that failed."""
        return bool(self.named or self.lost)

    @property
    def why(self) -> str:
        """Say in a sentence's end how its images were lost."""
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.lost.items())
        if not self.named:
            return f"no page that lists its images could be used ({reasons})"
        return (
            f"{self.named} images named, {self.fetched} fetched, {self.screened} sound, "
            f"{self.distinct} distinct, {self.kept} kept ({reasons})"
        )


class ClassNames:
    """The class of each label: the taxonomy's key, or the label where no taxonomy was given."""

    def __init__(self, taxonomy: Taxonomy, labels: Iterable[str], *, closed: bool) -> None:
        """`closed`: the user chose the taxonomy, so that other labels belong to no class."""
        self._key: dict[str, str | None] = {}
        unlisted: dict[str, str] = {}
        for label in dict.fromkeys(labels):
            match = taxonomy.recognise(label)
            if match:
                self._key[label] = match.key
            elif closed or not normalise(label):
                self._key[label] = None
            else:
                self._key[label] = unlisted.setdefault(normalise(label), label)
        self.keys: tuple[str, ...] = (*taxonomy.keys, *unlisted.values())

    def count(self, labels: Iterable[str]) -> Counter[str]:
        """Count labels by their class; those of no class are left out."""
        keys = (self._key.get(label, label) for label in labels)
        return Counter(key for key in keys if key)


def count_funnel(
    names: ClassNames,
    *,
    rows: Sequence[LedgerRow],
    sound: Iterable[str],
    distinct: Iterable[str],
    records: Iterable[Record],
    issues: Sequence[Issue],
) -> tuple[ClassFunnel, ...]:
    """Count each class; `sound` and `distinct` hold a label an image.

    Classes of which images were found and none is kept come first, then those of which none was
    found, then the others; else in the order of `names`.
    """
    # A row whose page is its own address is of a page that gave no image.
    images = [row for row in rows if row.status == "stored" or row.page_url != row.url]
    counts = (
        names.count(row.label for row in images),
        names.count(row.label for row in images if row.status == "stored"),
        names.count(sound),
        names.count(distinct),
        names.count(record.label for record in records),
    )
    reasons = {
        reason: names.count(issue.label for issue in issues if issue.reason == reason)
        for reason, _ in Counter(issue.reason for issue in issues).most_common()
    }
    classes = []
    for key in names.keys:
        lost = Counter({why: count[key] for why, count in reasons.items() if count[key]})
        named, fetched, screened, unlike, kept = (count[key] for count in counts)
        classes.append(
            ClassFunnel(key, named, fetched, screened, unlike, kept, dict(lost.most_common()))
        )
    return tuple(sorted(classes, key=lambda row: (row.kept > 0, not row.looked_for)))


def recounted(
    funnel: Sequence[dict[str, Any]], records: Collection[Record]
) -> list[dict[str, Any]]:
    """Return a stored funnel with the images that are still kept, after some were taken down."""
    kept = Counter(record.label for record in records)
    return [{**row, "kept": kept[row["label"]]} for row in funnel]


def print_funnel(funnel: Sequence[ClassFunnel], console: "Console") -> None:
    """Print a table of classes by stages; where nothing is kept, the class stands on top."""
    rows = []
    for row in funnel:
        reasons = ", ".join(f"{count} {reason}" for reason, count in row.lost.items())
        rows.append((row.label, *(str(getattr(row, stage)) for stage in STAGES), reasons))
    sums = [str(sum(getattr(row, stage) for row in funnel)) for stage in STAGES]
    _print_table(console, STAGES, rows, (*sums, ""), last="not kept")


@dataclass(frozen=True, slots=True)
class BuildSummary:
    """Counts of one build; every file or URL found is either kept or an issue with a reason."""

    name: str
    found: int
    kept: int
    issues: Mapping[str, int]
    """Reason -> images."""
    splits: Mapping[str, Mapping[str, int]]
    """Class -> split -> images."""
    dropped_classes: Mapping[str, str]
    """Class -> why it is not in the dataset although images of it were found."""
    absent_classes: tuple[str, ...]
    """Classes of the taxonomy of which no source named an image."""
    exact_conflicts: int
    """Distinct byte strings that stand under more than one label."""
    near_conflicts: int
    """Pairs of near duplicates with different labels."""
    groups: int
    largest_group: int
    boxed: int
    """Kept images that a box file names."""
    notes: tuple[str, ...] = ()
    counts: tuple[ClassCount, ...] = ()
    """Images of each class by source, against the recipe's targets."""
    folds: tuple[int, ...] = ()
    """Images of each fold."""
    earlier_manifests: tuple[str, ...] = ()
    """SHA-256 of this build's manifest before each take-down, oldest first."""
    funnel: tuple[ClassFunnel, ...] = ()
    """Images named, fetched, sound, distinct and kept, by class; classes without any come first."""
    flagged: Mapping[str, int] = field(default_factory=dict)
    """Reason -> images of the dataset that the build flags for a person to look at."""
    lost_classes: Mapping[str, str] = field(default_factory=dict)
    """Class -> how its images were lost, although sources named some or a page of it failed."""
    copies: CopyCounts = field(default_factory=CopyCounts)
    """Copies that hashes miss."""
    boxes: BoxCounts | None = None
    """What became of the recipe's box file; None: it has none."""
    decoding: Decoding = SRGB
    """Colours of the pixels that were measured, and that trainings see."""
    colours: Mapping[str, int] = field(default_factory=dict)
    """What came of profiles and further images in the files -> images of the dataset."""

    def as_json(self) -> dict[str, Any]:
        """Return plain values under stable keys."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Tell the build in plain sentences, without the table of classes."""
        lines = [*self.notes, f"{self.name}: {self.kept} of {self.found} images kept."]
        lines += [f"  {count} {reason}" for reason, count in sorted(self.issues.items())]
        if self.exact_conflicts or self.near_conflicts:
            lines.append(
                "Contradictions: images under two labels with the same bytes: "
                f"{self.exact_conflicts}; pairs of near duplicates with different labels: "
                f"{self.near_conflicts}."
            )
        if self.flagged:
            flags = ", ".join(f"{count} {reason}" for reason, count in self.flagged.items())
            lines.append(
                f"Flagged and kept, for a person to look at: {flags} images; "
                f"`skindx review DATASET` shows them."
            )
        lines += colour_sentences(self.colours)
        lines += [f"Dropped class {key}: {why}" for key, why in self.dropped_classes.items()]
        lines += [f"Lost class {key}: {why}." for key, why in self.lost_classes.items()]
        if self.absent_classes:
            lines.append(f"No image was found of {', '.join(self.absent_classes)}.")
        lines += self.copies.lines()
        apart = "" if self.copies.torn else "; no group is in two splits"
        lines.append(f"{self.groups} groups, the largest with {self.largest_group} images{apart}.")
        if self.folds:
            sizes = ", ".join(map(str, self.folds))
            lines.append(f"{len(self.folds)} folds of train and val: {sizes} images.")
        return lines


def count_flagged(flags: Iterable[Flag]) -> dict[str, int]:
    pairs = {(flag.sha256, flag.reason) for flag in flags}
    return dict(Counter(reason for _, reason in sorted(pairs)).most_common())


def totals(records: Sequence[Record], issues: Sequence[Issue]) -> dict[str, Any]:
    """Return those values of a BuildSummary that follow from the manifest and the issues table.

    Classes stand in the order of `records`.
    """
    places = Counter((record.label, record.split) for record in records)
    groups = Counter(record.group for record in records)
    folds = Counter(record.fold for record in records if record.fold is not None)
    return {
        "kept": len(records),
        "issues": dict(Counter(issue.reason for issue in issues).most_common()),
        "splits": {
            label: {split: places[label, split] for split in SPLITS}
            for label in dict.fromkeys(record.label for record in records)
        },
        "groups": len(groups),
        "largest_group": max(groups.values(), default=0),
        "boxed": sum(record.boxes is not None for record in records),
        "folds": tuple(folds[fold] for fold in range(max(folds, default=-1) + 1)),
    }


def as_typed(line: str, dataset: Path) -> str:
    """Return a sentence whose command for a review names the dataset, as one types it."""
    return line.replace("skindx review DATASET", f"skindx review {shlex.quote(str(dataset))}")


def print_summary(
    summary: BuildSummary, console: "Console", dataset: Path = Path("DATASET")
) -> None:
    """Print the sentences and a table of classes by splits."""
    for line in summary.lines():
        console.print(printable(as_typed(line, dataset)), markup=False, highlight=False)
    rows = [
        (key, *(str(counts[split]) for split in SPLITS), str(sum(counts.values())))
        for key, counts in summary.splits.items()
    ]
    sums = [sum(counts[split] for counts in summary.splits.values()) for split in SPLITS]
    _print_table(console, (*SPLITS, "all"), rows, [*map(str, sums), str(sum(sums))])
    print_funnel(summary.funnel, console)
    if any(row.target for row in summary.counts) or len(_sources(summary.counts)) > 1:
        print_counts(summary.counts, console)
