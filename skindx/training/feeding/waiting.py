"""How long training waited for its images: two clock readings a batch."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")


class Waiting:
    """Counts the seconds of an epoch in which the next batch was not there yet."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the time of a block."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - started

    def over(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the items and count the time that each took to come."""
        end = object()
        iterator = iter(items)
        while True:
            with self.counted():
                item = next(iterator, end)
            if item is end:
                return
            yield item  # type: ignore[misc]
