"""Splits that a source gives: kept as they are, checked for leaks, and completed out of train."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from skindx.core.text import counted
from skindx.data.copies.deduplicate import Distinct, LabelledImage
from skindx.data.manifest import SPLITS, Split
from skindx.data.splits.freeze import Placement, Placements, nearest
from skindx.data.splits.split import SplitSettings, split_groups


def given_places(images: Distinct, places: Placements) -> dict[str, Placement]:
    """Return the split that sources give each image that no earlier build has placed.

    Of several the one nearest to training counts.
    """
    given = {}
    for same in images:
        splits = _splits_of(same)
        if splits and same[0].row.sha256 not in places:
            given[same[0].row.sha256] = nearest(map(Placement, splits))
    return given


def _splits_of(same: Sequence[LabelledImage]) -> set[Split]:
    return {split for split in SPLITS if any(image.row.split == split for image in same)}


def leak_notes(images: Distinct, groups: Mapping[str, str], given: Placements) -> list[str]:
    """Say which given splits share images or groups; `groups` names each image's."""
    twice = sum(len(_splits_of(same)) > 1 for same in images if same[0].row.sha256 in given)
    by_group: dict[str, set[Split]] = defaultdict(set)
    for sha256, place in given.items():
        by_group[groups[sha256]].add(place.split)
    torn = {group: splits for group, splits in by_group.items() if len(splits) > 1}
    notes = []
    if twice:
        notes.append(
            f"the given splits leak: {counted(twice, 'image')} with the same bytes in several of "
            "them; each stays in the one nearest to train."
        )
    if torn:
        group, splits = min(torn.items())
        named = " and ".join(sorted(splits, key=SPLITS.index))
        notes.append(
            f"the given splits leak: {counted(len(torn), 'group')} in several of them, such as "
            f"{group[:60]} in {named}; its images stay in the one nearest to train, and the others "
            "are left out (split-conflict)."
        )
    return notes


def completed(
    settings: SplitSettings,
    seed: int,
    kept: Sequence[LabelledImage],
    groups: Mapping[str, str],
    *,
    held: Placements,
    given: Placements,
) -> tuple[dict[str, Placement], list[str]]:
    """Return the places of groups, with splits that nobody gives taken out of the given train.

    `held` are the places of groups and `given` those of images that sources give. Nobody gives a
    calibration split, and a training needs one.
    """
    known = {place.split for place in given.values()}
    lacking = [split for split in SPLITS if split not in known and settings.share[split]]
    free = {groups[sha256] for sha256, place in given.items() if place.split == "train"}
    free = {group for group in free if group in held and held[group].split == "train"}
    if "train" not in known or not lacking or not free:
        return dict(held), []
    shares: dict[str, float] = {split: 0.0 for split in SPLITS if split in known}
    part = settings.model_copy(update=shares | {"train": settings.train})
    members = [(groups[image.row.sha256], image.label) for image in kept]
    members = [(group, label) for group, label in members if group in free]
    placed = split_groups(members, part, seed)
    counts = Counter(placed[group] for group, _ in members)
    taken = ", ".join(f"{split} ({counts[split]:,} images)" for split in lacking)
    note = f"the sources give no {' and no '.join(lacking)}: taken out of their train: {taken}."
    return {**held, **{group: Placement(split) for group, split in placed.items()}}, [note]
