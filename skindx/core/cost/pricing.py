"""Cost of a training strategy in one step: messages with their times, local work, memory.

Another program simulates the step of a `StepSchedule`: `skindx plan` of the kit of methods.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, Self

from skindx.core.cost.collectives import Cost, Curve
from skindx.core.cost.profile import LocalWork, Profile, Trace

Kind = Literal["all_reduce", "all_gather", "exchange", "hierarchical", "multicolor"]
"""Kinds of collective in a cluster file; each of the last two belongs to one exchange."""

UNMEASURED_LOCAL = 0.5
"""Standard deviation over the mean that is assumed for local work without a measurement."""

_MERGE_S_PER_ELEMENT = 1e-8
"""Seconds to merge one element of a message from another rank."""

_GPU_FASTER = 30
"""Local work is bound by memory bandwidth, which is this many times a core's on a GPU."""


@dataclass(frozen=True)
class Timed:
    """Seconds of a message: its latency, the link's transfer, and work of a rank's cores."""

    latency_s: float
    wire_s: float
    cpu_s: float = 0.0

    def scaled(self, factor: float) -> "Timed":
        """Return a message that takes `factor` times as long."""
        return Timed(self.latency_s * factor, self.wire_s * factor, self.cpu_s)

    @property
    def alone_s(self) -> float:
        """Seconds of the message while no other message uses the link."""
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
        """Return the relative standard deviation of this many messages, which may overlap."""
        return math.hypot(self.spread, self.together_spread if messages > 1 else 0.0)

    @property
    def line(self) -> Cost:
        """The time as alpha + beta x bytes, for plans."""
        return self.curve.line

    def __call__(self, size_bytes: float) -> Timed:
        """Return the time of a collective of this size."""
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
        """The backend as the cluster file names it: gloo, nccl, mpi."""

    @property
    def slots(self) -> int:
        """Number of collectives that one rank can run at the same time."""

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


class Flow(Protocol):
    """A whole step whose ranks wait for each other inside the network."""

    @property
    def border_bytes(self) -> int:
        """Bytes that go from layer to layer."""

    @property
    def gradient_bytes(self) -> int:
        """Bytes of gradients."""

    def slower(self, *, compute: float = 1.0, update: float = 1.0, wire: float = 1.0) -> Self:
        """Return the flow with its parts slowed down by these factors."""

    def run(self, *, device: Literal["cpu", "cuda"], slots: int, pieces: int, feeding: Any) -> Any:
        """Return the step, as `events.simulate_step` does."""


@dataclass(frozen=True)
class Message:
    """One collective of a step, in plan order."""

    tensors: int
    """Number of tensors, in backward order, that must be complete before it may begin."""
    size_bytes: int
    timed: Timed
    before_s: float = 0.0
    """Local work before it is sent."""
    after_s: float = 0.0
    """Local work after it has arrived."""


@dataclass(frozen=True)
class StepSchedule:
    """The communication of one step."""

    messages: tuple[Message, ...] = ()
    gathers: tuple[Message, ...] = ()
    """Collectives before the forward pass, which waits for them."""
    spreads: tuple[Message, ...] = ()
    """Collectives after the update, which gather the weights that each rank updated."""
    serial: bool = False
    """Whether messages are sent one at a time, whatever the backend could do."""
    finish_s: float = 0.0
    """Local work after the last message."""
    update_share: float = 1.0
    """Share of the weights that one rank updates, 0..1."""
    spread: float = 0.0
    """Standard deviation of the messages' times over their mean."""
    local_spread: float = 0.0
    """Standard deviation of the local work's time over its mean."""
    measured: bool = True
    """Whether the collective was measured on this cluster, among as many ranks."""
    flow: Flow | None = None
    """The whole step where layers are split over ranks; it then includes all fields above."""

    @property
    def local_s(self) -> float:
        """Total local work of the step."""
        return self.finish_s + sum(message.before_s + message.after_s for message in self.messages)

    @property
    def sent_bytes(self) -> int:
        """Bytes of all messages, as collectives count them."""
        every = (*self.gathers, *self.messages, *self.spreads)
        flow_bytes = self.flow.border_bytes + self.flow.gradient_bytes if self.flow else 0
        return flow_bytes + sum(message.size_bytes for message in every)


