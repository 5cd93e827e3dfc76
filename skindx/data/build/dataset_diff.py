"""Differences between two versions of a dataset."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skindx.core.atomic_files import write_json
from skindx.core.settings_base import read_yaml
from skindx.core.text import cell, printable
from skindx.data.layout import DIFF, RECIPE
from skindx.data.manifest import Issue, Record, read_issues, read_manifest

if TYPE_CHECKING:
    from rich.console import Console

NO_SOURCE = "source-gone"
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class DatasetVersion:
    """One version of a dataset, as its tables tell it."""

    folder: str
    records: Sequence[Record]
    issues: Sequence[Issue]
    settings: Mapping[str, Any]
    """The recipe, flat: `split.test` -> 0.2."""


@dataclass(frozen=True, slots=True)
class DatasetChange:
    """One image, and what it was and is."""

    sha256: str
    url: str
    label: str
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class DatasetDiff:
    """Changes from `old` to `new`; images are the same when their bytes are."""

    old: str
    new: str
    added: tuple[DatasetChange, ...]
    """`after` is the split."""
    removed: tuple[DatasetChange, ...]
    """`before` is the split, `after` the reason in the new issues table, or source-gone."""
    relabelled: tuple[DatasetChange, ...]
    moved: tuple[DatasetChange, ...]
    """Between splits; none unless all were placed again."""
    boxes: tuple[DatasetChange, ...]
    """Boxes drawn, deleted or changed; `before` and `after` tell how many."""
    classes: Mapping[str, tuple[int, int]]
    """Class -> images before and after."""
    settings: Mapping[str, tuple[Any, Any]]
    """Key of the recipe -> value before and after; None: not there."""

    @property
    def same(self) -> bool:
        parts = (self.added, self.removed, self.relabelled, self.moved, self.boxes, self.settings)
        return not any(parts)


def diff(old: Path, new: Path) -> DatasetDiff:
    """Compare two dataset folders. Raises UserError for what is no dataset."""
    return compare(read_version(old), read_version(new))


def read_version(folder: Path) -> DatasetVersion:
    """Read a dataset folder's tables and recipe. Raises UserError."""
    recipe = folder / RECIPE
    settings = read_yaml(recipe) if recipe.exists() else {}
    return DatasetVersion(str(folder), read_manifest(folder), read_issues(folder), _flat(settings))


def _flat(value: Any, key: str = "") -> dict[str, Any]:
    if isinstance(value, list):
        value = {str(position): item for position, item in enumerate(value)}
    if not isinstance(value, dict) or not value:
        return {key: value} if key else {}
    flat: dict[str, Any] = {}
    for name, item in value.items():
        flat |= _flat(item, f"{key}.{name}" if key else str(name))
    return flat


def compare(old: DatasetVersion, new: DatasetVersion) -> DatasetDiff:
    """Return what changed from one version to the other."""
    before = {record.sha256: record for record in old.records}
    after = {record.sha256: record for record in new.records}
    both = [(before[sha256], after[sha256]) for sha256 in before if sha256 in after]
    counts = [Counter(record.label for record in version.records) for version in (old, new)]
    keys = dict.fromkeys((*old.settings, *new.settings))
    return DatasetDiff(
        old.folder,
        new.folder,
        added=tuple(_change(r, "", r.split) for s, r in after.items() if s not in before),
        removed=_removed([r for s, r in before.items() if s not in after], new.issues),
        relabelled=tuple(_change(n, o.label, n.label) for o, n in both if o.label != n.label),
        moved=tuple(_change(n, o.split, n.split) for o, n in both if o.split != n.split),
        boxes=tuple(_change(n, _boxes(o), _boxes(n)) for o, n in both if o.boxes != n.boxes),
        classes={
            label: (counts[0][label], counts[1][label])
            for label in sorted({*counts[0], *counts[1]})
        },
        settings={
            key: (old.settings.get(key), new.settings.get(key))
            for key in keys
            if old.settings.get(key) != new.settings.get(key)
        },
    )


def _change(record: Record, before: str, after: str) -> DatasetChange:
    return DatasetChange(record.sha256, record.source_url, record.label, before, after)


def _removed(records: Sequence[Record], issues: Sequence[Issue]) -> tuple[DatasetChange, ...]:
    by_url = {issue.url: issue.reason for issue in issues}
    by_sha = {issue.sha256: issue.reason for issue in issues if issue.sha256}
    # The bytes at a URL may have changed: then its own row says why the old ones went.
    return tuple(
        _change(r, r.split, by_sha.get(r.sha256) or by_url.get(r.source_url) or NO_SOURCE)
        for r in records
    )


def _boxes(record: Record) -> str:
    return "not reviewed" if record.boxes is None else str(len(record.boxes))


def write_diff(out: Path, difference: DatasetDiff) -> None:
    write_json(out / DIFF, asdict(difference))


def print_diff(difference: DatasetDiff, console: "Console") -> None:
    """Print what changed: sentences, and tables of classes and of settings."""
    from rich.table import Table

    for line in lines(difference):
        console.print(printable(line), markup=False, highlight=False)
    if difference.same:
        return
    classes = Table("class", "before", "after", "change")
    for label, (old, new) in difference.classes.items():
        classes.add_row(cell(label), str(old), str(new), f"{new - old:+d}" if new != old else "")
    totals = [sum(pair[side] for pair in difference.classes.values()) for side in (0, 1)]
    classes.add_section()
    classes.add_row("all", *map(str, totals), f"{totals[1] - totals[0]:+d}")
    for column in classes.columns[1:]:
        column.justify = "right"
    console.print(classes)
    if difference.settings:
        settings = Table("setting", "before", "after")
        for key, values in difference.settings.items():
            settings.add_row(cell(key), *(cell(_shown(value)) for value in values))
        console.print(settings)


def _shown(value: Any) -> str:
    return "–" if value is None else str(value)


def lines(difference: DatasetDiff) -> list[str]:
    """Tell what changed in plain sentences, each kind of change with a few examples."""
    sentences = [f"From {difference.old} to {difference.new}:"]
    if difference.same:
        return [f"{sentences[0]} nothing changed."]
    reasons = Counter(change.after for change in difference.removed)
    why = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    sentences.append(f"  {len(difference.added)} added")
    sentences.append(f"  {len(difference.removed)} removed" + (f": {why}" if why else ""))
    for name, changes in (
        ("relabelled", difference.relabelled),
        ("moved between splits", difference.moved),
        ("with other boxes", difference.boxes),
    ):
        sentences.append(f"  {len(changes)} {name}")
        sentences += [
            f"    {change.url}: {change.before} → {change.after}" for change in changes[:_SHOWN]
        ]
        if len(changes) > _SHOWN:
            sentences.append(f"    and {len(changes) - _SHOWN} more, see {DIFF}")
    if difference.moved:
        sentences.append(
            f"  Results on the two cannot be compared; `--freeze {difference.old}` keeps the "
            f"splits of a build to another folder."
        )
    return sentences
