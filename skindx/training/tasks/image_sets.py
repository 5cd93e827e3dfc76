"""The batches of training images: an epoch's plan, augmented crops from threads, the device.

In the order of a batch's way. The images are cropped, changed and labelled on threads, and copied
to a GPU while it still works on the step before.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skindx.data.loader.augment import squares_changer
from skindx.data.loader.batches import epoch_plan
from skindx.data.loader.crops import ASPECTS, fill_random_crops, sample_seeds
from skindx.data.loader.load import Reading
from skindx.data.loader.settings import Augment
from skindx.data.loader.shuffler import ShardShuffler
from skindx.data.loader.source import ImageSource
from skindx.training.parallel.mesh import Mesh

# N = images, B = batch, T = images of a task, S = side


@dataclass(frozen=True)
class TrainingSet:
    """The training images of all ranks, as far as this rank reads them."""

    source: ImageSource
    """The images: by default `NodeMemory`, which keeps encoded bytes after the first read."""
    labels_N: NDArray[np.int64]
    sharded: bool
    """This rank sees its own shard alone."""
    reading: Reading
    """Threads and their order only: a batch is what `fill` has written."""
    redrawn: bool = False
    """The shard is another one in each epoch."""
    shuffler: ShardShuffler | None = None
    """Brings the next shard into memory; None by default, without shards."""

    def __len__(self) -> int:
        return len(self.labels_N)

    def plan(self, batch: int, seed: int, epoch: int, mesh: Mesh) -> list[list[NDArray[np.int64]]]:
        """Return every rank's image numbers for each step; see `epoch_plan`."""
        sharded, redrawn = self.sharded, self.redrawn
        world = mesh.data.size
        return epoch_plan(len(self), batch, seed, epoch, world, sharded=sharded, redrawn=redrawn)

    def enter(self, seed: int, epoch: int) -> None:
        """Get ready for an epoch; every rank calls this before it loads images of it."""
        if self.shuffler:
            self.shuffler.enter(seed, epoch)


def training_batches(
    data: TrainingSet,
    shares: Sequence[NDArray[np.int64]],
    augment: Augment,
    bars: tuple[int, int, int] | None = None,
    *,
    side: int,
    seed: int,
    epoch: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield augmented images (B x S x S x 3 uint8) and their labels for each index array.

    `bars` is the colour of what is beside a whole image in its square (`Preprocess.bars`); None by
    default: a window lies within the image.
    Raises UserError for an image that is gone or damaged.
    """
    change = squares_changer(augment)

    def fill(indices: Sequence[int], out_TSS3: NDArray[np.uint8]) -> None:
        seeds = sample_seeds((seed, epoch), indices)
        drawn = data.source, indices, seeds, augment.scale, ASPECTS
        fill_random_crops(*drawn, bars=bars, out_TSS3=out_TSS3)
        change(out_TSS3, seeds)

    with closing(data.reading.load(fill, shares, side)) as batches:
        for images_BSS3, indices_B in zip(batches, shares, strict=True):
            yield torch.from_numpy(images_BSS3), torch.from_numpy(data.labels_N[indices_B])


def on_device(
    batches: Iterator[tuple[Tensor, Tensor]], device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (images_BSS3, labels_B) on the device; nothing is copied for a CPU.

    For a GPU the images lie in pinned memory and are copied on a stream of their own, beside
    the kernels that are queued already; the kernels that come after wait for them. Torch keeps
    pinned and device memory until what was queued on it is done.
    """
    if device.type != "cuda":
        yield from batches
        return
    beside, ours = _copying(device), torch.cuda.current_stream(device)
    for images_BSS3, labels_B in batches:
        with torch.cuda.stream(beside):
            moved = (
                images_BSS3.to(device, non_blocking=True),
                labels_B.pin_memory().to(device, non_blocking=True),
            )
        ours.wait_stream(beside)
        for tensor in moved:
            tensor.record_stream(ours)
        yield moved


@cache
def _copying(device: torch.device) -> torch.cuda.Stream:
    """Return the one stream for copies: torch keeps the memory of each stream apart."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
