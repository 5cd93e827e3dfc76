"""The communication of one step, as a strategy plans it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from skindx.planning.flow import Flow
from skindx.planning.network import Timed


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
class Schedule:
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
    note: str = ""
    flow: Flow | None = None
    """The whole step, where layers are shared out over ranks; all of the above is then in it."""
    precondition_s: float = 0.0
    """Work on the gradients once they are summed, a step on average."""
    preconditions: tuple[Message, ...] = ()
    """And what is sent for it, one after the other."""

    def scaled(self, factor: float) -> "Schedule":
        """Return the schedule whose messages take `factor` times as long on the wire."""
        flow = self.flow.slower(wire=factor) if self.flow else None
        return replace(self._timed(lambda timed: timed.scaled(factor)), flow=flow)

    @property
    def latency_sd_s(self) -> float:
        """Seconds by which the latencies of all messages may differ together."""
        every = (*self.gathers, *self.messages, *self.spreads, *self.preconditions)
        return sum(message.timed.latency_sd_s for message in every)

    def later(self) -> "Schedule":
        """Return the schedule whose messages have latencies a standard deviation longer."""
        return self._timed(Timed.later)

    def _timed(self, change: Callable[[Timed], Timed]) -> "Schedule":
        """Return the schedule with another time for each message."""

        def changed(messages: tuple[Message, ...]) -> tuple[Message, ...]:
            return tuple(replace(message, timed=change(message.timed)) for message in messages)

        return replace(
            self,
            messages=changed(self.messages),
            gathers=changed(self.gathers),
            spreads=changed(self.spreads),
            preconditions=changed(self.preconditions),
        )

    def computing_slower(self, *, compute: float = 1.0, update: float = 1.0) -> "Schedule":
        """Return the schedule with what its flow computes and updates taking so much longer."""
        if not self.flow:
            return self
        return replace(self, flow=self.flow.slower(compute=compute, update=update))

    def with_local(self, factor: float) -> "Schedule":
        """Return the schedule whose work of the cores takes `factor` times as long."""
        messages = tuple(
            replace(message, before_s=message.before_s * factor, after_s=message.after_s * factor)
            for message in self.messages
        )
        return replace(
            self,
            messages=messages,
            finish_s=self.finish_s * factor,
            precondition_s=self.precondition_s * factor,
        )

    @property
    def local_s(self) -> float:
        """All work of the cores."""
        return self.finish_s + sum(message.before_s + message.after_s for message in self.messages)

    @property
    def sent_bytes(self) -> int:
        """Bytes of all messages, as collectives count them."""
        every = (*self.gathers, *self.messages, *self.spreads, *self.preconditions)
        own = self.flow.border_bytes + self.flow.gradient_bytes if self.flow else 0
        return own + sum(message.size_bytes for message in every)
