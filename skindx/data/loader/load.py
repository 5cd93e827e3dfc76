"""uint8 batches from threads: each in its order, the next ones in work meanwhile."""

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skindx.data.loader.ahead import work_ahead
from skindx.data.loader.crop import random_window, resize_into
from skindx.data.loader.pool import Allocate, Pool
from skindx.data.loader.source import Source

# B = batch, S = side

Fill = Callable[[int, NDArray[np.uint8]], None]
"""Called with an image's number and S x S x 3 to write it into, from any thread."""

_TASK = 8
"""Images a task: few enough to share a batch among threads, enough to outweigh the hand-over."""


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
        for index, out in zip(task.indices.tolist(), task.images_BSS3, strict=True):
            fill(index, out)
        return task.whole

    batches = list(batches)
    largest = max((len(batch) for batch in batches), default=1)
    ahead = prefetch * max(1, -(-largest // _TASK))
    for whole in work_ahead(
        work, _tasks(batches, side, allocate or Pool()), threads=threads, ahead=ahead
    ):
        if whole is not None:
            yield whole


def _tasks(batches: Iterable[NDArray[np.int64]], side: int, allocate: Allocate) -> Iterator[_Task]:
    for batch in batches:
        images_BSS3 = allocate((len(batch), side, side, 3))
        for start in range(0, max(1, len(batch)), _TASK):
            part = slice(start, start + _TASK)
            last = start + _TASK >= len(batch)
            yield _Task(batch[part], images_BSS3[part], images_BSS3 if last else None)


def fill_crop(
    source: Source,
    index: int,
    out_SS3: NDArray[np.uint8],
    rng: np.random.Generator,
    *,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> None:
    """Write a random-resized crop of an image, decoded no larger than the crop needs."""
    window = random_window(*source.size(index), scale, ratio, rng)
    image_HW3 = source.image(index, at_least=window.needs(out_SS3.shape[0]))
    resize_into(window.of(image_HW3), out_SS3)
