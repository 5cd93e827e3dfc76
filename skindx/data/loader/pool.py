"""Memory for batches, taken from the system once and used again when it is free."""

import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
