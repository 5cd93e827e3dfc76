"""Cells one after the other as a flow: all ranks alike, so that one stands for all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from skindx.planning.events import Resource, Task, run
from skindx.planning.flow import MANY, Feeding, Flow, Step
from skindx.planning.network import Timed
from skindx.planning.parallel.cells import Border, Cell, Launch, step_seconds

_ORDER = ("read", "forward", "backward", "communicate", "update")


@dataclass(frozen=True)
class Chain(Flow):
    """A step of cells in forward order."""

    cells: tuple[Cell, ...]
    launches: tuple[Launch, ...]
    """Gradients, in the order in which they leave."""
    timed: tuple[Timed, ...]
    """Seconds of each launch."""
    update_s: float
    """Of the weights that a rank holds."""

    @property
    def border_bytes(self) -> int:
        """Bytes that a rank sends over the borders."""
        return sum(border.sent_bytes for cell in self.cells for border in cell.borders)

    @property
    def gradient_bytes(self) -> int:
        """Of the gradients that it sums with others."""
        return sum(launch.size_bytes for launch in self.launches)

    def slower(self, *, compute: float = 1.0, wire: float = 1.0, update: float = 1.0) -> "Chain":
        """Return the chain with each of these taking so many times as long."""
        return Chain(
            tuple(_slower(cell, compute, wire) for cell in self.cells),
            self.launches,
            tuple(timed.scaled(wire) for timed in self.timed),
            self.update_s * update,
        )

    def run(
        self, *, device: Literal["cpu", "cuda"], slots: int, pieces: int, feeding: Feeding
    ) -> Step:
        """Simulate a step; borders are crossed in each of its pieces."""
        build = _Tasks("cores" if device == "cpu" else "device")
        if feeding.read_s:
            build.add("read", "cores", feeding.read_s)
        if feeding.copy_s:
            build.add("copy", "copier", feeding.copy_s)
        for piece in range(pieces):
            self._piece(build, last=piece == pieces - 1)
        last = build.add("update", build.compute, self.update_s, [*build.last, *build.sent])
        cores = Resource("cores", slots=MANY, shared=device == "cpu")
        link = Resource("link", slots=slots, shared=True)
        spans = run(build.tasks, [cores, link, Resource("device"), Resource("copier")])
        parts = dict.fromkeys(_ORDER, 0.0)
        for task, span in zip(build.tasks, spans, strict=True):
            if task.name in ("forward", "backward", "update"):
                parts[task.name] += span.end_s - span.begin_s
        parts["communicate"] = max(0.0, spans[last].end_s - sum(parts.values()))
        step = Step(tuple(build.tasks), tuple(spans))
        parts["read"] = max(0.0, step.seconds - sum(parts.values()))
        return Step(step.tasks, step.spans, parts)

    def _piece(self, build: "_Tasks", *, last: bool) -> None:
        for cell in self.cells:
            build.cross(cell.before_forward)
            build.compute_for("forward", cell.forward_s)
            build.cross(cell.after_forward)
        launched: dict[int, list[int]] = {}
        for place, launch in enumerate(self.launches if last else ()):
            launched.setdefault(launch.cell, []).append(place)
        for number in range(len(self.cells) - 1, -1, -1):
            cell = self.cells[number]
            build.cross(cell.before_backward)
            build.compute_for("backward", cell.backward_s)
            for place in launched.get(number, []):
                build.send(f"gradients {place}", self.timed[place])
            build.cross(cell.after_backward)


class _Tasks:
    """Collects tasks; each waits for the last one of the rank's own row."""

    def __init__(self, compute: str) -> None:
        self.tasks: list[Task] = []
        self.compute = compute
        self.last: list[int] = []
        self.sent: list[int] = []
        """Messages that only the update waits for."""

    def add(
        self, name: str, resource: str, work_s: float, after: Sequence[int] = (), late_s: float = 0
    ) -> int:
        self.tasks.append(Task(name, resource, work_s, tuple(after), late_s))
        return len(self.tasks) - 1

    def compute_for(self, name: str, seconds: float) -> None:
        if seconds:
            self.last = [self.add(name, self.compute, seconds, self.last)]

    def cross(self, borders: Sequence[Border]) -> None:
        for border in borders:
            if border.timed.alone_s:
                self.last = self._wire(border.name, border.timed)

    def send(self, name: str, timed: Timed) -> None:
        self.sent += self._wire(name, timed)

    def _wire(self, name: str, timed: Timed) -> list[int]:
        ends = [self.add(name, "link", timed.wire_s, self.last, timed.latency_s)]
        if timed.cpu_s:
            ends.append(self.add(f"push {name}", "cores", timed.cpu_s, self.last))
        return ends


def _slower(cell: Cell, compute: float, wire: float) -> Cell:
    if wire == 1.0:
        return replace(
            cell, forward_s=cell.forward_s * compute, backward_s=cell.backward_s * compute
        )

    def longer(borders: tuple[Border, ...]) -> tuple[Border, ...]:
        return tuple(replace(border, timed=border.timed.scaled(wire)) for border in borders)

    return replace(
        cell,
        forward_s=cell.forward_s * compute,
        backward_s=cell.backward_s * compute,
        before_forward=longer(cell.before_forward),
        after_forward=longer(cell.after_forward),
        before_backward=longer(cell.before_backward),
        after_backward=longer(cell.after_backward),
    )


def chain_of(
    cells: Sequence[Cell], message: Callable[[int, int], Timed], own_s_per_byte: float
) -> Chain:
    """Return the flow of some cells, with their gradients as `step_seconds` sends them.

    `message` gives what a sum of gradients takes, of (axis, bytes).
    """
    launches: list[Launch] = []
    step_seconds(cells, lambda axis, size: message(axis, size).alone_s, own_s_per_byte, launches)
    timed = tuple(message(launch.axis, launch.size_bytes) for launch in launches)
    weights = sum(cell.weight_bytes for cell in cells)
    return Chain(tuple(cells), tuple(launches), timed, own_s_per_byte * weights)
