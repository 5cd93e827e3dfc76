"""Duplicates: the same bytes, or near the same image; one stays, a contradiction goes entirely.

Clusters as in CE-Dedup (Li, Chang, Liu 2021, arXiv 2109.00899), with a guard against chaining:
every image removed is itself within the radius of the image kept in its place, and the best one
is kept.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.settings_base import OFF, Settings
from skindx.data.copies.hash_links import NearGraph, centres, connected, near_graph
from skindx.data.ledger import LedgerRow
from skindx.data.manifest import Issue
from skindx.data.screening.image_measures import NOISE, worth
from skindx.data.screening.screen import Screened
from skindx.imaging.hashes import HashKind

PAPER = (
    "CE-Dedup | Li, Chang and Liu, CE-Dedup: Cost-Effective Convolutional Neural Nets "
    "Training based on Image Deduplication, arXiv 2109.00899, 2021 | "
    "tests/data/test_dedup.py | docs/measured/dedup.json"
)

# N = images, D = dimensions, P = pairs, L = links


@dataclass(frozen=True, slots=True)
class LabelledImage:
    """One ledger row that became a sound, labelled image. `label` is a taxonomy key."""

    row: LedgerRow
    label: str
    screened: Screened


def best_first(images: Sequence[LabelledImage], near: NearGraph) -> list[int]:
    """Return positions in `images` so that of any that are linked the best comes first.

    Best: most detail, most pixels, most bytes, the smallest SHA-256. In each connected component
    the images are cut into levels of detail: from the most detailed image on, all that lie within
    NOISE of it are of its level, and the next image opens another.
    """
    details = [_detail(image) for image in images]
    components = connected(len(images), near.links_L2)
    component_N = [components[node] for node in near.node_N.tolist()]
    level, top = 0, 0.0
    last = -1
    levels = [0] * len(images)
    for i in np.lexsort((-np.array(details), component_N)).tolist():
        if component_N[i] != last:
            last, level, top = component_N[i], 0, details[i]
        elif details[i] < (1 - NOISE) * top:
            level, top = level + 1, details[i]
        levels[i] = level

    def rank(i: int) -> tuple[int, int, int, str]:
        row, screened = images[i].row, images[i].screened
        return levels[i], -screened.width * screened.height, -row.size_bytes, row.sha256

    return sorted(range(len(images)), key=rank)


def _detail(image: LabelledImage) -> float:
    pixels = image.screened.width * image.screened.height
    effective = image.screened.effective_pixels or pixels
    return worth(effective, pixels) if pixels else 0.0


class DedupSettings(Settings):
    """Which hashes must agree, and within how many of 64 bits.

    The default radius of 4, with the perceptual and the difference hash together, finds nearly all
    re-encodings, resizes, mirrored and turned copies. A larger radius joins different lesions: in
    the middle of smooth skin they look alike to 64 bits. One hash alone joins many more.
    """

    removed_from: ClassVar[str] = "recipe dedup."

    hashes: tuple[HashKind, ...] = Field(default=("perceptual", "difference"), min_length=1)
    radius: int = Field(default=4, ge=0, le=32)
    copies: Annotated[Literal["group", "drop", "off"], OFF] = "group"
    """What becomes of copies that are more than another encoding (crops, turns, watermarks, a
    second photo): one group, so that no split divides them; dropped but for the best; not looked
    for. `skindx.data.copies` says how they are found."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Kept images, dropped ones with their reasons, and the number of contradictions."""

    kept: tuple[LabelledImage, ...]
    issues: tuple[Issue, ...]
    exact_conflicts: int
    """Distinct byte strings that stand under more than one label."""
    near_conflicts: int
    """Pairs of near duplicates whose labels differ."""


Distinct = list[list[LabelledImage]]
"""Images by their bytes, in the order of their SHA-256; the same bytes share a list."""


def distinct(images: Sequence[LabelledImage]) -> Distinct:
    """Collect images of the same bytes; within one list the smallest URL comes first."""
    by_sha: dict[str, list[LabelledImage]] = defaultdict(list)
    for image in sorted(images, key=lambda p: (p.row.sha256, p.row.source, p.row.url)):
        by_sha[image.row.sha256].append(image)
    return list(by_sha.values())