@dataclass(frozen=True)
class Load:
    """Input of a price: the tensors of a step and their network."""

    trace: Trace
    """Tensors and times of one step at its batch; sizes are those of fp32."""
    profile: Profile
    device: Literal["cpu", "cuda"] = "cpu"
    images: int = 1
    """Images that one rank processes in one piece of its batch."""
    pieces: int = 1
    factor: float = 1.0
    """Learnt correction factor of compute times, already applied to `trace`."""
    memo: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    """Placements that were searched."""

    @property
    def count(self) -> int:
        return len(self.trace.names)

    @property
    def size_bytes(self) -> int:
        """The whole gradient, as fp32."""
        return sum(self.trace.sizes_bytes)

    def local(self, name: str, s_per_element: float) -> LocalWork:
        """Return work of the cores that was measured under a name, or else its usual time.

        `s_per_element` is that of one core of a server, as `skindx bench cluster exchange` shows.
        """
        if name in self.profile.local:
            return self.profile.local[name]
        elements = self.size_bytes // 4 / (_GPU_FASTER if self.device == "cuda" else 1)
        return LocalWork(
            base_s=s_per_element * elements,
            merge_s=_MERGE_S_PER_ELEMENT * elements * 0.001,
            spread=UNMEASURED_LOCAL,
            density=0.001,
        )

    def cast(self) -> LocalWork:
        """Return the work of making the whole gradient 16 bits and back."""
        return self.local("bf16", 0.6e-9)


class Strategy(ABC):
    """One training strategy that a plan compares with others."""

    name: ClassVar[str]
    lossy: bool = False
    """Whether it changes the gradient, and with it the training."""
    zero: ClassVar[int] = 0
    parallel: ClassVar[bool] = False
    """Whether it splits layers over ranks, and not only their images."""
    searched: ClassVar[tuple[dict[str, Any], ...]] = ({},)
    """Options that a search tries, one row each."""

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        """`options` are settings of the kind, without its name."""
        self.options = dict(options or {})

    @property
    def label(self) -> str:
        given = ", ".join(
            f"{key} given" if isinstance(value, dict | list | tuple) else f"{key} {value}"
            for key, value in self.options.items()
            if key != "tune"
        )
        return f"{self.name} ({given})" if given else self.name

    @abstractmethod
    def schedule(self, load: Load, network: Network) -> StepSchedule:
        """Return the communication of a step."""

    @abstractmethod
    def fragment(self) -> dict[str, Any]:
        """Return the settings with which `skindx train` does so."""

    def memory_bytes(self, load: Load, network: Network, images: int) -> int:
        """Return what it needs beside weights, gradients and optimizer; below 0: it saves.

        `images` are those of a rank in a piece.
        """
        return 0

    def saved_bytes(self, load: Load, network: Network) -> int:
        """Return what a rank's checkpoints hold of it beside weights and optimizer."""
        return 0


def after_backward(load: Load, size_bytes: int, timed: Timed, **work: float) -> Message:
    return Message(load.count, size_bytes, timed, **work)


def in_groups(
    groups: Sequence[int],
    sizes_bytes: Sequence[int],
    price: Price | Callable[[int], Timed],
    *,
    before_s: float = 0.0,
    after_s: float = 0.0,
) -> tuple[Message, ...]:
    """Return a message for each group of tensors; the work is shared out by bytes."""
    messages, first = [], 0
    total = max(1, sum(sizes_bytes))
    for count in groups:
        last = first + count
        size = sum(sizes_bytes[first:last])
        share = size / total
        messages.append(Message(last, size, price(size), before_s * share, after_s * share))
        first = last
    return tuple(messages)
