"""Which pictures each rank sees in each step: every one once an epoch, on any number of ranks."""

import numpy as np
from numpy.typing import NDArray


def global_batches(count: int, batch: int, seed: int, epoch: int) -> list[NDArray[np.int64]]:
    """Cut a fresh permutation of `count` pictures into batches of nearly equal size.

    Sizes differ by at most one, so that no step rests on a remainder of two or three pictures.
    """
    order = np.random.default_rng((seed, epoch)).permutation(count)
    return np.array_split(order, max(1, round(count / batch)))


def share(batch_B: NDArray[np.int64], rank: int, world: int) -> NDArray[np.int64]:
    """Return this rank's part of a global batch; the parts of all ranks make up the batch."""
    return np.array_split(batch_B, world)[rank]


def sample_seed(seed: int, epoch: int, index: int) -> int:
    """Return the seed of one picture's augmentation, the same whichever rank draws it."""
    return int(np.random.SeedSequence((seed, epoch, index)).generate_state(1)[0])
