"""Verified copies become one group, unless earlier builds placed them in different splits."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from skindx.data.manifest import SPLITS, Split

Pair = tuple[str, str]
"""The SHA-256 of two images."""


@dataclass(frozen=True, slots=True)
class Joining:
    """Pairs of copies that join their groups, and pairs that would divide a frozen split."""

    joined: tuple[Pair, ...]
    crossing: tuple[Pair, ...]
    """Both groups were placed by earlier builds, in different splits."""


def join_groups(
    pairs: Sequence[Pair], groups: Mapping[str, str], sides: Mapping[str, Split]
) -> Joining:
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
    return Joining(tuple(joined), tuple(crossing))


@dataclass(frozen=True, slots=True)
class Crossing:
    """Families of copies that frozen splits divide."""

    families: int
    images: Mapping[str, int]
    """Images of these families, by split."""
    would_leave: Mapping[str, int]
    """Images, by split, that joining drops: those outside their family's split nearest to train."""


def count_crossing(
    crossing: Iterable[Pair], groups: Mapping[str, str], splits: Mapping[str, Split]
) -> Crossing | None:
    """Count families of copies that stand in several splits; None where there is none.

    `groups` names each image's group after joining, `splits` holds the split of each kept image.
    """
    linked: dict[str, set[str]] = defaultdict(set)
    for first, second in crossing:
        linked[groups[first]].add(groups[second])
        linked[groups[second]].add(groups[first])
    members: dict[str, list[str]] = defaultdict(list)
    for image in splits:
        members[groups[image]].append(image)
    images: Counter[str] = Counter()
    leaving: Counter[str] = Counter()
    families = 0
    for family in _components(linked):
        placed = [splits[image] for group in family for image in members[group]]
        if len(set(placed)) < 2:
            continue
        families += 1
        nearest = min(placed, key=SPLITS.index)
        images.update(placed)
        leaving.update(split for split in placed if split != nearest)
    if not families:
        return None
    return Crossing(families, _by_split(images), _by_split(leaving))


def _by_split(counts: Mapping[str, int]) -> dict[str, int]:
    return {split: counts[split] for split in SPLITS if counts.get(split)}


def _components(linked: Mapping[str, Collection[str]]) -> list[set[str]]:
    seen: set[str] = set()
    found: list[set[str]] = []
    for start in sorted(linked):
        if start in seen:
            continue
        family: set[str] = set()
        edge = {start}
        while edge:
            family |= edge
            edge = {other for group in edge for other in linked[group]} - family
        seen |= family
        found.append(family)
    return found


@dataclass(frozen=True, slots=True)
class Swallowed:
    """A group of copies that holds most images of a class, and how it came about."""

    label: str
    group: str
    images: int
    of: int


def swallowed_classes(
    labels: Mapping[str, str], before: Mapping[str, str], after: Mapping[str, str]
) -> list[Swallowed]:
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
        Swallowed(label, group, count, of_class[label])
        for (label, group), count in sorted(sizes.items())
        if len(parts[group]) > 2 and 2 * count > of_class[label] >= 2 * largest_before[label]
    ]
