"""The fastest runtime on this machine: measured once, then read from the user's cache."""

import hashlib
import json
import logging
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np

from skindx.core.atomic_files import only_writer, write_json
from skindx.core.errors import UserError
from skindx.core.machine import cache_folder, cpu_flags, processor_facts
from skindx.core.measurement import interleave, torch_threads
from skindx.models.ensemble.ensemble import Ensemble

log = logging.getLogger(__name__)

_ROUNDS, _WARMUP = 7, 2
_WAIT_S = 120.0
"""For another process that measures; then this one measures for itself."""


def fastest(candidates: Mapping[str, Callable[[], object]]) -> str:
    """Return the name of the candidate that takes the least processor time on one thread."""
    seconds = processor_seconds(candidates)
    return min(candidates, key=lambda name: statistics.median(seconds[name]))


def processor_seconds(
    candidates: Mapping[str, Callable[[], object]], rounds: int = _ROUNDS
) -> dict[str, list[float]]:
    """Return the processor seconds of each candidate on one thread, one of each round.

    Candidates take turns, so that a busy machine counts alike for all.
    """
    with torch_threads(1):
        return interleave(candidates, rounds, _WARMUP, time.process_time)


def answering(ensemble: Ensemble) -> Callable[[], object]:
    """Return a call in which every member answers one random image."""
    random = np.random.default_rng(0)
    squares = [
        random.integers(0, 256, (1, size, size, 3), dtype=np.uint8)
        for size in (member.preprocess.size for member in ensemble.members)
    ]

    def answer() -> None:
        for member, square_1SS3 in zip(ensemble.members, squares, strict=True):
            member.log_probabilities_of_squares([square_1SS3])

    return answer


@contextmanager
def remembered_choice(parts: Mapping[str, object]) -> Iterator["Choice"]:
    """Yield the choice of an earlier process for the same bundle, runtimes and processor.

    One process at a time measures: the others wait and then read its choice.
    """
    digest = hashlib.sha256(json.dumps({**parts, "cpu": _processor()}).encode()).hexdigest()
    file = cache_folder() / "runtimes" / f"{digest[:32]}.json"
    choice = Choice(file)
    with ExitStack() as stack:
        if choice.name is None:
            # With a cache that cannot be written each process measures for itself.
            with suppress(OSError, UserError):
                file.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(only_writer(file.parent, "measurement of runtimes", _WAIT_S))
                choice.read()
        yield choice


class Choice:
    """A remembered choice; `name` is None until one is known."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.name: str | None = None
        self.read()

    def read(self) -> None:
        """Read what is remembered; a damaged file counts as nothing."""
        self.name = None
        with suppress(OSError, ValueError, KeyError, TypeError):
            name = json.loads(self._file.read_text(encoding="utf-8"))["fastest"]
            self.name = name if isinstance(name, str) else None

    def remember(self, name: str) -> None:
        """Keep a choice for the next process; without a cache it is measured again."""
        self.name = name
        try:
            write_json(self._file, {"fastest": name})
        except OSError as error:
            log.info("the choice of a runtime is not kept: %s", error)


def _processor() -> list[object]:
    return [*processor_facts(), sorted(cpu_flags())]
