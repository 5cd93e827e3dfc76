"""Training and validation images of a member: the splits, or folds."""

from collections.abc import Sequence

from skindx.data.manifest import Record, split_of
from skindx.data.splits.split import fold_groups

_SEED = 0
"""The same in all runs, so that members of several runs may stand in one ensemble."""


def partition(
    records: Sequence[Record], fold: int | None, folds: int
) -> tuple[list[Record], list[Record]]:
    """Return the training and the validation images of a member, each in manifest order.

    Without a fold these are the splits train and val. With one, both splits together are dealt
    out again by whole groups: the fold validates, all others train. Test and calibration are never
    touched.
    """
    if fold is None:
        return split_of(records, "train"), split_of(records, "val")
    pool = learning(records)
    fold_of = fold_groups([(record.group, record.label) for record in pool], folds, _SEED)
    train = [record for record in pool if fold_of[record.group] != fold]
    return train, [record for record in pool if fold_of[record.group] == fold]


def learning(records: Sequence[Record]) -> list[Record]:
    """Return the images of train and val, in manifest order."""
    return [record for record in records if record.split in ("train", "val")]
