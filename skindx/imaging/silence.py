"""Silence for Pillow's warnings that holds on several threads at once."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_inside: list[warnings.catch_warnings] = []
_depth = 0


@contextmanager
def hushed() -> Iterator[None]:
    """Ignore warnings while any thread is inside.

    `warnings.catch_warnings` alone puts back what another thread had set; here the first one in
    saves the filters and the last one out restores them.
    """
    global _depth  # noqa: PLW0603 (the filters that it counts for are global too)
    with _lock:
        if _depth == 0:
            _inside.append(warnings.catch_warnings())
            _inside[0].__enter__()
            warnings.simplefilter("ignore")
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                _inside.pop().__exit__(None, None, None)
