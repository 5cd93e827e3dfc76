"""Summary of a build: images found, kept and dropped, as text and as JSON."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from skindx.core.text import cell, printable
from skindx.data.boxes.joining import BoxCounts
from skindx.data.class_counts import ClassCount, print_counts
from skindx.data.copy_counts import CopyCounts
from skindx.data.funnel import ClassFunnel, print_funnel
from skindx.data.manifest import SPLITS, Issue, Record
from skindx.data.review import Flag

if TYPE_CHECKING:
    from rich.console import Console


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
    """By class: what each source gave, against the recipe's targets."""
    folds: tuple[int, ...] = ()
    """Images of each fold."""
    earlier_manifests: tuple[str, ...] = ()
    """SHA-256 of this build's manifest before each take-down, oldest first."""
    funnel: tuple[ClassFunnel, ...] = ()
    """By class: images named, fetched, sound, distinct, kept; classes without any come first."""
    flagged: Mapping[str, int] = field(default_factory=dict)
    """Reason -> images of the dataset that the build flags for a person to look at."""
    lost_classes: Mapping[str, str] = field(default_factory=dict)
    """Class -> how its images were lost, although sources named some or a page of it failed."""
    copies: CopyCounts = field(default_factory=CopyCounts)
    """Copies that hashes miss."""
    boxes: BoxCounts | None = None
    """What became of the recipe's box file; None: it has none."""

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
            said = ", ".join(f"{count} {reason}" for reason, count in self.flagged.items())
            lines.append(
                f"Flagged and kept, for a person to look at: {said} images; `skindx gallery` shows "
                f"them under To review, `skindx annotate DATASET --skin` asks a person."
            )
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
    """Count the images that have flags of each reason."""
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


def print_summary(summary: BuildSummary, console: "Console") -> None:
    """Print the sentences and a table of classes by splits."""
    from rich.table import Table

    for line in summary.lines():
        console.print(printable(line), markup=False, highlight=False)
    table = Table("class", *SPLITS, "all")
    for column in table.columns[1:]:
        column.justify = "right"
    for key, counts in summary.splits.items():
        table.add_row(cell(key), *(str(counts[s]) for s in SPLITS), str(sum(counts.values())))
    sums = [sum(counts[split] for counts in summary.splits.values()) for split in SPLITS]
    table.add_section()
    table.add_row("all", *map(str, sums), str(sum(sums)))
    console.print(table)
    print_funnel(summary.funnel, console)
    if any(row.target for row in summary.counts) or _sources(summary) > 1:
        print_counts(summary.counts, console)


def _sources(summary: BuildSummary) -> int:
    return len({source for row in summary.counts for source in row.found})
