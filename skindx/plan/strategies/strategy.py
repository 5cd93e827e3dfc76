"""Interface of a strategy: messages of a step with their times, work, and memory."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from skindx.core.cost.cluster import Kind
from skindx.core.cost.network import Network, Timed
from skindx.core.cost.profile import LocalWork, Profile, Trace
from skindx.core.cost.step import Message, Schedule

UNMEASURED_LOCAL = 0.5
"""Standard deviation, over the mean, of local work that was not measured."""

_SECONDS_PER_ELEMENT = {
    "dense": 1.2e-9,
    "fused": 0.3e-9,
    "factored": 0.3e-9,
    "bf16": 0.6e-9,
    "hierarchical": 0.3e-9,
    "multicolor": 0.6e-9,
    "topk": 2.5e-9,
    "gtopk": 2.5e-9,
    "powersgd": 6e-9,
}
"""Where a trace has no local work: of one core of a server, as `skindx bench exchange` shows."""

_MERGE_S_PER_ELEMENT = 1e-8
"""For each element that another rank sends and that is merged in."""


_GPU_FASTER = 30
"""All of it is bound by memory, which a GPU has so much faster than a core."""


@dataclass(frozen=True)
class Load:
    """Input of a strategy: the tensors of a step and their network."""

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
        """How many tensors there are."""
        return len(self.trace.names)

    @property
    def size_bytes(self) -> int:
        """The whole gradient, as fp32."""
        return sum(self.trace.sizes_bytes)

    def local(self, kind: str) -> LocalWork:
        """Return an exchange's work of the cores, measured or usual."""
        if kind in self.profile.local:
            return self.profile.local[kind]
        elements = self.size_bytes // 4 / (_GPU_FASTER if self.device == "cuda" else 1)
        return LocalWork(
            base_s=_SECONDS_PER_ELEMENT[kind] * elements,
            merge_s=_MERGE_S_PER_ELEMENT * elements * 0.001,
            spread=UNMEASURED_LOCAL,
            density=0.001,
        )


class Strategy(ABC):
    """One way of training."""

    name: ClassVar[str]
    lossy: ClassVar[bool] = False
    """It changes the gradient, and so the training."""
    zero: ClassVar[int] = 0
    parallel: ClassVar[bool] = False
    """It shares out layers over ranks, and not their images alone."""

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        """`options` are settings of the exchange, without its kind."""
        self.options = dict(options or {})

    @property
    def label(self) -> str:
        """Its name with what it was given."""
        given = ", ".join(
            f"{key} given" if isinstance(value, dict | list | tuple) else f"{key} {value}"
            for key, value in self.options.items()
            if key != "tune"
        )
        return f"{self.name} ({given})" if given else self.name

    @property
    def executed(self) -> bool:
        """Tell whether `skindx train` of this version does so."""
        return True

    @abstractmethod
    def schedule(self, load: Load, network: Network) -> Schedule:
        """Return the communication of a step."""

    @abstractmethod
    def fragment(self) -> dict[str, Any]:
        """Return the settings with which `skindx train` does so."""

    def memory_bytes(self, load: Load, network: Network, images: int) -> int:
        """Return what it needs beside weights, gradients and optimizer; below 0: it saves.

        `images` are those of a rank in a piece.
        """
        return 0


def after_backward(load: Load, size_bytes: int, timed: Timed, **work: float) -> Message:
    """Return a message that waits for all tensors."""
    return Message(load.count, size_bytes, timed, **work)


def in_groups(
    load: Load,
    groups: Sequence[int],
    sizes_bytes: Sequence[int],
    network: Network,
    kind: Kind,
    *,
    before_s: float = 0.0,
    after_s: float = 0.0,
    **options: int,
) -> tuple[Message, ...]:
    """Return a message for each group; the work is shared out by bytes."""
    price, messages, first = network.price(kind, **options), [], 0
    total = max(1, sum(sizes_bytes))
    for count in groups:
        last = first + count
        size = sum(sizes_bytes[first:last])
        share = size / total
        messages.append(Message(last, size, price(size), before_s * share, after_s * share))
        first = last
    return tuple(messages)
