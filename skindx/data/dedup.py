"""Duplicates: the same bytes, or near the same picture; one stays, a contradiction goes entirely.

Clusters as in CE-Dedup (Li, Chang, Liu 2021, arXiv 2109.00899), with a guard against chaining:
every picture removed is itself within the radius of the picture kept in its place.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.config import Settings
from skindx.data.hashes import HashKind
from skindx.data.ledger import LedgerRow
from skindx.data.manifest import Issue
from skindx.data.near import EmbeddingSettings
from skindx.data.screen import Screened

# L = links


class DedupSettings(Settings):
    """Which hashes must agree, and within how many of 64 bits.

    Why 4, with perceptual and difference hash together, on 2,200 distinct dermoscopic pictures:
    it finds 99.9 % of JPEG quality 60, 100 % of 80 % resizes, 99.3 % of 10 % brightening, 100 %
    of mirrored and of turned pictures, 99.2 % of all of these at once. Of the pairs that it finds
    among the originals all four are true (looked at by eye); at 5 bits 1 of 7 is false, at 6 bits
    10 of 16, at 8 bits 37 of 43: lesions in the middle of smooth skin look alike to 64 bits.
    One hash alone is worse: at 4 bits perceptual finds 19 pairs, difference 1,066.
    """

    hashes: tuple[HashKind, ...] = Field(default=("perceptual", "difference"), min_length=1)
    radius: int = Field(default=4, ge=0, le=32)
    embeddings: EmbeddingSettings | None = None
    """A second stage for what hashes miss; None: hashes alone."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One ledger row that became a sound, labelled picture. `label` is a taxonomy key."""

    row: LedgerRow
    label: str
    screened: Screened


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What is left, what went and why, and how many contradictions were found."""

    kept: tuple[Picture, ...]
    issues: tuple[Issue, ...]
    exact_conflicts: int
    """Distinct byte strings that stand under more than one label."""
    near_conflicts: int
    """Pairs of near duplicates whose labels differ."""


Distinct = list[list[Picture]]
"""Pictures by their bytes, in the order of their SHA-256; the same bytes share a list."""


def distinct(pictures: Sequence[Picture]) -> Distinct:
    """Collect pictures of the same bytes; within one list the smallest URL comes first."""
    by_sha: dict[str, list[Picture]] = defaultdict(list)
    for picture in sorted(pictures, key=lambda p: (p.row.sha256, p.row.source, p.row.url)):
        by_sha[picture.row.sha256].append(picture)
    return list(by_sha.values())


def deduplicate(pictures: Distinct, links_L3: NDArray[np.int64], radius: int) -> Cleaned:
    """Keep the best of each cluster; drop clusters whose labels contradict each other.

    `links_L3` holds rows (i, j, distance) over positions in `pictures`, as `near_links` gives
    them; longer links than `radius` are ignored. Best: most pixels, then most bytes, then the
    smallest SHA-256. A cluster is dropped when any of its pictures has a duplicate, exact or
    near, under another label, also one that another cluster took.
    """
    near = links_L3[links_L3[:, 2] <= radius, :2].tolist()
    centre = _clusters(pictures, near)
    labels = [{picture.label for picture in same} for same in pictures]
    contested: dict[int, set[str]] = defaultdict(set)
    for i, j in [*near, *((i, i) for i in range(len(pictures)))]:
        both = labels[i] | labels[j]
        if len(both) > 1:
            contested[centre[i]] |= both
            contested[centre[j]] |= both
    kept: list[Picture] = []
    issues: list[Issue] = []
    for i, same in enumerate(pictures):
        if centre[i] in contested:
            names = " and ".join(sorted(contested[centre[i]]))
            detail = f"the same picture is labelled {names}"
            issues += [_issue(each, "conflicting-duplicate", detail) for each in same]
            continue
        best = pictures[centre[i]][0].row
        if centre[i] == i:
            kept.append(same[0])
        else:
            detail = f"shows the same as {best.url}"
            issues.append(_issue(same[0], "near-duplicate", detail, best.sha256))
        detail = f"has the same bytes as {same[0].row.url}"
        issues += [_issue(each, "exact-duplicate", detail, best.sha256) for each in same[1:]]
    return Cleaned(
        tuple(kept),
        tuple(issues),
        exact_conflicts=sum(len(each) > 1 for each in labels),
        near_conflicts=sum(labels[i] != labels[j] for i, j in near),
    )


def _clusters(pictures: Distinct, near: Sequence[Sequence[int]]) -> list[int]:
    """Return for each picture the one that stands for it.

    Best first, each picture still free takes its free neighbours: no two centres are neighbours,
    and every other picture is a neighbour of its centre, so nothing chains.
    """
    neighbours: dict[int, list[int]] = defaultdict(list)
    for i, j in near:
        neighbours[i].append(j)
        neighbours[j].append(i)
    centre = [-1] * len(pictures)
    for i in sorted(range(len(pictures)), key=lambda i: _rank(pictures[i][0])):
        if centre[i] < 0:
            centre[i] = i
            for j in neighbours[i]:
                if centre[j] < 0:
                    centre[j] = i
    return centre


def _rank(picture: Picture) -> tuple[int, int, str]:
    pixels = picture.screened.width * picture.screened.height
    return -pixels, -picture.row.size_bytes, picture.row.sha256


def _issue(picture: Picture, reason: str, detail: str, kept_sha256: str = "") -> Issue:
    row = picture.row
    return Issue(row.url, row.sha256, picture.label, reason, detail, kept_sha256)