def deduplicate(images: Distinct, links_L3: NDArray[np.int64], radius: int) -> Cleaned:
    """Keep the best of each cluster; drop clusters whose labels contradict each other.

    `links_L3` holds rows (i, j, distance) over positions in `images`, as `near_links` gives
    them; longer links than `radius` are ignored. Best: most detail (`worth`, within its noise), so
    that an original wins over its enlargement, then most pixels, most bytes, and the smallest
    SHA-256. A cluster is
    dropped when any of its images has a duplicate, exact or near, under another label, also one
    that another cluster took.
    """
    near = near_graph(len(images), links_L3, radius)
    order = best_first([same[0] for same in images], near)
    centre = centres(near, np.array(order, np.int64)).tolist()
    labels = [frozenset(image.label for image in same) for same in images]
    contested, near_conflicts = _contradictions(near, labels, centre)
    kept: list[LabelledImage] = []
    issues: list[Issue] = []
    for i, same in enumerate(images):
        if centre[i] in contested:
            names = " and ".join(sorted(contested[centre[i]]))
            detail = f"the same image is labelled {names}"
            issues += [_issue(image, "conflicting-duplicate", detail) for image in same]
            continue
        best = images[centre[i]][0].row
        if centre[i] == i:
            kept.append(same[0])
        else:
            detail = f"shows the same as {best.url}"
            issues.append(_issue(same[0], "near-duplicate", detail, best.sha256))
        detail = f"has the same bytes as {same[0].row.url}"
        issues += [_issue(image, "exact-duplicate", detail, best.sha256) for image in same[1:]]
    return Cleaned(
        tuple(kept),
        tuple(issues),
        exact_conflicts=sum(len(names) > 1 for names in labels),
        near_conflicts=near_conflicts,
    )


def _contradictions(
    near: NearGraph, labels: Sequence[frozenset[str]], centre: Sequence[int]
) -> tuple[dict[int, set[str]], int]:
    """Return (centre -> labels that contradict each other there, number of contradicting pairs).

    Computed by nodes: if the images of one code, or of two linked codes, have more than one label
    between them, each of these labels is in some pair of images whose labels contradict.
    """
    node_N, centre_N = near.node_N, np.array(centre, np.int64)
    members: dict[int, Counter[frozenset[str]]] = defaultdict(Counter)
    for node, names in zip(node_N.tolist(), labels, strict=True):
        members[node][names] += 1
    united = {node: frozenset[str]().union(*counts) for node, counts in members.items()}
    number = {names: position for position, names in enumerate(dict.fromkeys(united.values()))}
    number_N, size_N, mixed_N = np.zeros((3, len(labels)), np.int64)
    for node, counts in members.items():
        number_N[node] = number[united[node]]
        size_N[node] = counts.total()
        mixed_N[node] = len(counts) > 1
    mixed = [counts for counts in members.values() if len(counts) > 1]
    pairs: int = sum(_pairs(counts, counts) // 2 for counts in mixed)
    first_L, second_L = near.links_L2.T
    differ_L = number_N[first_L] != number_N[second_L]
    mixed_L = (mixed_N[first_L] | mixed_N[second_L]).astype(bool)
    plain_L = differ_L & ~mixed_L
    pairs += int((size_N[first_L] * size_N[second_L])[plain_L].sum())
    for first, second in near.links_L2[mixed_L].tolist():
        pairs += _pairs(members[first], members[second])
    # (centre, labels) of both ends of each link that contradicts, and of each node in itself.
    several_N = np.array([len(names) > 1 for names in number], bool)[number_N]
    conflicting_L = differ_L | several_N[first_L]
    ends_2L, opposite_2L = (
        near.links_L2[conflicting_L].T.ravel(),
        near.links_L2[conflicting_L, ::-1].T.ravel(),
    )
    alone = np.array([node for node in members if len(united[node]) > 1], np.int64)
    where = centre_N[np.concatenate([ends_2L, ends_2L, alone])]
    which = number_N[np.concatenate([ends_2L, opposite_2L, alone])]
    names_of = list(number)
    contested: dict[int, set[str]] = defaultdict(set)
    for place, label in np.unique(np.stack([where, which], axis=1), axis=0).tolist():
        contested[place] |= names_of[label]
    return contested, pairs


def _pairs(first: Counter[frozenset[str]], second: Counter[frozenset[str]]) -> int:
    """Return how many pairs of one of `first` and one of `second` have different labels."""
    return first.total() * second.total() - sum(n * second[names] for names, n in first.items())


def _issue(image: LabelledImage, reason: str, detail: str, kept_sha256: str = "") -> Issue:
    row = image.row
    return Issue(row.url, row.sha256, image.label, reason, detail, kept_sha256)
