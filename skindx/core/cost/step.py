"""The communication of one step, as a price says it; `events` simulates the step."""

from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, Self

from skindx.core.cost.network import Timed


class Flow(Protocol):
    """A whole step whose ranks wait for each other inside the network."""

    @property
    def border_bytes(self) -> int:
        """Bytes that go from layer to layer."""

    @property
    def gradient_bytes(self) -> int:
        """Bytes of gradients."""

    def slower(self, *, compute: float = 1.0, update: float = 1.0, wire: float = 1.0) -> Self:
        """Return the flow that takes so many times as long."""

    def run(self, *, device: Literal["cpu", "cuda"], slots: int, pieces: int, feeding: Any) -> Any:
        """Return the step, as `events.simulate_step` does."""


@dataclass(frozen=True)
class Message:
    """A collective of a step, in plan order."""

    tensors: int
    """It may begin once so many tensors are complete, in backward order."""
    size_bytes: int
    timed: Timed
    before_s: float = 0.0
    """Work of the rank's cores before it is sent."""
    after_s: float = 0.0
    """And after it has come."""


@dataclass(frozen=True)
class StepSchedule:
    """The communication of one step."""

    messages: tuple[Message, ...] = ()
    gathers: tuple[Message, ...] = ()
    """Before forward, which waits for them."""
    spreads: tuple[Message, ...] = ()
    """After the update, of the ranks' parts of the weights."""
    serial: bool = False
    """One message at a time, whatever the backend could do."""
    finish_s: float = 0.0
    """Work after the last message."""
    update_share: float = 1.0
    """Of the weights that a rank updates."""
    spread: float = 0.0
    """How sure the messages are: standard deviation over the mean."""
    local_spread: float = 0.0
    """How sure the work of the cores is."""
    measured: bool = True
    """The collective was measured on this cluster, among as many ranks."""
    flow: Flow | None = None
    """The whole step, where layers are shared out over ranks; all of the above is then in it."""

    def scaled(self, factor: float) -> "StepSchedule":
        """Return the schedule whose messages take `factor` times as long on the wire."""

        def scaled(messages: tuple[Message, ...]) -> tuple[Message, ...]:
            return tuple(replace(one, timed=one.timed.scaled(factor)) for one in messages)

        return replace(
            self,
            messages=scaled(self.messages),
            gathers=scaled(self.gathers),
            spreads=scaled(self.spreads),
            flow=self.flow.slower(wire=factor) if self.flow else None,
        )

    def computing_slower(self, *, compute: float = 1.0, update: float = 1.0) -> "StepSchedule":
        """Return the schedule with what its flow computes and updates taking so much longer."""
        if not self.flow:
            return self
        return replace(self, flow=self.flow.slower(compute=compute, update=update))

    def with_local(self, factor: float) -> "StepSchedule":
        """Return the schedule whose work of the cores takes `factor` times as long."""
        messages = tuple(
            replace(message, before_s=message.before_s * factor, after_s=message.after_s * factor)
            for message in self.messages
        )
        return replace(self, messages=messages, finish_s=self.finish_s * factor)

    @property
    def local_s(self) -> float:
        """All work of the cores."""
        return self.finish_s + sum(message.before_s + message.after_s for message in self.messages)

    @property
    def sent_bytes(self) -> int:
        """Bytes of all messages, as collectives count them."""
        every = (*self.gathers, *self.messages, *self.spreads)
        flow_bytes = self.flow.border_bytes + self.flow.gradient_bytes if self.flow else 0
        return flow_bytes + sum(message.size_bytes for message in every)
