"""Groups: images that must not be torn apart by a split (one lesion, one patient, one scene).

Verified copies become one group too, unless earlier builds placed them in different splits.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.settings_base import NamePattern, Settings
from skindx.core.text import folded_name
from skindx.data.copies.deduplicate import Distinct
from skindx.data.copies.hash_links import connected
from skindx.data.ledger import FROM, LedgerRow, file_name
from skindx.data.manifest import SPLITS, Split
from skindx.data.name_patterns import first_groups
from skindx.data.placeholders import crowded_ids, is_placeholder, is_zero, placeholder_notes
from skindx.data.sources.columns import first_there
from skindx.data.tables.archives import is_there
from skindx.data.tables.cells import cell
from skindx.data.tables.fields import TableFields, TableLog, check_sure
from skindx.data.tables.reader import read_table

# L = links

_ONE = re.compile("0*1")


class GroupTable(TableFields):
    """A CSV that says which images belong together, such as HAM10000's lesion ids."""

    path: Path
    or_paths: tuple[Path, ...] = Field((), exclude_if=lambda paths: not paths)
    """Where else the table may be; the first that is there counts."""
    key_column: str
    group_column: str
    also: Mapping[str, tuple[str, ...]] = Field({}, exclude_if=lambda also: not also)
    """Other names of a column, for tables that lack it: {image: [image_id]}."""
    key_pattern: NamePattern = r"^(.+?)(?:\.[^.]*)?$"
    """Finds the key in the file name of an image's URL; its first group is the key."""

    @property
    def wanted(self) -> tuple[str, str]:
        """Both columns."""
        return self.key_column, self.group_column

    def check(self, path: Path, existing: object) -> None:
        """Raise UserError for a table that lacks one of the columns."""
        names = list(map(str, existing)) if isinstance(existing, list | tuple) else []
        for column in self.wanted:
            if column not in names:
                raise UserError(
                    f"{path} has no column {column!r}, which `groups.tables` in the recipe names; "
                    f"choose one of {', '.join(names)}."
                )


class GroupSettings(Settings):
    """Kinds of relations that group images, beside the group that a source names."""

    radius: int = Field(default=6, ge=0, le=32)
    """Hash distance; larger than that of duplicates, because a false link drops no image."""
    by_page: bool = False
    """Group the images of one page: right for articles, wrong for an atlas's category pages."""
    tables: tuple[GroupTable, ...] = ()


class GroupKeys:
    """The joined tables: from a ledger row to the names of what it belongs to."""

    def __init__(self, settings: GroupSettings) -> None:
        """Read the tables. Raises UserError for a missing file or column."""
        self._by_page = settings.by_page
        self._notes: list[str] = []
        self._tables = [
            (_read_table(table, self._notes), dict[str, str | None]()) for table in settings.tables
        ]
        self._settings = settings
        self._counted: set[tuple[str, int]] = set()
        """Sources whose ids count up from zero, with the digits of such an id."""

    def group_keys(self, row: LedgerRow) -> list[str]:
        """Return the names that tie a row to others; the same name is the same group."""
        source, groups = self._ids(row)
        keys = [f"{source}/{group}" for group in groups if not self._is_none(source, group)]
        if self._by_page and row.page_url:
            keys.append(row.page_url)
        for table in range(len(self._tables)):
            keys += self._look_up(table, row)
        return keys

    @staticmethod
    def _ids(row: LedgerRow) -> tuple[str, list[str]]:
        return row.source.partition(FROM)[0], list(filter(None, row.group.split("\n")))

    def _is_none(self, source: str, group: str) -> bool:
        """Tell whether an id stands for nobody; of several columns it follows a name and =."""
        plain = group.partition("=")[2].strip() or group.strip()
        if is_zero(plain):
            return (source, len(plain)) not in self._counted
        return is_placeholder(plain)

    def notes(self, images: Distinct) -> list[str]:
        """Say which ids are placeholders, and which bear more images than is plausible.

        An id of zeros is one of its own where its source has the next number too.
        """
        rows = [same[0].row for same in images]
        for source, groups in map(self._ids, rows):
            plain = (group.partition("=")[2].strip() or group.strip() for group in groups)
            self._counted |= {(source, len(each)) for each in plain if _ONE.fullmatch(each)}
        empty: dict[str, list[str]] = defaultdict(list)
        borne: dict[str, Counter[str]] = defaultdict(Counter)
        for source, groups in map(self._ids, rows):
            none = [group for group in groups if self._is_none(source, group)]
            empty[source] += none[:1]
            borne[source].update({group for group in groups if group not in none})
        by_source = {source: counts for source, counts in borne.items() if counts}
        none = placeholder_notes({k: v for k, v in empty.items() if v})
        return [*self._notes, *none, *crowded_ids(by_source)]

    def _look_up(self, table: int, row: LedgerRow) -> Sequence[str]:
        groups, keys = self._tables[table]
        name = file_name(row.url)
        if name not in keys:
            keys |= first_groups(self._settings.tables[table].key_pattern, [name])
        key = keys[name]
        return () if key is None else groups.get(folded_name(key), ())

    def check(self, images: Distinct) -> None:
        """Raise UserError for a table that ties no image at all: its columns must be wrong."""
        rows = [image.row for same in images for image in same]
        for position, table in enumerate(self._settings.tables):
            names = (file_name(row.url) for row in rows)
            self._tables[position][1].update(first_groups(table.key_pattern, names))
            if rows and not any(self._look_up(position, row) for row in rows):
                raise UserError(
                    f"no value of the column {table.key_column!r} of {table.path} is found with "
                    f"{table.key_pattern!r} in file names such as {file_name(rows[0].url)!r}; "
                    "change `key_column` or `key_pattern` in `groups.tables` of the recipe."
                )


