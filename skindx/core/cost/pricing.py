"""What a way of training costs in a step: messages with their times, work of the cores, memory."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from skindx.core.cost.network import Network as Network  # noqa: PLC0414 (of every price)
from skindx.core.cost.network import Price, Timed
from skindx.core.cost.profile import LocalWork, Profile, Trace
from skindx.core.cost.step import Message
from skindx.core.cost.step import StepSchedule as StepSchedule  # noqa: PLC0414 (of every price)

UNMEASURED_LOCAL = 0.5
"""Standard deviation, over the mean, of local work that was not measured."""

_MERGE_S_PER_ELEMENT = 1e-8
"""For each element that another rank sends and that is merged in."""

_GPU_FASTER = 30
"""All of it is bound by memory, which a GPU has so much faster than a core."""


@dataclass(frozen=True)
class Load:
    """Input of a price: the tensors of a step and their network."""

    trace: Trace
    """At the batch of the step; sizes as fp32."""
    profile: Profile
    device: Literal["cpu", "cuda"] = "cpu"
    images: int = 1
    """Of a rank in a piece."""
    pieces: int = 1
    factor: float = 1.0
    """Of computing, as it was learnt; it is in the trace already."""
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
    """One way of training, as a plan compares it with others."""

    name: ClassVar[str]
    lossy: bool = False
    """It changes the gradient, and so the training."""
    zero: ClassVar[int] = 0
    parallel: ClassVar[bool] = False
    """It shares out layers over ranks, and not their images alone."""
    searched: ClassVar[tuple[dict[str, Any], ...]] = ({},)
    """Options of the rows that a search looks at."""

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
