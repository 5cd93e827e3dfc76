"""Number of images of each class after each stage, from sources to the kept ones."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from skindx.core.text import cell
from skindx.data.ledger import LedgerRow
from skindx.data.manifest import Issue, Record
from skindx.taxonomy import Taxonomy, normalise

if TYPE_CHECKING:
    from rich.console import Console

STAGES = ("named", "fetched", "screened", "distinct", "kept")


@dataclass(frozen=True, slots=True)
class ClassFunnel:
    """One class: how many of its images came through each stage of a build."""

    label: str
    named: int
    """Addresses or files that the sources give for it."""
    fetched: int
    screened: int
    """Of those, the ones that decode and show something."""
    distinct: int
    """Of those, the ones left by de-duplication."""
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
        others: dict[str, str] = {}
        for label in dict.fromkeys(labels):
            match = taxonomy.recognise(label)
            if match:
                self._key[label] = match.key
            elif closed or not normalise(label):
                self._key[label] = None
            else:
                self._key[label] = others.setdefault(normalise(label), label)
        self.keys: tuple[str, ...] = (*taxonomy.keys, *others.values())

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
    images = [row for row in rows if not is_page(row)]
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
    found = []
    for key in names.keys:
        lost = Counter({why: count[key] for why, count in reasons.items() if count[key]})
        named, fetched, screened, unlike, kept = (count[key] for count in counts)
        found.append(
            ClassFunnel(key, named, fetched, screened, unlike, kept, dict(lost.most_common()))
        )
    return tuple(sorted(found, key=lambda row: (row.kept > 0, not row.looked_for)))


def is_page(row: LedgerRow) -> bool:
    """Tell whether a row is of a page that gave no image, and not of an image."""
    return row.status != "stored" and row.page_url == row.url


def recounted(
    funnel: Sequence[dict[str, Any]], records: Collection[Record]
) -> list[dict[str, Any]]:
    """Return a stored funnel with the images that are still kept, after some were taken down."""
    kept = Counter(record.label for record in records)
    return [{**row, "kept": kept[row["label"]]} for row in funnel]


def print_funnel(funnel: Sequence[ClassFunnel], console: "Console") -> None:
    """Print a table of classes by stages; where nothing is kept, the class stands on top."""
    from rich.table import Table

    table = Table("class", *STAGES, "not kept")
    for column in table.columns[1:-1]:
        column.justify = "right"
    for row in funnel:
        reasons = ", ".join(f"{count} {reason}" for reason, count in row.lost.items())
        numbers = [str(getattr(row, stage)) for stage in STAGES]
        table.add_row(cell(row.label), *numbers, cell(reasons))
    table.add_section()
    sums = [str(sum(getattr(row, stage) for row in funnel)) for stage in STAGES]
    table.add_row("all", *sums, "")
    console.print(table)