def group_names(
    images: Distinct, links_L3: NDArray[np.int64], keys: GroupKeys, radius: int
) -> dict[str, str]:
    """Return the group of each SHA-256: connected by near links, shared keys, or both.

    Keys that fold alike are one. A group is named by its smallest key, or else by its smallest
    SHA-256.
    """
    owner: dict[str, int] = {}
    spelt: dict[str, str] = {}
    tied: list[tuple[int, int]] = []
    for i, same in enumerate(images):
        named = {key for image in same for key in keys.group_keys(image.row)}
        spelt |= {key: folded_name(key) for key in named}
        tied += [(owner.setdefault(spelt[key], i), i) for key in named]
    near_L2 = links_L3[links_L3[:, 2] <= radius, :2]
    tied_L2 = np.array(tied, np.int64).reshape(-1, 2)
    component = connected(len(images), np.concatenate([near_L2, tied_L2]))
    names: dict[int, str] = {}
    for key in sorted(spelt):
        names.setdefault(component[owner[spelt[key]]], key)
    for i, same in enumerate(images):
        # Images come in the order of their SHA-256, so the first one is the smallest.
        names.setdefault(component[i], same[0].row.sha256)
    return {same[0].row.sha256: names[component[i]] for i, same in enumerate(images)}


def _read_table(table: GroupTable, notes: list[str]) -> dict[str, list[str]]:
    """Return the groups of each key: one, or both where the recipe has contradictions listed."""
    path = first_there(table.path, table.or_paths)
    if not is_there(path):
        raise UserError(f"{path} does not exist; change its path in `groups.tables`.")
    log = TableLog()
    lines = read_table(path, table, table, log)
    rows = [tuple(cell(line.get(column)) for column in table.wanted) for line in lines]
    notes += log.all_notes(path)
    counts = {len(group) for _, group in rows if _ONE.fullmatch(group)}
    groups: dict[str, list[str]] = {}
    for key, group in rows:
        if key and not is_placeholder(group) and (not is_zero(group) or len(group) in counts):
            known = groups.setdefault(folded_name(key), [])
            known += [] if group in known else [group]
    torn = check_sure(path, groups, table.group_column, table, "makes them one group")
    if torn:
        key, names = next(iter(torn.items()))
        notes.append(
            f"{path}: {len(torn)} keys have several groups, such as {key} "
            f"({', '.join(names[:3])}), which become one."
        )
    return groups


Pair = tuple[str, str]
"""The SHA-256 of two images."""


