"""Folds for out-of-fold predictions: stratified by class, whole groups only, repeatable."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from skindx.data.splits.split import shuffle_key


def fold_groups(
    members: Sequence[tuple[str, str]],
    folds: int,
    seed: int,
    held: Mapping[str, int] | None = None,
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
