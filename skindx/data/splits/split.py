"""Train, val, calibration, test and folds: stratified by class, whole groups only, repeatable."""

import hashlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from skindx.core.settings_base import Settings
from skindx.data.manifest import SPLITS, Split

# Who gets one of a class's groups first when there are fewer groups than splits.
_NEED: tuple[Split, ...] = ("train", "test", "val", "calibration")


class SplitSettings(Settings):
    """The share of each split, adding up to 1; the number of folds; what stays where it was."""

    train: float = Field(default=0.6, gt=0, lt=1)
    val: float = Field(default=0.1, ge=0, lt=1)
    calibration: float = Field(default=0.1, ge=0, lt=1)
    test: float = Field(default=0.2, gt=0, lt=1)
    folds: int = Field(default=5, ge=0, le=100)
    """Folds of the images outside calibration and test; 0: none."""
    frozen: Path | None = None
    """A dataset folder or a splits.csv whose images and groups keep their split.

    What the folder that is built into held before counts always.
    """

    @field_validator("folds")
    @classmethod
    def _more_than_one(cls, folds: int) -> int:
        if folds == 1:
            raise ValueError("one fold is not possible; write 0 for no folds, or 2 or more")
        return folds

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        total = sum(self.share.values())
        if abs(total - 1) > 1e-6:
            raise ValueError(f"the shares must add up to 1, not {total:g}")
        return self

    @property
    def share(self) -> dict[Split, float]:
        """The shares by split, in the order of SPLITS."""
        return {split: getattr(self, split) for split in SPLITS}


def split_groups(
    members: Sequence[tuple[str, str]],
    settings: SplitSettings,
    seed: int,
    held: Mapping[str, Split] | None = None,
) -> dict[str, Split]:
    """Return the split of each group; `members` holds (group, label) of each image.

    Groups in `held` stay in the split that they have there, the others are placed around them.
    First every split with a share gets one group of each class, the rarest class first (train its
    largest, the others its smallest). The rest goes, largest group first, where most is missing.
    Last a class that a split still lacks, since groups of several classes stood in each other's
    way, gets its smallest group there that no class needs where it is. So a class of at least four
    groups is in all four splits, unless every one of them is needed elsewhere. Order and process
    do not matter: ties are broken by a hash of `seed` and the group's name.
    """
    content: dict[str, Counter[str]] = defaultdict(Counter)
    for group, label in members:
        content[group][label] += 1
    # Ascending in size; the hash makes equal ones a shuffled but stable sequence.
    groups = sorted(content, key=lambda g: (content[g].total(), shuffle_key(seed, g)))
    missing = _targets(members, settings)
    assigned: dict[str, Split] = {}

    def assign(group: str, split: Split) -> None:
        assigned[group] = split
        for label, count in content[group].items():
            missing[label, split] -= count

    for group in groups:
        if held and group in held:
            assign(group, held[group])
    by_class: dict[str, list[str]] = defaultdict(list)
    for group in groups:
        for label in content[group]:
            by_class[label].append(group)
    for label in sorted(by_class, key=lambda label: (len(by_class[label]), label)):
        have = {assigned[g] for g in by_class[label] if g in assigned}
        for split in (split for split in _NEED if settings.share[split] and split not in have):
            free = [group for group in by_class[label] if group not in assigned]
            if free:
                assign(free[-1] if split == "train" else free[0], split)
    for group in reversed(groups):
        if group not in assigned:
            assign(group, _neediest(content[group], missing, settings))
    movable = [group for group in groups if not held or group not in held]
    _spread(assigned, content, by_class, movable, [s for s in _NEED if settings.share[s]])
    return assigned


def _spread(
    assigned: dict[str, Split],
    content: Mapping[str, Mapping[str, int]],
    by_class: Mapping[str, Sequence[str]],
    movable: Sequence[str],
    splits: Sequence[Split],
) -> None:
    """Move groups into splits that lack one of their classes; no class leaves a split.

    `movable` and the groups of `by_class` stand in the order of their size. Each move adds a class
    to a split, so that there are few of them, and none where no split lacks a class.
    """
    there = Counter((label, assigned[group]) for group in assigned for label in content[group])
    free = set(movable)

    def movable_to(label: str) -> str | None:
        for group in by_class[label]:
            left = assigned[group]
            if group in free and all(there[other, left] > 1 for other in content[group]):
                return group
        return None

    rare_first = sorted(by_class, key=lambda label: (len(by_class[label]), label))
    moved = True
    while moved:
        moved = False
        for label, split in itertools.product(rare_first, splits):
            group = None if there[label, split] else movable_to(label)
            if group is not None:
                for other in content[group]:
                    there[other, assigned[group]] -= 1
                    there[other, split] += 1
                assigned[group], moved = split, True


def _targets(
    members: Sequence[tuple[str, str]], settings: SplitSettings
) -> dict[tuple[str, Split], float]:
    counts = Counter(label for _, label in members)
    return {
        (label, split): count * share
        for label, count in counts.items()
        for split, share in settings.share.items()
    }


def _neediest(
    labels: Mapping[str, int], missing: Mapping[tuple[str, Split], float], settings: SplitSettings
) -> Split:
    open_splits = [split for split in SPLITS if settings.share[split]]
    return max(
        open_splits,
        key=lambda split: sum(n * missing[label, split] for label, n in sorted(labels.items())),
    )


def shuffle_key(seed: int, group: str) -> str:
    """Return what sorts groups into a random order that is the same in every process."""
    return hashlib.sha256(f"{seed}/{group}".encode()).hexdigest()


def assert_disjoint(placed: Sequence[tuple[str, Split]]) -> None:
    """Assert that no group is in two splits; `placed` holds (group, split) of each image."""
    seen: dict[str, Split] = {}
    for group, split in placed:
        assert seen.setdefault(group, split) == split, f"group {group} is in two splits"


def fold_groups(
    members: Sequence[tuple[str, str]], folds: int, seed: int, held: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return the fold, 0 .. folds - 1, of each group; `members` holds (group, label) an image.

    Groups in `held` stay where they are. The others follow, largest first, each into the fold
    that lacks most of its classes; of equal ones the emptiest. So a class of `folds` groups is in
    every fold, unless groups of several classes stand in each other's way.
    """
    content: dict[str, Counter[str]] = defaultdict(Counter)
    for group, label in members:
        content[group][label] += 1
    # Counted in 1/folds images, so that all numbers are whole and ties are true ties.
    lacks: Counter[tuple[str, int]] = Counter()
    for _, label in members:
        for fold in range(folds):
            lacks[label, fold] += 1
    size: Counter[int] = Counter()
    assigned: dict[str, int] = {}

    def assign(group: str, fold: int) -> None:
        assigned[group] = fold
        size[fold] += content[group].total()
        for label, count in content[group].items():
            lacks[label, fold] -= folds * count

    def lack(group: str, fold: int) -> tuple[int, int]:
        wanted = sum(n * lacks[label, fold] for label, n in content[group].items())
        return wanted, -size[fold]

    for group in content:
        if held and group in held:
            assign(group, held[group])
    for group in sorted(content, key=lambda g: (-content[g].total(), shuffle_key(seed, g))):
        if group not in assigned:
            assign(group, max(range(folds), key=lambda fold: lack(group, fold)))
    return assigned