@dataclass(frozen=True, slots=True)
class JoinedPairs:
    """Pairs of copies that join their groups, and pairs that would divide a frozen split."""

    joined: tuple[Pair, ...]
    crossing: tuple[Pair, ...]
    """Both groups were placed by earlier builds, in different splits."""


def join_groups(
    pairs: Sequence[Pair], groups: Mapping[str, str], sides: Mapping[str, Split]
) -> JoinedPairs:
    """Decide for each pair, the most certain first, whether it joins the groups of its images.

    `groups` names the group of each SHA-256 before any copy joined, `sides` the split of those
    groups that earlier builds placed. A pair is crossing when its two groups, with all that
    joined them before, stand in different splits. The order of `pairs` decides; no other input
    does.
    """
    parent: dict[str, str] = {}

    def root(group: str) -> str:
        while (above := parent.get(group, group)) != group:
            parent[group] = group = parent.get(above, above)
        return group

    side = dict(sides)
    joined: list[Pair] = []
    crossing: list[Pair] = []
    for first, second in pairs:
        a, b = root(groups[first]), root(groups[second])
        if a in side and b in side and side[a] != side[b]:
            crossing.append((first, second))
            continue
        joined.append((first, second))
        if a != b:
            parent[b] = a
            if b in side:
                side[a] = side[b]
    return JoinedPairs(tuple(joined), tuple(crossing))


@dataclass(frozen=True, slots=True)
class CrossingFamilies:
    """Families of copies that frozen splits divide."""

    families: int
    images: Mapping[str, int]
    """Images of these families, by split."""
    would_leave: Mapping[str, int]
    """Images, by split, that joining drops: those outside their family's split nearest to train."""


def count_crossing(
    crossing: Iterable[Pair], groups: Mapping[str, str], splits: Mapping[str, Split]
) -> CrossingFamilies | None:
    """Count families of copies that stand in several splits; None where there is none.

    `groups` names each image's group after joining, `splits` holds the split of each kept image.
    """
    links = [(groups[first], groups[second]) for first, second in crossing]
    number = {
        group: at for at, group in enumerate(sorted({group for link in links for group in link}))
    }
    links_L2 = np.array([[number[a], number[b]] for a, b in links], np.int64).reshape(-1, 2)
    family_of = dict(zip(number, connected(len(number), links_L2), strict=True)) if links else {}
    members: dict[int, list[Split]] = defaultdict(list)
    for image, split in splits.items():
        if groups[image] in family_of:
            members[family_of[groups[image]]].append(split)
    images: Counter[str] = Counter()
    leaving: Counter[str] = Counter()
    families = 0
    for placed in members.values():
        if len(set(placed)) < 2:
            continue
        families += 1
        nearest = min(placed, key=SPLITS.index)
        images.update(placed)
        leaving.update(split for split in placed if split != nearest)
    if not families:
        return None
    return CrossingFamilies(families, _by_split(images), _by_split(leaving))


def _by_split(counts: Mapping[str, int]) -> dict[str, int]:
    return {split: counts[split] for split in SPLITS if counts.get(split)}


@dataclass(frozen=True, slots=True)
class SwallowedClass:
    """A group of copies that holds most images of a class, and how it came about."""

    label: str
    group: str
    images: int
    of: int


def swallowed_classes(
    labels: Mapping[str, str], before: Mapping[str, str], after: Mapping[str, str]
) -> list[SwallowedClass]:
    """Return the classes of which joined copies put more than half into one group.

    `labels` holds the class of each kept image, `before` and `after` the group of each image
    without and with joined copies. One true family of that size is rare, a chain of links is not.
    """
    of_class = Counter(labels.values())
    sizes_before = Counter((label, before[image]) for image, label in labels.items())
    sizes = Counter((label, after[image]) for image, label in labels.items())
    parts: dict[str, set[str]] = defaultdict(set)
    for image in labels:
        parts[after[image]].add(before[image])
    largest_before: dict[str, int] = defaultdict(int)
    for (label, _), count in sizes_before.items():
        largest_before[label] = max(largest_before[label], count)
    return [
        SwallowedClass(label, group, count, of_class[label])
        for (label, group), count in sorted(sizes.items())
        if len(parts[group]) > 2 and 2 * count > of_class[label] >= 2 * largest_before[label]
    ]
