"""The stages of a build that put pictures into splits and folds, around what is frozen."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from skindx.data.build.stages import (
    Run,
)
from skindx.data.dedup.rank import Picture
from skindx.data.dedup.select import Distinct
from skindx.data.manifest import Issue
from skindx.data.splits.folds import fold_groups
from skindx.data.splits.freeze import SPLIT_CONFLICT, Place, Places, hold_groups
from skindx.data.splits.groups import GroupKeys
from skindx.data.splits.split import split_groups


def group_aliases(
    pictures: Distinct, groups: Mapping[str, str], keys: GroupKeys
) -> dict[str, set[str]]:
    """Return all names of each group: its own, its keys, the SHA-256 of every picture in it."""
    names: dict[str, set[str]] = defaultdict(set)
    for same in pictures:
        sha256 = same[0].row.sha256
        group = groups[sha256]
        names[group] |= {group, sha256, *(key for each in same for key in keys.of(each.row))}
    return dict(names)


def hold_splits(
    run: Run, kept: Sequence[Picture], names: Mapping[str, Collection[str]]
) -> tuple[list[Picture], dict[str, Place]]:
    """Return the pictures that may stay, and the place of each group that earlier builds placed.

    `names` holds all names of each group. A picture goes when it was placed on another side than
    its group now stands on.
    """
    held = hold_groups(names, run.places)
    sides = {name: held[group].split for group in held for name in names[group]}
    staying = []
    for picture in kept:
        sha256 = picture.row.sha256
        own = run.places.get(sha256)
        if own and own.split != sides[sha256]:
            detail = (
                f"it was in {own.split}, and what it is now seen to belong with is in "
                f"{sides[sha256]}"
            )
            row = picture.row
            run.issues.append(Issue(row.url, sha256, picture.label, SPLIT_CONFLICT, detail))
        else:
            staying.append(picture)
    return staying, held


def place_groups(
    run: Run, kept: Sequence[Picture], groups: Mapping[str, str], held: Places
) -> dict[str, Place]:
    """Return the split and fold of each group: where it is held, or around those."""
    settings, seed = run.settings.split, run.settings.seed
    members = [(groups[picture.row.sha256], picture.label) for picture in kept]
    splits = split_groups(members, settings, seed, {g: p.split for g, p in held.items()})
    folds: dict[str, int] = {}
    if settings.folds:
        learning = [member for member in members if splits[member[0]] in ("train", "val")]
        known = {group: place.fold for group, place in held.items() if place.fold is not None}
        folds = fold_groups(learning, settings.folds, seed, known)
    trained = {label for group, label in members if splits[group] == "train"}
    for label in sorted({label for _, label in members} - trained):
        run.notes.append(
            f"{label} has no picture in train, because the splits are frozen: add pictures, or "
            f"place all anew with --resplit."
        )
    return {group: Place(split, folds.get(group)) for group, split in splits.items()}
