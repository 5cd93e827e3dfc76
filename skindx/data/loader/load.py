"""uint8 batches from threads, each in its order, the next ones in work meanwhile."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skindx.core.machine import cpu_count
from skindx.data.loader.ahead import Allocate, Pool, work_ahead
from skindx.data.loader.crops import Window, draw_windows, resize_into
from skindx.data.loader.pixels import Pixels
from skindx.data.loader.source import ImageSource

if TYPE_CHECKING:
    import torch


Fill = Callable[[Sequence[int], NDArray[np.uint8]], None]
"""Called from any thread with the numbers of some images, and T x S x S x 3 to write them into."""

_LEAST, _MOST = 8, 32
"""Images a task: enough to outweigh the hand-over, which takes as long as 5 images from a cache."""


class _Task(NamedTuple):
    indices: NDArray[np.int64]
    images_BSS3: NDArray[np.uint8]
    whole: NDArray[np.uint8] | None
    """The batch that this task is the last of."""


def load(
    fill: Fill,
    batches: Iterable[NDArray[np.int64]],
    side: int,
    *,
    threads: int,
    prefetch: int,
    allocate: Allocate | None = None,
) -> Generator[NDArray[np.uint8], None, None]:
    """Yield images_BSS3, uint8, for every array of image numbers, in their order.

    Memory is bounded by `prefetch` batches beside the one in use. A batch is not written again
    while anybody holds it or a view of it; `allocate` gives its memory (default: a new `Pool`).
    What `fill` raises is raised here; the threads end with the generator (see `work_ahead`).
    """
    import cv2

    cv2.setNumThreads(1)  # the loader's threads share the cores already

    def work(task: _Task) -> NDArray[np.uint8] | None:
        fill(task.indices.tolist(), task.images_BSS3)
        return task.whole

    batches = list(batches)
    largest = max((len(batch) for batch in batches), default=1)
    # Two tasks for each thread, if they are not too small for it.
    size = min(max(_LEAST, prefetch * largest // (2 * threads)), _MOST)
    ahead = prefetch * max(1, -(-largest // size))
    tasks = _tasks(batches, size, side, allocate or Pool())
    for whole in work_ahead(work, tasks, threads=threads, ahead=ahead):
        if whole is not None:
            yield whole


def _tasks(
    batches: Iterable[NDArray[np.int64]], size: int, side: int, allocate: Allocate
) -> Iterator[_Task]:
    for batch in batches:
        images_BSS3 = allocate((len(batch), side, side, 3))
        for start in range(0, max(1, len(batch)), size):
            part = slice(start, start + size)
            last = start + size >= len(batch)
            yield _Task(batch[part], images_BSS3[part], images_BSS3 if last else None)


def fill_random_crops(
    source: ImageSource,
    indices: Sequence[int],
    seeds: Sequence[int],
    scale: tuple[float, float],
    ratio: tuple[float, float],
    *,
    out_TSS3: NDArray[np.uint8],
) -> None:
    """Write a random window of each image, resized to S x S; see `random_window`.

    A window is drawn from its image's seed, which is below 2^32.
    """
    sizes_T2 = np.array([source.size(index) for index in indices], np.int64).reshape(-1, 2)
    fill_crops(source, indices, draw_windows(sizes_T2, seeds, scale, ratio), out_TSS3)


def fill_crops(
    source: ImageSource,
    indices: Sequence[int],
    windows_T4: NDArray[np.float64],
    out_TSS3: NDArray[np.uint8],
) -> None:
    """Write a window of each image, resized to S x S, decoded no larger than the window needs.

    A row of `windows_T4` has top, left, height and width as `Window` has them.

    Draw the windows of all these images before: between two images the code that draws random
    numbers has left the processor's caches, and takes several times as long.
    """
    if isinstance(source, Pixels):
        source.crop(indices, windows_T4, out_TSS3)
        return
    side = out_TSS3.shape[1]
    for index, shares, out_SS3 in zip(indices, windows_T4.tolist(), out_TSS3, strict=True):
        window = Window(*shares)
        image_HW3 = source.image(index, at_least=window.needs(side))
        resize_into(window.of(image_HW3), out_SS3)


@dataclass(frozen=True)
class Reading:
    """How a rank works on its images: threads, and batches in work ahead of the consumer."""

    threads: int
    prefetch: int
    allocate: Allocate
    """Gives the memory of batches: see `memory_for`."""

    def load(
        self, fill: Fill, shares: Sequence[NDArray[np.int64]], side: int
    ) -> Generator[NDArray[np.uint8], None, None]:
        """Yield a batch (B x side x side x 3) for each index array, filled on the threads."""
        return load(
            fill, shares, side, threads=self.threads, prefetch=self.prefetch, allocate=self.allocate
        )


def threads_for(wanted: int | str, ranks_on_node: int) -> int:
    """Return the loader's threads in one rank."""
    if isinstance(wanted, int):
        return wanted
    return max(1, cpu_count() // ranks_on_node)


def memory_for(device: "torch.device") -> Allocate:
    """Return where batches are written: for a GPU pinned memory, which it copies directly.

    Torch uses its pinned blocks again by itself.
    """
    return _pinned if device.type == "cuda" else Pool()


def _pinned(shape: tuple[int, int, int, int]) -> NDArray[np.uint8]:
    import torch

    pinned: NDArray[np.uint8] = torch.empty(shape, dtype=torch.uint8, pin_memory=True).numpy()
    return pinned
