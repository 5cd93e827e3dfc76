"""Time of a message or a collective, and what a price asks of a network."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from skindx.core.cost.collectives import Cost, Curve

Kind = Literal["all_reduce", "all_gather", "exchange", "hierarchical", "multicolor"]
"""Collectives, as a cluster file names them; the last two are those of one exchange each."""


@dataclass(frozen=True)
class Timed:
    """A message on its way: seconds that pass, seconds of the link, seconds of a rank's cores."""

    latency_s: float
    wire_s: float
    cpu_s: float = 0.0

    def scaled(self, factor: float) -> "Timed":
        """Return a message that takes `factor` times as long."""
        return Timed(self.latency_s * factor, self.wire_s * factor, self.cpu_s)

    @property
    def alone_s(self) -> float:
        """With the link to itself."""
        return self.latency_s + self.wire_s


@dataclass(frozen=True)
class Price:
    """Time of a collective for a number of bytes, with its uncertainty."""

    curve: Curve
    idle_share: float
    cpu_s_per_byte: float
    spread: float
    measured: bool
    together_spread: float = 0.0

    def spread_of(self, messages: int) -> float:
        """Return how sure so many of them are, which may be under way at once."""
        return math.hypot(self.spread, self.together_spread if messages > 1 else 0.0)

    @property
    def line(self) -> Cost:
        """As alpha + beta x bytes, for plans."""
        return self.curve.line

    def __call__(self, size_bytes: float) -> Timed:
        """Return what so many bytes take."""
        seconds = self.curve(size_bytes)
        alpha_s = min(seconds, self.line.alpha_s)
        idle_s = self.idle_share * (seconds - alpha_s)
        return Timed(alpha_s + idle_s, seconds - alpha_s - idle_s, self.cpu_s_per_byte * size_bytes)


class Network(Protocol):
    """Some nodes of a cluster; `skindx plan` of the kit of methods makes it of a cluster file."""

    nodes: int
    per_node: int

    @property
    def ranks(self) -> int: ...

    @property
    def backend(self) -> str:
        """As the cluster file names it: gloo, nccl, mpi."""

    @property
    def slots(self) -> int:
        """Collectives of a rank that are under way at once."""

    @property
    def between(self) -> Cost:
        """The link between two nodes. Raises UserError where nothing is known of it."""

    @property
    def inside(self) -> Cost:
        """The link between two ranks of a node. Raises UserError where nothing is known of it."""

    @property
    def step(self) -> Cost:
        """The link that a message between two ranks takes: between nodes where there are several.

        Raises UserError where nothing is known of it.
        """

    def price(
        self, collective: Kind, line: Callable[["Network"], Cost] | None = None, variant: str = ""
    ) -> Price:
        """Return what a collective takes among all ranks.

        Where it was not measured it is derived from the links; a collective of an exchange's own
        brings its `line`, and a `variant` that names all that the line depends on.
        """
