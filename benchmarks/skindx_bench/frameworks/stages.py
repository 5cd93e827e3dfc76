"""The stages of an iteration, and the clock that every framework's step is measured by."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

STAGES = ("read", "copy", "forward", "backward", "communicate", "update")
COMPILED = "compiled"
"""Forward, backward, communication and update, where a framework compiles them into one."""


class Stages:
    """Seconds of each stage, summed over some steps.

    Each stage is measured by a beginning and an end of its own: what lies between two stages counts
    in none, so that their sum shows what a step has been spent on besides.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def add(self, name: str, begin: float, end: float) -> None:
        """Add a time between two readings of `time.perf_counter`."""
        self.seconds[name] = self.seconds.get(name, 0.0) + end - begin

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of what is done here."""
        begin = time.perf_counter()
        yield
        self.add(name, begin, time.perf_counter())
