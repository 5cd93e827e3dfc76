"""uint8 batches from threads, each in its order, the next ones in work meanwhile."""

import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from skindx.core.machine import cpu_count

if TYPE_CHECKING:
    import torch

Item = TypeVar("Item")
Value = TypeVar("Value")


def work_ahead(
    function: Callable[[Item], Value],
    items: Iterable[Item],
    *,
    threads: int,
    ahead: int,
    size: Callable[[Value], int] | None = None,
    most: int = 0,
) -> Generator[Value, None, None]:
    """Yield function(item) in the order of `items`, computed on `threads` threads.

    At most `ahead` items are taken that have not been yielded yet, so that memory is bounded
    however slow the consumer is; nor are more taken while those that wait have a `size` of more
    than `most` together. What `function` raises is raised here, at its item's turn.
    Threads start with the first value asked for and have ended when the generator has: also by
    an exception, by `close`, or by leaving a `for` loop that holds its only reference.
    """
    assert threads >= 1
    assert ahead >= 1
    taken: deque[Future[Value]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="skindx-loader")
    try:
        for item in items:
            taken.append(pool.submit(function, item))
            while len(taken) == ahead or (size and _waiting(taken, size) > most):
                yield taken.popleft().result()
        while taken:
            yield taken.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _waiting(taken: Iterable[Future[Value]], size: Callable[[Value], int]) -> int:
    return sum(size(one.result()) for one in taken if one.done() and not one.exception())


Shape = tuple[int, int, int, int]

Allocate = Callable[[Shape], NDArray[np.uint8]]


class _Lease:
    """A block in use: arrays made of it, and all their views, keep it alive."""

    def __init__(self, block: NDArray[np.uint8], shape: Shape) -> None:
        self.__array_interface__: dict[str, Any] = {**block.__array_interface__, "shape": shape}


class Pool:
    """Hands out uint8 arrays; a block returns when its array and every view of it are gone.

    The system gives fresh memory page by page at the first touch, which for a batch of images
    costs as much as a quarter of cropping them from a cache.
    """

    def __init__(self) -> None:
        self._free: defaultdict[int, list[NDArray[np.uint8]]] = defaultdict(list)

    def __call__(self, shape: Shape) -> NDArray[np.uint8]:
        """Return an array of any content."""
        size = int(np.prod(shape))
        free = self._free[size]
        block = free.pop() if free else np.empty(size, np.uint8)
        lease = _Lease(block, shape)
        weakref.finalize(lease, free.append, block).atexit = False
        return np.asarray(lease)


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
        """Yield a batch (B x side x side x 3) for each index array, as `fill` writes it.

        Threads and order only: no pixel is changed here.
        """
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

    return torch.empty(shape, dtype=torch.uint8, pin_memory=True).numpy()
