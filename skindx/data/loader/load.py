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
    bars: tuple[int, int, int] | None = None,
    out_TSS3: NDArray[np.uint8],
) -> None:
    """Write a random window of each image, resized to S x S; see `random_window`.

    A window is drawn from its image's seed, which is below 2^32. With `bars`, the colour of what is
    beside a whole image in its square, it is one of that square.
    """
    sizes_T2 = np.array([source.size(index) for index in indices], np.int64).reshape(-1, 2)
    if bars is not None:
        out_TSS3[...] = bars
        squares_T2 = sizes_T2.max(axis=1, keepdims=True).repeat(2, axis=1)
        windows_T4 = draw_windows(squares_T2, seeds, scale, ratio)
        _fill_framed(source, indices, sizes_T2, windows_T4, out_TSS3)
        return
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
    sides = out_TSS3.shape[1:3]
    for index, shares, out_SS3 in zip(indices, windows_T4.tolist(), out_TSS3, strict=True):
        window = Window(*shares)
        image_HW3 = source.image(index, at_least=window.needs(*sides))
        resize_into(window.of(image_HW3), out_SS3)


def _fill_framed(
    source: ImageSource,
    indices: Sequence[int],
    sizes_T2: NDArray[np.int64],
    windows_T4: NDArray[np.float64],
    out_TSS3: NDArray[np.uint8],
) -> None:
    """Write a window of each image's square, which has its longer side; bars stay as they are.

    Where a window is the wider one it holds the whole image, anywhere in it; else it lies within.
    """
    side = out_TSS3.shape[1]
    extent_T2 = windows_T4[:, 2:] * sizes_T2.max(axis=1, keepdims=True) / sizes_T2
    free_T2 = 1 - windows_T4[:, 2:]
    place_T2 = np.where(free_T2 > 0, windows_T4[:, :2] / np.maximum(free_T2, 1e-12), 0.5)
    begin_T2 = place_T2 * (1 - extent_T2)  # in shares of the image, as all but `place`
    low_T2, high_T2 = np.maximum(begin_T2, 0), np.minimum(begin_T2 + extent_T2, 1)
    first_T2 = np.rint((low_T2 - begin_T2) / extent_T2 * side).astype(int).clip(0, side - 1)
    last_T2 = np.rint((high_T2 - begin_T2) / extent_T2 * side).astype(int).clip(first_T2 + 1, side)
    seen_T4 = np.hstack([low_T2, high_T2 - low_T2])
    for number, (index, (top, left), (bottom, right)) in enumerate(
        zip(indices, first_T2.tolist(), last_T2.tolist(), strict=True)
    ):
        part_1RC3 = np.empty((1, bottom - top, right - left, 3), np.uint8)
        fill_crops(source, [index], seen_T4[number : number + 1], part_1RC3)
        out_TSS3[number, top:bottom, left:right] = part_1RC3[0]


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
