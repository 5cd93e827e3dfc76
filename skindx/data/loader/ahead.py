"""Work ahead of the consumer on threads: in order, and never further than asked."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")


def work_ahead(
    function: Callable[[Item], Value], items: Iterable[Item], *, threads: int, ahead: int
) -> Generator[Value, None, None]:
    """Yield function(item) in the order of `items`, computed on `threads` threads.

    At most `ahead` items are taken that have not been yielded yet, so that memory is bounded
    however slow the consumer is. What `function` raises is raised here, at its item's turn.
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
            if len(taken) == ahead:
                yield taken.popleft().result()
        while taken:
            yield taken.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
