"""Tasks on resources, simulated as events, and one step as a graph of them.

Read, forward, backward, communicate, update: the DAG model of synchronous SGD (Shi et al. 2018,
arXiv 1805.03812), on resources that are exclusive or shared: a GPU computes alone, the cores of a
CPU also read images and push bytes.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from skindx.core.cost.pricing import Message, Network, StepSchedule, Timed
from skindx.core.cost.profile import Trace

PAPER = (
    "DAG model of a step | Shi et al., A DAG Model of Synchronous Stochastic Gradient "
    "Descent in Distributed Deep Learning, arXiv 1805.03812, 2018 | "
    "methods/tests/test_events.py | docs/measured/plan-public.json"
)


@dataclass(frozen=True)
class Resource:
    """A resource: does `slots` tasks at once, in the order in which they became ready."""

    name: str
    slots: int = 1
    shared: bool = False
    """Whether the tasks at work share its speed, 1/n each; else each has all of it."""


@dataclass(frozen=True)
class StepTask:
    """A piece of work on one resource."""

    name: str
    resource: str
    work_s: float
    """Seconds that it takes alone."""
    after: tuple[int, ...] = ()
    """Tasks, by their places in the list, that must be done before."""
    latency_s: float = 0.0
    """Seconds before the work that hold a slot and are not slowed down by others."""
    not_before_s: float = 0.0
    """Earliest start in seconds, counted from the start of the step."""


@dataclass(frozen=True)
class Span:
    """When a task began and ended, s."""

    begin_s: float
    end_s: float


def run(tasks: Sequence[StepTask], resources: Sequence[Resource]) -> list[Span]:
    """Return the span of each task. Raises ValueError for tasks that wait for one another."""
    run_of = _Run(tasks, {resource.name: _State(resource) for resource in resources})
    return run_of.to_the_end()


class _State:
    """A resource at work.

    A shared one keeps a clock of its own that passes 1/n as fast with n tasks at work: a task is
    done when that clock has moved on by its work, whichever others started or ended.
    """

    def __init__(self, resource: Resource) -> None:
        self.slots, self.shared = resource.slots, resource.shared
        self.waiting: deque[int] = deque()
        self.held = 0
        self.working: list[tuple[float, int]] = []  # (its clock when done, task)
        self.clock_s = self.seen_s = 0.0
        self.version = 0

    def advance(self, now_s: float) -> None:
        """Move the resource's clock on."""
        if self.working:
            self.clock_s += (now_s - self.seen_s) / len(self.working)
        self.seen_s = now_s

    def next_end_s(self) -> float:
        """Return when the first task at work will be done, if nothing changes."""
        return self.seen_s + max(0.0, self.working[0][0] - self.clock_s) * len(self.working)


_READY, _LATE, _DONE, _CHECK = range(4)


