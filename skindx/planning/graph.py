"""One step as a graph of tasks: read, copy, forward, backward, communicate, update.

The DAG model of synchronous SGD (Shi et al. 2018, arXiv 1805.03812), on resources that are
exclusive or shared: a GPU computes alone, the cores of a CPU also read images and push bytes.
"""

from collections.abc import Sequence
from typing import Literal

from skindx.planning.events import Resource, Task, run
from skindx.planning.flow import MANY, Feeding, Step
from skindx.planning.network import Network
from skindx.planning.schedule import Message, Schedule
from skindx.planning.trace import Trace


class _Builder:
    """Collects tasks; `add` returns the place of the new one."""

    def __init__(self, compute: str) -> None:
        self.tasks: list[Task] = []
        self.compute = compute

    def add(
        self,
        name: str,
        resource: str,
        work_s: float,
        after: Sequence[int] = (),
        latency_s: float = 0.0,
    ) -> int:
        self.tasks.append(Task(name, resource, work_s, tuple(after), latency_s))
        return len(self.tasks) - 1

    def message(self, name: str, message: Message, after: Sequence[int]) -> list[int]:
        """Add the work before, the wire with what the cores push over it, and the work after."""
        if message.before_s:
            after = [self.add(f"prepare {name}", self.compute, message.before_s, after)]
        timed = message.timed
        ends = [self.add(name, "link", timed.wire_s, after, timed.latency_s)]
        if timed.cpu_s:
            ends.append(self.add(f"push {name}", "cores", timed.cpu_s, after))
        if message.after_s:
            ends = [self.add(f"take in {name}", self.compute, message.after_s, ends)]
        return ends

    def precondition(self, schedule: Schedule, last: int) -> int:
        """Add the work on summed gradients and its messages; return where both are done."""
        ends = [self.add("precondition", self.compute, schedule.precondition_s, [last])]
        for number, message in enumerate(schedule.preconditions):
            ends = self.message(f"factors {number}", message, ends)
        return self.add("preconditioned", self.compute, 0.0, ends)


_UNFED = Feeding()


def simulate_step(
    trace: Trace,
    schedule: Schedule,
    network: Network,
    *,
    device: Literal["cpu", "cuda"] = "cuda",
    pieces: int = 1,
    feeding: Feeding = _UNFED,
) -> Step:
    """Return one step; `trace` is that of one of its `pieces`, of which the last is exchanged.

    On a CPU the cores are one shared resource: what reads, computes and pushes slows down what
    does so at the same time. On a GPU computing and copying have it to themselves.
    """
    if schedule.flow:
        slots = network.cluster.slots
        return schedule.flow.run(device=device, slots=slots, pieces=pieces, feeding=feeding)
    compute = "cores" if device == "cpu" else "device"
    build = _Builder(compute)
    forward_s, backward_s = trace.forward_s, sum(trace.backward_s)
    if feeding.read_s:
        build.add("read", "cores", feeding.read_s)
    if feeding.copy_s:
        build.add("copy", "copier", feeding.copy_s)
    before: list[int] = []
    for number, gather in enumerate(schedule.gathers):
        before = build.message(f"gather {number}", gather, before)
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
        ended = build.message(f"communicate {number}", message, after)
        done += ended
    if start < len(trace.names):
        last = build.add("backward", compute, sum(trace.backward_s[start:]), [last])
    backward_end = last
    last = build.add("finish", compute, schedule.finish_s, [last, *done])
    finish = preconditioned = last
    if schedule.precondition_s or schedule.preconditions:
        last = preconditioned = build.precondition(schedule, last)
    last = build.add("update", compute, trace.update_s * schedule.update_share, [last])
    ends = [last]
    for number, spread in enumerate(schedule.spreads):
        ends = build.message(f"spread {number}", spread, ends)
    tasks = tuple(build.tasks)
    # Reads share the cores of a CPU with all else; of a GPU's node they have them.
    cores = Resource("cores", slots=MANY, shared=device == "cpu")
    link = Resource("link", slots=network.cluster.slots, shared=True)
    spans = run(tasks, [cores, link, Resource("device"), Resource("copier")])
    sent_s = max(spans[end].end_s for end in ends)
    forward, backward, updated = spans[last_forward], spans[backward_end], spans[last]
    gathered_s = min(
        span.begin_s for task, span in zip(tasks, spans, strict=True) if task.name == "forward"
    )
    parts = {
        "forward": forward.end_s - forward.begin_s + (pieces - 1) * forward_s,
        "backward": backward.end_s - forward.end_s + (pieces - 1) * backward_s,
        "communicate": gathered_s + spans[finish].end_s - backward.end_s + sent_s - updated.end_s,
        "update": updated.end_s - spans[preconditioned].end_s,
    }
    if preconditioned != finish:
        parts["precondition"] = spans[preconditioned].end_s - spans[finish].end_s
    step = Step(tasks, tuple(spans))
    parts["read"] = max(0.0, step.seconds - sum(parts.values()))
    return Step(tasks, tuple(spans), {key: parts[key] for key in _ORDER if key in parts})


_ORDER = ("read", "forward", "backward", "communicate", "precondition", "update")


def step_s(trace: Trace, schedule: Schedule, network: Network) -> float:
    """Return the seconds of a step that waits for no images and shares no cores."""
    return simulate_step(trace, schedule, network).seconds
