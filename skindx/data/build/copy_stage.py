"""The stage between compare and group: copies that hashes miss join groups, or are dropped."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from skindx.core.text import counted
from skindx.data.build.build_run import BuildRun
from skindx.data.copies.deduplicate import Cleaned, Distinct, LabelledImage, deduplicate
from skindx.data.copies.find import find_copies, same_pictures
from skindx.data.copies.hash_links import with_pairs
from skindx.data.copies.verified import (
    CopyFamily,
    CopyRecord,
    Pair,
    answered_same,
    families,
    read_answers,
    records_of,
    verdict,
)
from skindx.data.manifest import Split
from skindx.data.splits.freeze import Placement, Placements, group_aliases, hold_groups
from skindx.data.splits.groups import (
    CrossingFamilies,
    count_crossing,
    group_names,
    join_groups,
    swallowed_classes,
)
from skindx.data.summary import CopyCounts

# L = links, P = pairs


@dataclass(frozen=True, slots=True)
class GroupedImages:
    """Records after cleaning and grouping."""

    cleaned: Cleaned
    groups: Mapping[str, str]
    """The group of each SHA-256."""
    apart: Mapping[str, str]
    """The same groups without the copies that hashes miss."""
    copies: tuple[CopyRecord, ...] = ()
    """Every pair that may be copies, with its evidence."""
    joined: tuple[Pair, ...] = ()
    crossing: tuple[Pair, ...] = ()
    """Pairs of copies whose groups earlier builds placed in different splits."""
    answers: Mapping[Pair, bool] = field(default_factory=dict)
    """Whether people called a pair the same."""
    dropped: int = 0


def group_images(
    run: BuildRun, images: Distinct, cleaned: Cleaned, links_L3: NDArray[np.int64]
) -> GroupedImages:
    """Group images by near links and shared keys, and by copies among those that are kept.

    With `dedup.copies: drop` copies count as near duplicates, so that the best of them stays.
    """
    settings = run.settings
    names = partial(group_names, images, keys=run.keys, radius=settings.groups.radius)
    position = {of_image[0].row.sha256: number for number, of_image in enumerate(images)}
    if settings.dedup.copies == "off":
        apart = names(links_L3=_confirmed(run, images, links_L3, {}))
        return GroupedImages(cleaned, apart, apart)
    answers = answered_same(read_answers(run.out))
    records = _records(run, images, cleaned, links_L3)
    near_L3 = _confirmed(run, images, links_L3, answers)
    # Also what was dropped ties images together: a duplicate may bear the lesion's id.
    apart = names(links_L3=near_L3)
    same = _same(records, answers, {image.row.sha256 for image in cleaned.kept})
    dropped = 0
    if settings.dedup.copies == "drop":
        kept = len(cleaned.kept)
        links = with_pairs(links_L3, _positions(same, position))
        cleaned = deduplicate(images, links, settings.dedup.radius)
        dropped = kept - len(cleaned.kept)
    sides = {} if run.join_copies else _sides(run, images, apart)
    joining = join_groups(same, apart, sides)
    groups = names(links_L3=with_pairs(near_L3, _positions(joining.joined, position)))
    run.notes += _chain_notes(families(records, answers))
    return GroupedImages(
        cleaned, groups, apart, tuple(records), joining.joined, joining.crossing, answers, dropped
    )


def _records(
    run: BuildRun, images: Distinct, cleaned: Cleaned, links_L3: NDArray[np.int64]
) -> list[CopyRecord]:
    """Return every pair of kept images that may be copies."""
    position = {same[0].row.sha256: number for number, same in enumerate(images)}
    place_N = np.full(len(images), -1, np.int64)
    place_N[[position[image.row.sha256] for image in cleaned.kept]] = np.arange(len(cleaned.kept))
    near_L2 = place_N[links_L3[:, :2]]
    near_L2 = near_L2[(near_L2 >= 0).all(axis=1)]
    paths = [image.row.path for image in cleaned.kept]
    candidates = find_copies(
        run.out, paths, runner=run.runner, hash_candidates=near_L2, progress=run.report
    )
    return records_of(candidates, paths)


def _confirmed(
    run: BuildRun, images: Distinct, links_L3: NDArray[np.int64], answers: Mapping[Pair, bool]
) -> NDArray[np.int64]:
    """Return the links that may group: equal hashes, and near ones that the pixels confirm.

    Links chain, and hashes that are merely near chain different lesions by the hundred. What was
    dropped as a duplicate links too, so its links are confirmed as well.
    """
    doubtful_L = links_L3[:, 2] > 0
    names = [same[0].row.sha256 for same in images]
    pairs_P2 = links_L3[doubtful_L, :2]
    paths = [same[0].row.path for same in images]
    same_P = same_pictures(run.out, paths, pairs_P2, runner=run.runner, progress=run.report)
    given_P = [
        answers.get((min(names[i], names[j]), max(names[i], names[j])))
        for i, j in pairs_P2.tolist()
    ]
    denied_P = np.array([answer is False for answer in given_P], bool)
    keep_L = ~doubtful_L
    keep_L[doubtful_L] = same_P & ~denied_P
    if not keep_L.all():
        run.notes.append(
            f"{counted(int((~keep_L).sum()), 'pair')} of images have near hashes, and the pixels "
            f"do not show one picture; their hashes do not group them."
        )
    return links_L3[keep_L]


LARGE, SPARSE = 20, 0.9
"""Images of a family, and the share of its pairs without a link, from which on it is named."""


def _chain_notes(chains: Iterable[CopyFamily]) -> list[str]:
    """Name each large family that few of all possible links hold together."""
    notes = []
    for chain in chains:
        size = len(chain.sha256s)
        pairs = size * (size - 1) // 2
        if size >= LARGE and chain.weakest and chain.chained > SPARSE * pairs:
            weakest = chain.weakest
            notes.append(
                f"{size} images are one group by a chain of {pairs - chain.chained} of {pairs} "
                f"possible links, which is rarely one lesion; the weakest link is "
                f"{weakest.sha256_a[:12]} and {weakest.sha256_b[:12]} "
                f"({weakest.probability:.2f}): look at its pairs with `skindx review DATASET "
                f"--reason copy`."
            )
    return notes


def _same(
    records: Sequence[CopyRecord], answers: Mapping[Pair, bool], kept: set[str]
) -> list[Pair]:
    """Return the pairs that are copies: what people say first, then the most probable."""
    people = sorted(pair for pair, same in answers.items() if same and kept.issuperset(pair))
    verified = [row for row in records if row.pair not in answers and verdict(row, {}) == "same"]
    verified.sort(key=lambda row: (-row.probability, row.pair))
    return [*people, *(row.pair for row in verified)]


def _positions(pairs: Sequence[Pair], position: Mapping[str, int]) -> NDArray[np.int64]:
    rows = [sorted((position[one], position[other])) for one, other in pairs]
    return np.array(rows, np.int64).reshape(-1, 2)


def _sides(run: BuildRun, images: Distinct, apart: Mapping[str, str]) -> dict[str, Split]:
    held = hold_groups(group_aliases(images, apart, run.keys), run.places)
    return {name: place.split for name, place in held.items()}


def hold_swallowed(
    run: BuildRun, kept: Sequence[LabelledImage], grouped: GroupedImages, held: Placements
) -> dict[str, Placement]:
    """Return `held`, with train for each group of copies that holds most of a class.

    Such a group is rarely one family and mostly a chain of links. To cut it could bring a copy
    into another split, so it stays whole where no figure is measured, and a person is asked.
    """
    labels = {image.row.sha256: image.label for image in kept}
    classes = swallowed_classes(labels, grouped.apart, grouped.groups)
    held = dict(held)
    chains = families(grouped.copies, dict(grouped.answers)) if classes else []
    for swallowed in classes:
        placed = held.setdefault(swallowed.group, Placement("train"))
        weak = [
            chain.weakest
            for chain in chains
            if chain.weakest and grouped.groups.get(chain.sha256s[0]) == swallowed.group
        ]
        weakest = min(weak, key=lambda row: row.probability, default=None)
        where = (
            ""
            if weakest is None
            else (
                f"; the weakest link is {weakest.sha256_a[:12]} and {weakest.sha256_b[:12]} "
                f"({weakest.probability:.2f})"
            )
        )
        run.notes.append(
            f"{swallowed.label}: a chain of copies joins {swallowed.images} of its {swallowed.of} "
            f"images into one group, which stays whole in {placed.split}{where}: look at its "
            f"pairs with `skindx review DATASET --reason copy`."
        )
    return held


def count_copies(
    grouped: GroupedImages, kept: Sequence[LabelledImage], splits: Mapping[str, Split]
) -> CopyCounts:
    """Return what the summary says; `kept` and `splits` (by SHA-256) are of the final dataset."""
    shas = {image.row.sha256 for image in kept}
    label = {image.row.sha256: image.label for image in kept}
    members: dict[str, list[str]] = defaultdict(list)
    joined = {name for pair in grouped.joined for name in pair}
    for sha256 in sorted(shas):
        members[grouped.groups[sha256]].append(sha256)
    families = [
        names
        for names in members.values()
        if len({grouped.apart[name] for name in names}) > 1 and joined.intersection(names)
    ]
    verdicts = [verdict(row, dict(grouped.answers)) for row in grouped.copies]
    answers = {pair: same for pair, same in grouped.answers.items() if shas.issuperset(pair)}
    torn: CrossingFamilies | None = count_crossing(grouped.crossing, grouped.groups, splits)
    return CopyCounts(
        pairs=sum(
            answer == "same" and row.pair not in answers
            for row, answer in zip(grouped.copies, verdicts, strict=True)
        ),
        by_people=sum(answers.values()),
        refused=sum(not same for same in answers.values()),
        uncertain=verdicts.count("uncertain"),
        families=len(families),
        images=sum(map(len, families)),
        dropped=grouped.dropped,
        mixed=sum(len({label[name] for name in names}) > 1 for names in families),
        torn=torn.families if torn else 0,
        torn_images=torn.images if torn else {},
        would_leave=torn.would_leave if torn else {},
    )
