"""A step whose layers are shared out over ranks, as the simulation of steps runs it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal

from skindx.planning.events import Span, Task

MANY = 1 << 30
"""Slots of a resource that is only ever shared."""


@dataclass(frozen=True)
class Feeding:
    """Processor seconds of the images of a step, over all of a rank's cores; read a step ahead."""

    read_s: float = 0.0
    copy_s: float = 0.0


@dataclass(frozen=True)
class Step:
    """A simulated step of one rank."""

    tasks: tuple[Task, ...]
    spans: tuple[Span, ...]
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds that sum to the step: read, forward, backward, communicate, update; precondition and
    idle where there is any."""

    @property
    def seconds(self) -> float:
        """From the first forward to where the next one can begin."""
        return max(span.end_s for span in self.spans)


class Flow(ABC):
    """Computing and messages that are not simply backward followed by the gradients."""

    @property
    @abstractmethod
    def border_bytes(self) -> int:
        """Bytes that a rank sends for others to compute on; 0: nothing is shared out."""

    @property
    @abstractmethod
    def gradient_bytes(self) -> int:
        """Of the gradients that it sums with others."""

    @abstractmethod
    def slower(self, *, compute: float = 1.0, wire: float = 1.0, update: float = 1.0) -> "Flow":
        """Return the flow with each of these taking so many times as long."""

    @abstractmethod
    def run(
        self, *, device: Literal["cpu", "cuda"], slots: int, pieces: int, feeding: Feeding
    ) -> Step:
        """Simulate a step of `pieces` pieces; gradients are summed after the last one.

        `slots` messages are on a link at once.
        """
