"""Partitions of the images; the bytes of each are read by one worker."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.data.manifest import Record, split_of
from skindx.training.config.run import TrainSettings
from skindx.training.feeding.folds import learning, partition

# N = images


@dataclass(frozen=True)
class Partitions:
    """The images of train and validation, divided into so many partitions."""

    count: int
    owner: dict[str, int]
    """Path of an image -> its partition."""
    learned: tuple[str, ...] = ("train",)
    """Splits from which some member learns."""

    @classmethod
    def of(cls, records: Sequence[Record], settings: TrainSettings, count: int) -> "Partitions":
        """Deal out the images in manifest order, so that labels and sources are even.

        Where members learn from folds, train and val are divided as one.
        """
        folds = any(member.fold is not None for member in settings.members)
        parts = [learning(records)] if folds else [split_of(records, s) for s in ("train", "val")]
        owner = {record.path: place % count for part in parts for place, record in enumerate(part)}
        return cls(count, owner, ("train", "val") if folds else ("train",))

    def owner_N(self, records: Sequence[Record]) -> NDArray[np.int64]:  # noqa: N802
        """Return the partition of each of some images."""
        return np.array([self.owner[record.path] for record in records], dtype=np.int64)

    def of_partition(self, records: Sequence[Record], number: int) -> list[Record]:
        """Return those images that lie in a partition, in order."""
        return [record for record in records if self.owner.get(record.path) == number]


def check_partitions(records: Sequence[Record], settings: TrainSettings, count: int) -> None:
    """Raise UserError when a partition gives a member less than a batch."""
    partitions = Partitions.of(records, settings, count)
    for member in settings.members:
        train, _ = partition(records, member.fold, settings.folds)
        least = int(np.bincount(partitions.owner_N(train), minlength=count).min())
        batch = settings.recipe_of(member).batch
        if batch > least:
            raise UserError(
                f"member {member.name}: recipe.batch={batch} is more than the {least} training "
                f"images of the smallest of {count} partitions; lower it, or engine.partitions."
            )


def partitions_of(settings: TrainSettings, workers: int) -> int:
    """Return into how many partitions a run's training split is cut at its first start."""
    wanted = settings.engine.partitions
    return workers if wanted == "auto" else wanted
