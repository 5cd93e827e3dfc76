"""Images of a member (splits or folds), and of each rank and step: every one once an epoch."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from skindx.data.manifest import Record, split_of
from skindx.data.splits.split import fold_groups

# B = batch, N = images


def epoch_plan(
    count: int,
    batch: int,
    seed: int,
    epoch: int,
    world: int,
    *,
    sharded: bool,
    redrawn: bool = False,
) -> list[list[NDArray[np.int64]]]:
    """Return, for each step of an epoch, every rank's image numbers.

    Unsharded, a step's images are the same on any number of ranks. Sharded, a rank sees the
    images of its own shard alone, in an order that is fresh in each epoch: its `shard` for ever,
    or redrawn what `owners` gives it in this epoch.
    """
    if not sharded:
        batches = global_batches(count, batch, seed, epoch)
        return [[share(numbers, rank, world) for rank in range(world)] for numbers in batches]
    steps = steps_of(count, batch)
    owner_N = owners(count, seed, epoch, world) if redrawn else np.arange(count) % world
    by_rank = []
    for rank in range(world):
        local = np.flatnonzero(owner_N == rank)
        order = np.random.default_rng((seed, epoch, rank)).permutation(local)
        by_rank.append(np.array_split(order, steps))
    return [[parts[step] for parts in by_rank] for step in range(steps)]


def steps_of(count: int, batch: int) -> int:
    return max(1, round(count / batch))


def global_batches(count: int, batch: int, seed: int, epoch: int) -> list[NDArray[np.int64]]:
    """Cut a fresh permutation of `count` images into batches of nearly equal size.

    Sizes differ by at most one, so that no step rests on a remainder of two or three images.
    """
    order = np.random.default_rng((seed, epoch)).permutation(count)
    return np.array_split(order, steps_of(count, batch))


def share(batch_B: NDArray[np.int64], rank: int, world: int) -> NDArray[np.int64]:
    """Return this rank's part of a global batch; the parts of all ranks make up the batch."""
    return np.array_split(batch_B, world)[rank]


def shard(count: int, rank: int, world: int) -> NDArray[np.int64]:
    """Return the images that a rank keeps, of every label and source about equally many."""
    return np.arange(rank, count, world)


def owners(count: int, seed: int, epoch: int, world: int) -> NDArray[np.int64]:
    """Return the rank that holds each image in an epoch whose shards are drawn again.

    Of every `world` neighbours in the manifest each rank gets one, drawn at random: shards differ
    by one image at most, have of every label and source about equally many, and whatever the
    epoch before, an image goes to another rank with probability 1 - 1 / world.
    """
    rng = np.random.default_rng((seed, epoch, world, count))
    blocks = np.tile(np.arange(world), (-(-count // world), 1))
    return rng.permuted(blocks, axis=1).reshape(-1)[:count]


def sample_seed(seed: int, epoch: int, index: int) -> int:
    """Return the seed of one image's augmentation, the same whichever rank draws it."""
    return int(np.random.SeedSequence((seed, epoch, index)).generate_state(1)[0])


def step_seed(seed: int, epoch: int, step: int, rank: int) -> int:
    """Return the seed of what a rank draws in one step beside its images: dropout."""
    return int(np.random.SeedSequence((seed, epoch, step, rank)).generate_state(1)[0])


_SEED = 0
"""Seed that is the same in all runs, so that members of several runs fit one ensemble."""


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
