"""One step as a graph of tasks: read, forward, backward, communicate, update.

The DAG model of synchronous SGD (Shi et al. 2018, arXiv 1805.03812), on resources that are
exclusive or shared: a GPU computes alone, the cores of a CPU also read images and push bytes.
`simulate` is the special case of one link that carries one message at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from skindx.core.cost.cells import Chain
from skindx.core.cost.events import Feeding, Resource, Step, StepTask, StepTasks, run
from skindx.core.cost.network import Network, Timed
from skindx.core.cost.profile import Trace

PAPER = (
    "DAG model of a step | Shi et al., A DAG Model of Synchronous Stochastic Gradient "
    "Descent in Distributed Deep Learning, arXiv 1805.03812, 2018 | "
    "tests/plan/test_events.py | docs/measured/plan-public.json"
)


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
    flow: Chain | None = None
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


def _add_message(build: StepTasks, name: str, message: Message, after: Sequence[int]) -> list[int]:
    """Add the work before, the message itself, and the work after; return where all is done."""
    if message.before_s:
        after = [build.add(f"prepare {name}", build.compute, message.before_s, after)]
    ends = build.send(name, message.timed, after)
    if message.after_s:
        ends = [build.add(f"take in {name}", build.compute, message.after_s, ends)]
    return ends


_UNFED = Feeding()


def simulate_step(
    trace: Trace,
    schedule: StepSchedule,
    network: Network,
    *,
    device: Literal["cpu", "cuda"] = "cuda",
    pieces: int = 1,
    feeding: Feeding = _UNFED,
) -> Step:
    """Return one step; `trace` is that of one of its `pieces`, of which the last is exchanged.

    On a CPU the cores are one shared resource: what reads, computes and pushes slows down what
    does so at the same time. On a GPU computing has it to itself.
    """
    if schedule.flow:
        slots = network.cluster.slots
        return schedule.flow.run(device=device, slots=slots, pieces=pieces, feeding=feeding)
    build = StepTasks(device, feeding)
    compute = build.compute
    forward_s, backward_s = trace.forward_s, sum(trace.backward_s)
    before: list[int] = []
    for number, gather in enumerate(schedule.gathers):
        before = _add_message(build, f"gather {number}", gather, before)
    for _ in range(pieces - 1):
        before = [build.add("forward", compute, forward_s, before)]
        before = [build.add("backward", compute, backward_s, before)]
    last = build.add("forward", compute, forward_s, before)
    last_forward = last
    done: list[int] = []
    ended: list[int] = []
    start = 0
    # Backward in as many pieces as there are messages: one begins where a message may go.
    for number, message in enumerate(schedule.messages):
        if message.tensors > start:
            seconds = sum(trace.backward_s[start : message.tensors])
            last = build.add("backward", compute, seconds, [last])
            start = message.tensors
        after = [last, *(ended if schedule.serial else [])]
        ended = _add_message(build, f"communicate {number}", message, after)
        done += ended
    if start < len(trace.names):
        last = build.add("backward", compute, sum(trace.backward_s[start:]), [last])
    backward_end = last
    last = build.add("finish", compute, schedule.finish_s, [last, *done])
    finish = last
    last = build.add("update", compute, trace.update_s * schedule.update_share, [last])
    ends = [last]
    for number, spread in enumerate(schedule.spreads):
        ends = _add_message(build, f"spread {number}", spread, ends)
    tasks = tuple(build.tasks)
    spans = build.run(network.cluster.slots)
    sent_s = max(spans[end].end_s for end in ends)
    forward, backward, updated = spans[last_forward], spans[backward_end], spans[last]
    gathered_s = min(
        span.begin_s for task, span in zip(tasks, spans, strict=True) if task.name == "forward"
    )
    parts = {
        "forward": forward.end_s - forward.begin_s + (pieces - 1) * forward_s,
        "backward": backward.end_s - forward.end_s + (pieces - 1) * backward_s,
        "communicate": gathered_s + spans[finish].end_s - backward.end_s + sent_s - updated.end_s,
        "update": updated.end_s - spans[finish].end_s,
    }
    step = Step(tasks, tuple(spans))
    parts["read"] = max(0.0, step.seconds - sum(parts.values()))
    return Step(tasks, tuple(spans), {key: parts[key] for key in _ORDER})


_ORDER = ("read", "forward", "backward", "communicate", "update")


def step_s(trace: Trace, schedule: StepSchedule, network: Network) -> float:
    """Return the seconds of a step that waits for no images and shares no cores."""
    return simulate_step(trace, schedule, network).seconds


_LINK = Resource("link")


@dataclass(frozen=True)
class Sending:
    """One group of tensors on its way; times count from the start of the iteration."""

    tensors: int
    size_bytes: int
    ready_s: float
    """Its last gradient is complete."""
    begin_s: float
    """The groups before it are through."""
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """When each group was sent, and when the iteration ended."""

    groups: tuple[Sending, ...]
    backward_end_s: float
    finish_s: float
    """After the update."""


def simulate(trace: Trace, groups: Sequence[int], cost: Callable[[float], float]) -> Timeline:
    """Send each group once it is complete and the one before is through; then update.

    `groups` says how many tensors each has, in backward order; `cost` gives seconds of bytes.
    MG-WFBP's recurrences (Shi et al. 2018, arXiv 1811.11141). Raises ValueError.
    """
    if min(groups, default=0) < 1 or sum(groups) != len(trace.names):
        raise ValueError(
            f"groups {list(groups)} do not share out the {len(trace.names)} tensors of the trace."
        )
    ready_s, tasks, sizes, first = trace.ready_s, [], [], 0
    for last in accumulate(groups):
        sizes.append(sum(trace.sizes_bytes[first:last]))
        tasks.append(StepTask("group", "link", cost(sizes[-1]), not_before_s=ready_s[last - 1]))
        first = last
    sendings = tuple(
        Sending(tensors, size, task.not_before_s, span.begin_s, span.end_s)
        for tensors, size, task, span in zip(groups, sizes, tasks, run(tasks, [_LINK]), strict=True)
    )
    return Timeline(sendings, ready_s[-1], sendings[-1].end_s + trace.update_s)