class _Run:
    def __init__(self, tasks: Sequence[StepTask], states: dict[str, _State]) -> None:
        self.tasks, self.states = tasks, states
        self.missing = [len(task.after) for task in tasks]
        self.then: list[list[int]] = [[] for _ in tasks]
        for number, task in enumerate(tasks):
            for earlier in task.after:
                self.then[earlier].append(number)
        self.begin_s, self.end_s = [0.0] * len(tasks), [-1.0] * len(tasks)
        self.events: list[tuple[float, int, int, int, str]] = []
        self.order = count()
        for number, task in enumerate(tasks):
            if not task.after:
                self._push(task.not_before_s, _READY, number)

    def _push(self, at_s: float, kind: int, number: int, resource: str = "") -> None:
        heapq.heappush(self.events, (at_s, next(self.order), kind, number, resource))

    def to_the_end(self) -> list[Span]:
        left = len(self.tasks)
        while self.events:
            now_s, _, kind, number, name = heapq.heappop(self.events)
            if kind == _CHECK:
                left -= self._check(now_s, name, number)
                continue
            task = self.tasks[number]
            state = self.states[task.resource]
            if kind == _READY:
                state.waiting.append(number)
                self._start(now_s, state)
            elif kind == _LATE:
                self._work(now_s, number, task, state)
            else:
                left -= 1
                self._finish(now_s, number, state)
        if left:
            stuck = [
                task.name for task, end_s in zip(self.tasks, self.end_s, strict=True) if end_s < 0
            ]
            raise ValueError(
                f"{', '.join(stuck[:3])} wait for each other, but a graph must not have a cycle."
            )
        return [Span(*times) for times in zip(self.begin_s, self.end_s, strict=True)]

    def _start(self, now_s: float, state: _State) -> None:
        while state.waiting and state.held < state.slots:
            number = state.waiting.popleft()
            task = self.tasks[number]
            state.held += 1
            self.begin_s[number] = now_s
            if not state.shared:
                self._push(now_s + (task.latency_s + task.work_s), _DONE, number)
            elif task.latency_s:
                self._push(now_s + task.latency_s, _LATE, number)
            else:
                self._work(now_s, number, task, state)

    def _work(self, now_s: float, number: int, task: StepTask, state: _State) -> None:
        state.advance(now_s)
        heapq.heappush(state.working, (state.clock_s + task.work_s, number))
        self._watch(task.resource, state)

    def _watch(self, name: str, state: _State) -> None:
        state.version += 1
        if state.working:
            self._push(state.next_end_s(), _CHECK, state.version, name)

    def _check(self, now_s: float, name: str, version: int) -> int:
        """End what a shared resource has done by now; return how many tasks."""
        state = self.states[name]
        if version != state.version:
            return 0
        state.advance(now_s)
        state.clock_s = max(state.clock_s, state.working[0][0])
        done = []
        while state.working and state.working[0][0] <= state.clock_s:
            done.append(heapq.heappop(state.working)[1])
        for number in done:
            self._finish(now_s, number, state)
        self._watch(name, state)
        return len(done)

    def _finish(self, now_s: float, number: int, state: _State) -> None:
        self.end_s[number] = now_s
        state.held -= 1
        for later in self.then[number]:
            self.missing[later] -= 1
            if not self.missing[later]:
                self._push(max(now_s, self.tasks[later].not_before_s), _READY, later)
        self._start(now_s, state)


MANY = 1 << 30
"""Slots of a resource that is only ever shared."""


@dataclass(frozen=True)
class Feeding:
    """Processor seconds of the images of a step, over all of a rank's cores; read a step ahead."""

    read_s: float = 0.0


@dataclass(frozen=True)
class Step:
    """A simulated step of one rank."""

    tasks: tuple[StepTask, ...]
    spans: tuple[Span, ...]
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds that sum to the step: read, forward, backward, communicate, update; precondition and
    idle where there is any."""

    @property
    def seconds(self) -> float:
        """Time from the first forward to the start of the next one."""
        return max(span.end_s for span in self.spans)


class StepTasks:
    """Collects the tasks of a rank's step; each method that adds some returns their places."""

    def __init__(self, device: Literal["cpu", "cuda"], feeding: Feeding) -> None:
        """Begin with what feeds the images of the next step."""
        self.tasks: list[StepTask] = []
        self.device = device
        self.compute = "cores" if device == "cpu" else "device"
        if feeding.read_s:
            self.add("read", "cores", feeding.read_s)

    def add(
        self,
        name: str,
        resource: str,
        work_s: float,
        after: Sequence[int] = (),
        latency_s: float = 0.0,
    ) -> int:
        """Add one task."""
        self.tasks.append(StepTask(name, resource, work_s, tuple(after), latency_s))
        return len(self.tasks) - 1

    def send(self, name: str, timed: Timed, after: Sequence[int]) -> list[int]:
        """Add a message, and what the cores push over the link for it."""
        ends = [self.add(name, "link", timed.wire_s, after, timed.latency_s)]
        if timed.cpu_s:
            ends.append(self.add(f"push {name}", "cores", timed.cpu_s, after))
        return ends

    def run(self, slots: int) -> list[Span]:
        """Return the span of each task; `slots` messages are on the link at once."""
        # Reads share the cores of a CPU with all else; of a GPU's node they have them.
        cores = Resource("cores", slots=MANY, shared=self.device == "cpu")
        link = Resource("link", slots=slots, shared=True)
        return run(self.tasks, [cores, link, Resource("device")])


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
        slots = network.slots
        whole: Step = schedule.flow.run(device=device, slots=slots, pieces=pieces, feeding=feeding)
        return whole
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
    spans = build.run(network.slots)
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
