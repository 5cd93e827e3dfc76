"""Splits frozen by hash: an image that an earlier build placed stays where it is.

The memory is splits.csv in the dataset folder: every image and group that was ever placed, also
what has left the dataset since. A line is never changed: the first placement counts. New groups get
their split and fold around those.

When a new image, table or radius ties together what earlier builds placed apart, the group goes
to the side nearest to training and its images of other sides are dropped: what a model may have
been trained on, or chosen by, is never what it is tested on, neither an old model nor a new one.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from skindx.core.atomic_files import write_csv
from skindx.core.errors import UserError
from skindx.core.text import counted
from skindx.data.blocklist import is_sha256
from skindx.data.copies.deduplicate import Distinct, LabelledImage
from skindx.data.layout import MANIFEST, recover
from skindx.data.manifest import SPLITS, Issue, Split, read_manifest
from skindx.data.splits.groups import GroupKeys
from skindx.data.splits.split import SplitSettings, fold_groups, split_groups
from skindx.data.tables.cells import no_formula, without_mark
from skindx.data.tables.reader import named_rows

SPLITS_TABLE = "splits.csv"
SPLIT_CONFLICT = "split-conflict"
_COLUMNS = ("sha256", "group", "split", "fold")


@dataclass(frozen=True, slots=True)
class Placement:
    """Place of an image or group; `fold` is None outside train and val, and without folds."""

    split: Split
    fold: int | None = None


Placements = Mapping[str, Placement]
"""Placements by SHA-256, or by the name of a group (patient, lesion, page …)."""


def read_places(path: Path) -> dict[str, Placement]:
    """Read what is placed in a dataset folder, a published one, or a splits.csv of either.

    The table has the columns sha256, group, split and, if it has folds, fold; a line may leave
    out the image or the group. Raises UserError.
    """
    if path.is_dir():
        recover(path)
        if not (path / SPLITS_TABLE).exists():
            return _of_manifest(path)
        path = path / SPLITS_TABLE
    elif not path.exists():
        raise UserError(f"{path} does not exist; set `split.frozen` to a dataset or a splits.csv.")
    rows: list[tuple[str, str, Placement]] = []
    for where, row in named_rows(path, ("sha256", "split")):
        place = _place(row, f"{path}, {where}")
        group = without_mark(row.get("group", "").strip())
        rows.append((row.get("sha256", "").strip().lower(), group, place))
    return _collect(rows, path)


def _of_manifest(folder: Path) -> dict[str, Placement]:
    records = read_manifest(folder)
    rows = [
        (record.sha256, record.group, Placement(record.split, record.fold)) for record in records
    ]
    return _collect(rows, folder / MANIFEST)


def _collect(rows: Iterable[tuple[str, str, Placement]], path: Path) -> dict[str, Placement]:
    images: dict[str, Placement] = {}
    groups: dict[str, Placement] = {}
    for sha256, group, place in rows:
        if group:
            groups[group] = nearest((groups.get(group, place), place))
        if sha256 and images.setdefault(sha256, place).split != place.split:
            raise UserError(
                f"{path} puts the image {sha256} into both {images[sha256].split} and "
                f"{place.split}; delete one of the two rows."
            )
    # A group may be named by an image that has left it: what the image's own line says counts.
    return groups | images


def _place(row: Mapping[str, str], where: str) -> Placement:
    split, fold = row.get("split", "").strip(), row.get("fold", "").strip()
    if split not in SPLITS:
        raise UserError(
            f"{where}: the split {split!r} is unknown; write one of {', '.join(SPLITS)}."
        )
    if fold and not fold.isdecimal():
        raise UserError(f"{where}: the fold {fold!r} is not a whole number; correct that cell.")
    return Placement(split, int(fold) if fold else None)


def nearest(places: Iterable[Placement]) -> Placement:
    """Return the place nearest to training; of several folds the first."""
    return min(places, key=lambda place: (SPLITS.index(place.split), _fold(place)))


def _fold(place: Placement) -> float:
    return float("inf") if place.fold is None else place.fold


def hold_groups(names: Mapping[str, Collection[str]], places: Placements) -> dict[str, Placement]:
    """Return the place of each group that an earlier build placed, by any of its names.

    `names` holds of each group its own name, the keys that tie it, and the SHA-256 of every
    image in it, also of those that cleaning dropped.
    """
    held: dict[str, Placement] = {}
    for group, known_as in names.items():
        if known := [places[name] for name in known_as if name in places]:
            held[group] = nearest(known)
    return held


def fitting_folds(places: Placements, folds: int) -> dict[str, Placement]:
    """Return `places`, without their folds when the earlier build had another number of them.

    Then, and while there are fewer groups than folds, all folds are assigned again.
    """
    used = {place.fold for place in places.values() if place.fold is not None}
    if not folds or (len(used) == folds and max(used) < folds):
        return dict(places)
    return {name: Placement(place.split) for name, place in places.items()}


def write_places(
    folder: Path,
    names: Mapping[str, Collection[str]],
    shas: Collection[str],
    placed: Placements,
    before: Placements,
) -> None:
    """Write `folder`/splits.csv: what `before` knew, and what has been `placed` (by group) now.

    Images (`shas`) come first, each with its group; then the other names of groups.
    """
    group_of = {name: group for group, known_as in names.items() for name in known_as}
    now = {name: placed[group] for name, group in group_of.items() if group in placed}
    rows: list[tuple[str, str, Placement]] = []
    for name in sorted({*now, *before}):
        place = _kept(before.get(name), now.get(name))
        if name in shas or is_sha256(name):
            # An image dropped because its group went elsewhere does not count for the group.
            counts = name in now and now[name].split == place.split
            rows.append((name, group_of[name] if counts else "", place))
        else:
            rows.append(("", name, place))
    rows.sort(key=lambda row: (not row[0], row[0], row[1]))
    # An absent fold is written as nothing.
    lines = ((sha256, no_formula(group), place.split, place.fold) for sha256, group, place in rows)
    write_csv(folder / SPLITS_TABLE, _COLUMNS, lines)


def _kept(before: Placement | None, now: Placement | None) -> Placement:
    """Return the first placement; its fold alone may change (see `fitting_folds`, and merges)."""
    if before and now and before.split == now.split and now.fold is not None:
        return now
    kept = before or now
    assert kept is not None
    return kept


def group_aliases(
    images: Distinct, groups: Mapping[str, str], keys: GroupKeys
) -> dict[str, set[str]]:
    """Return all names of each group: its own, its keys, the SHA-256 of every image in it."""
    names: dict[str, set[str]] = defaultdict(set)
    for same in images:
        sha256 = same[0].row.sha256
        group = groups[sha256]
        names[group] |= {
            group,
            sha256,
            *(key for image in same for key in keys.group_keys(image.row)),
        }
    return dict(names)


def hold_splits(
    places: Placements, kept: Sequence[LabelledImage], names: Mapping[str, Collection[str]]
) -> tuple[list[LabelledImage], dict[str, Placement], list[Issue]]:
    """Return the images that may stay, the place of each group that is in `places`, and issues.

    `names` holds all names of each group, `places` where earlier builds put images and groups. An
    image becomes an issue when it was placed on another side than its group now stands on.
    """
    held = hold_groups(names, places)
    sides = {name: held[group].split for group in held for name in names[group]}
    staying, issues = [], []
    for image in kept:
        row = image.row
        before = places.get(row.sha256)
        if before and before.split != sides[row.sha256]:
            side = sides[row.sha256]
            then = before.split
            detail = f"it was in {then}, and what it is now seen to belong with is in {side}"
            issues.append(Issue(row.url, row.sha256, image.label, SPLIT_CONFLICT, detail))
        else:
            staying.append(image)
    return staying, held, issues


def place_groups(
    settings: SplitSettings,
    seed: int,
    kept: Sequence[LabelledImage],
    groups: Mapping[str, str],
    held: Placements,
) -> dict[str, Placement]:
    """Return the split and fold of each group: where it is held, or around those."""
    members = _members(kept, groups)
    splits = split_groups(members, settings, seed, {g: p.split for g, p in held.items()})
    folds: dict[str, int] = {}
    if settings.folds:
        learning = [member for member in members if splits[member[0]] in ("train", "val")]
        known = {group: place.fold for group, place in held.items() if place.fold is not None}
        folds = fold_groups(learning, settings.folds, seed, known)
    return {group: Placement(split, folds.get(group)) for group, split in splits.items()}


_WITHOUT: Mapping[Split, str] = {
    "train": "no network learns it",
    "val": "nothing is chosen or calibrated for it",
    "calibration": "conformal sets are not fitted to it",
    "test": "its sensitivity and AUROC cannot be computed",
}


def lacking_notes(
    kept: Sequence[LabelledImage],
    groups: Mapping[str, str],
    placed: Placements,
    settings: SplitSettings,
) -> list[str]:
    """Say which class has no image in which split, what cannot be computed, and what helps."""
    where: dict[str, dict[str, Split]] = defaultdict(dict)
    sizes = Counter(image.label for image in kept)
    for group, label in _members(kept, groups):
        where[label][group] = placed[group].split
    notes = []
    for label, splits in sorted(where.items()):
        present = Counter(splits.values())
        lacking = [one for one in SPLITS if settings.share[one] and not present[one]]
        if lacking:
            named = " and ".join(lacking)
            what = ", ".join(_WITHOUT[one] for one in lacking)
            note = f"{label} has no image in {named}: {what}. "
            among = f"{counted(sizes[label], 'image')} in {counted(len(splits), 'group')}"
            free = sum(present[split] for split in ("train", "val"))
            if len(splits) >= sum(map(bool, settings.share.values())):
                note += f"It has {among}, and they stand where earlier splits or other classes "
                note += "hold them; `--resplit` places all again."
            elif free > 1:
                note += f"It has only {among}: add images of other patients, or train with "
                note += f"`folds: {min(5, free)}` and members of `fold: each`, which answer for "
                note += "each image of train and val out of fold."
            else:
                note += f"It has only {among}, and folds cannot divide them: add images of other "
                note += "patients."
            notes.append(note)
    return notes


def _members(kept: Sequence[LabelledImage], groups: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return (group, label) of each image."""
    return [(groups[image.row.sha256], image.label) for image in kept]
