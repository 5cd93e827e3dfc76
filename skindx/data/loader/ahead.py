"""Work ahead of the consumer on threads, in order, and memory for batches that is used again."""

import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

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


# B = batch, T = images of a task, S = side
