"""Timing that compares fairly: candidates take turns in the same run."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

Name = TypeVar("Name", bound=str)


def interleave(
    candidates: Mapping[Name, Callable[[], object]],
    rounds: int,
    warmup: int = 1,
    clock: Callable[[], float] | None = None,
) -> dict[Name, list[float]]:
    """Time every candidate once a round and return their seconds, `rounds` each.

    A slow minute of the machine then hits all of them, and the order turns by one each round so
    that no candidate always follows the same one. `warmup` rounds come first and are not timed.
    """
    seconds: dict[Name, list[float]] = {name: [] for name in candidates}
    for taken in timed_rounds(candidates, rounds, warmup, clock):
        for name, took in taken.items():
            seconds[name].append(took)
    return seconds


def timed_rounds(
    candidates: Mapping[Name, Callable[[], object]],
    rounds: int,
    warmup: int = 1,
    clock: Callable[[], float] | None = None,
) -> Iterator[dict[Name, float]]:
    """Yield the seconds of every candidate in each round of `interleave`."""
    clock = clock or time.perf_counter
    names = list(candidates)
    for turn in range(-warmup, rounds):
        first = turn % len(names)
        taken: dict[Name, float] = {}
        for name in names[first:] + names[:first]:
            start = clock()
            candidates[name]()
            taken[name] = clock() - start
        if turn >= 0:
            yield taken


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch compute on so many threads in the block; a server's workers use one."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
