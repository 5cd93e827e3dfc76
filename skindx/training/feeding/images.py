"""Training and validation images as batches: cropped, changed and labelled on threads."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skindx.data.loader.drawing import sample_seeds
from skindx.data.loader.load import fill_random_crops, load
from skindx.data.loader.source import Source
from skindx.data.manifest import Record
from skindx.models.classifier.preprocess import Preprocess, centre_square
from skindx.training.config.recipe import Augment
from skindx.training.feeding.augment import changer
from skindx.training.feeding.batches import epoch_plan
from skindx.training.feeding.loading import Reading
from skindx.training.feeding.shuffler import ShardShuffler
from skindx.training.feeding.visits import Visits
from skindx.training.parallel.mesh import Mesh

# N = images, B = batch, T = images of a task, S = side

RATIO = (0.8, 1.25)
"""Aspects of the random crop, width / height."""

_VALIDATION_BATCH = 64


@dataclass(frozen=True)
class TrainingSet:
    """The training images of all ranks, as far as this rank reads them."""

    source: Source
    labels_N: NDArray[np.int64]
    sharded: bool
    """This rank sees its own shard alone."""
    reading: Reading
    targets_NC: NDArray[np.float32] | None = None
    """Soft targets in place of the labels."""
    redrawn: bool = False
    """The shard is another one in each epoch."""
    shuffler: ShardShuffler | None = None
    """Brings the next shard into memory."""
    visits: Visits | None = None
    """The partitions that are visited one after the other; none: the images are one whole."""

    def __len__(self) -> int:
        return len(self.labels_N)

    def enter(self, seed: int, epoch: int) -> None:
        """Get ready for an epoch; every rank calls this before it loads images of it."""
        if self.shuffler:
            self.shuffler.enter(seed, epoch)

    def plan(self, batch: int, seed: int, epoch: int, mesh: Mesh) -> list[list[NDArray[np.int64]]]:
        """Return every rank's image numbers for each step; see `epoch_plan`."""
        if self.visits:
            return [[numbers] for numbers in self.visits.plan(batch, seed, epoch)]
        return epoch_plan(
            len(self),
            batch,
            seed,
            epoch,
            mesh.data.size,
            sharded=self.sharded,
            redrawn=self.redrawn,
        )


@dataclass
class ValidationSet:
    """This rank's validation images, as evaluation and diagnosis see them, bit for bit."""

    source: Source
    labels_N: NDArray[np.int64]
    preprocess: Preprocess
    reading: Reading
    keep: bool
    """Hold the squares in memory (N x S x S x 3 bytes) instead of decoding them in each epoch."""
    _kept: list[NDArray[np.uint8]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.labels_N)

    def squares(self) -> Iterable[NDArray[np.uint8]]:
        """Return batches of central squares, B x S x S x 3, in order."""
        if not self.keep:
            return self._load()
        if not self._kept:
            self._kept = list(self._load())
        return self._kept

    def _load(self) -> Iterator[NDArray[np.uint8]]:
        def fill(indices: Sequence[int], out_TSS3: NDArray[np.uint8]) -> None:
            for index, out_SS3 in zip(indices, out_TSS3, strict=True):
                out_SS3[...] = centre_square(self.source.image(index), self.preprocess)

        pieces = -(-len(self) // _VALIDATION_BATCH)
        return load(
            fill,
            np.array_split(np.arange(len(self)), pieces) if pieces else [],
            self.preprocess.size,
            threads=self.reading.threads,
            prefetch=self.reading.prefetch,
            # Cached images must not be pinned memory.
            allocate=None if self.keep else self.reading.allocate,
        )


def class_numbers(records: Sequence[Record], classes: Sequence[str]) -> NDArray[np.int64]:
    """Return labels_N: the place of each record's label among the classes."""
    number = {key: index for index, key in enumerate(classes)}
    return np.array([number[record.label] for record in records], dtype=np.int64)


def training_batches(
    data: TrainingSet,
    shares: Sequence[NDArray[np.int64]],
    augment: Augment,
    *,
    side: int,
    seed: int,
    epoch: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield augmented images (B x S x S x 3 uint8) and their labels for each index array.

    Labels are class numbers (B), or where the set has `targets_NC` these rows (B x C).

    Raises UserError for an image that is gone or damaged.
    """
    change = changer(augment)

    def fill(indices: Sequence[int], out_TSS3: NDArray[np.uint8]) -> None:
        seeds = sample_seeds((seed, epoch), indices)
        fill_random_crops(data.source, indices, seeds, augment.scale, RATIO, out_TSS3=out_TSS3)
        for out_SS3, own in zip(out_TSS3, seeds, strict=True):
            out_SS3[...] = change(out_SS3, own)

    learned = data.labels_N if data.targets_NC is None else data.targets_NC
    with closing(data.reading.load(fill, shares, side)) as batches:
        for images_BSS3, indices_B in zip(batches, shares, strict=True):
            yield torch.from_numpy(images_BSS3), torch.from_numpy(learned[indices_B])
