"""The order in which a member visits the partitions of its images, and the steps of each."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from skindx.training.feeding.batches import steps_of

# N = images of a member, P = partitions


@dataclass
class Visits:
    """Where each image lies, and which partitions an epoch has visited; the last one is here.

    The steps of a partition depend on (seed, epoch, partition) alone: whichever worker takes them,
    and whatever came before, they show the same images in the same order.
    """

    owner_N: NDArray[np.int64]
    """The partition of each image."""
    partitions: int
    order: Sequence[int] = field(default=())
    """Partitions of the current epoch."""

    def plan(self, batch: int, seed: int, epoch: int) -> list[NDArray[np.int64]]:
        """Return the image numbers of each step of the partitions in `order`."""
        steps_P = self.steps(batch)
        return [
            numbers
            for partition in self.order
            for numbers in self._steps_of(partition, steps_P[partition], seed, epoch)
        ]

    def _steps_of(
        self, partition: int, steps: int, seed: int, epoch: int
    ) -> list[NDArray[np.int64]]:
        own = np.flatnonzero(self.owner_N == partition)
        rng = np.random.default_rng((seed, epoch, self.partitions, partition))
        return np.array_split(rng.permutation(own), steps)

    def steps(self, batch: int) -> list[int]:
        """Return how many steps each partition takes; together as many as the whole split.

        Each has at least one, and otherwise its share by largest remainders.
        """
        count_P = np.bincount(self.owner_N, minlength=self.partitions)
        total = max(steps_of(len(self.owner_N), batch), self.partitions)
        quota_P = count_P * total / max(1, count_P.sum())
        steps_P = np.maximum(1, np.floor(quota_P)).astype(np.int64)
        while steps_P.sum() != total:
            over = steps_P - quota_P
            if steps_P.sum() < total:
                steps_P[np.argmin(over)] += 1
            else:
                steps_P[np.argmax(np.where(steps_P > 1, over, -np.inf))] -= 1
        return [int(steps) for steps in steps_P]
