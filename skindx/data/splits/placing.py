"""Groups get a split and a fold, around those that earlier builds have placed."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from skindx.data.dedup.rank import LabelledImage
from skindx.data.dedup.select import Distinct
from skindx.data.manifest import Issue
from skindx.data.splits.folds import fold_groups
from skindx.data.splits.freeze import SPLIT_CONFLICT, Place, Places, hold_groups
from skindx.data.splits.groups import GroupKeys
from skindx.data.splits.split import SplitSettings, split_groups


def group_aliases(
    images: Distinct, groups: Mapping[str, str], keys: GroupKeys
) -> dict[str, set[str]]:
    """Return all names of each group: its own, its keys, the SHA-256 of every image in it."""
    names: dict[str, set[str]] = defaultdict(set)
    for same in images:
        sha256 = same[0].row.sha256
        group = groups[sha256]
        names[group] |= {group, sha256, *(key for image in same for key in keys.of(image.row))}
    return dict(names)


def hold_splits(
    places: Places, kept: Sequence[LabelledImage], names: Mapping[str, Collection[str]]
) -> tuple[list[LabelledImage], dict[str, Place], list[Issue]]:
    """Return the images that may stay, the place of each group that is in `places`, and issues.

    `names` holds all names of each group, `places` where earlier builds put images and groups. An
    image becomes an issue when it was placed on another side than its group now stands on.
    """
    held = hold_groups(names, places)
    sides = {name: held[group].split for group in held for name in names[group]}
    staying, issues = [], []
    for image in kept:
        row = image.row
        own = places.get(row.sha256)
        if own and own.split != sides[row.sha256]:
            side = sides[row.sha256]
            detail = f"it was in {own.split}, and what it is now seen to belong with is in {side}"
            issues.append(Issue(row.url, row.sha256, image.label, SPLIT_CONFLICT, detail))
        else:
            staying.append(image)
    return staying, held, issues


def place_groups(
    settings: SplitSettings,
    seed: int,
    kept: Sequence[LabelledImage],
    groups: Mapping[str, str],
    held: Places,
) -> dict[str, Place]:
    """Return the split and fold of each group: where it is held, or around those."""
    members = _members(kept, groups)
    splits = split_groups(members, settings, seed, {g: p.split for g, p in held.items()})
    folds: dict[str, int] = {}
    if settings.folds:
        learning = [member for member in members if splits[member[0]] in ("train", "val")]
        known = {group: place.fold for group, place in held.items() if place.fold is not None}
        folds = fold_groups(learning, settings.folds, seed, known)
    return {group: Place(split, folds.get(group)) for group, split in splits.items()}


def untrained_notes(
    kept: Sequence[LabelledImage], groups: Mapping[str, str], placed: Places
) -> list[str]:
    """Return a sentence for each class that has no image in train."""
    members = _members(kept, groups)
    trained = {label for group, label in members if placed[group].split == "train"}
    return [
        f"{label} has no image in train, because the splits are frozen: add images, or "
        f"place all again with --resplit."
        for label in sorted({label for _, label in members} - trained)
    ]


def _members(kept: Sequence[LabelledImage], groups: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return (group, label) of each image."""
    return [(groups[image.row.sha256], image.label) for image in kept]
