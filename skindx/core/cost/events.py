"""Tasks on resources, simulated as events, and the step that they make."""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from skindx.core.cost.network import Timed


@dataclass(frozen=True)
class Resource:
    """A resource: does `slots` tasks at once, in the order in which they became ready."""

    name: str
    slots: int = 1
    shared: bool = False
    """The tasks at work share its speed, 1/n each; else each of them has all of it."""


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
    """Passes before the work and holds a slot, but is not slowed down by others."""
    not_before_s: float = 0.0
    """It is not ready earlier, counted from the start."""


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
            raise ValueError(f"{', '.join(stuck[:3])} wait for one another; a graph has no cycle.")
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
        """From the first forward to where the next one can begin."""
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
