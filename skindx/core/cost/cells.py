"""Operators as they are placed on the ranks, and what a step of them takes.

All ranks do the same at the same time, so one of them stands for all. At the borders of an operator
computing waits for messages; gradients of replicated weights travel beside backward.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

from skindx.core.cost.events import Feeding, Flow, Step, StepTasks
from skindx.core.cost.network import Timed


@dataclass(frozen=True)
class CellBorder:
    """A collective that computing waits for."""

    name: str
    axis: str
    sent_bytes: int
    """By each rank."""
    timed: Timed


@dataclass(frozen=True)
class Cell:
    """One operator on one rank."""

    name: str
    forward_s: float
    backward_s: float
    weight_bytes: int
    """That the rank holds and updates."""
    gradient_axis: int = 1
    """Neighbouring ranks that hold different weights: gradients are summed over all others."""
    gradient_bytes: int = 0
    """That are summed with other ranks' gradients; 0 where no other rank has the same weights."""
    before_forward: tuple[CellBorder, ...] = ()
    after_forward: tuple[CellBorder, ...] = ()
    before_backward: tuple[CellBorder, ...] = ()
    after_backward: tuple[CellBorder, ...] = ()

    @cached_property
    def borders(self) -> tuple[CellBorder, ...]:
        return (
            *self.before_forward,
            *self.after_forward,
            *self.before_backward,
            *self.after_backward,
        )

    @cached_property
    def whole_forward_s(self) -> float:
        """With its borders: nothing else is on the links in forward."""
        return self.forward_s + _alone_s((*self.before_forward, *self.after_forward))

    @cached_property
    def row(self) -> tuple[float, float, float, float, int, int]:
        """All that `step_seconds` goes through many times a second."""
        return (
            self.whole_forward_s,
            self.take_s if self.before_backward else -1.0,
            self.backward_s,
            self.give_s if self.after_backward else -1.0,
            self.gradient_axis,
            self.gradient_bytes,
        )

    @cached_property
    def take_s(self) -> float:
        """Borders before backward."""
        return _alone_s(self.before_backward)

    @cached_property
    def give_s(self) -> float:
        """Borders after backward."""
        return _alone_s(self.after_backward)


def _alone_s(borders: Sequence[CellBorder]) -> float:
    return sum(border.timed.alone_s for border in borders)


class Launch(NamedTuple):
    """A message of gradients."""

    cell: int
    """Whose backward makes the last of them."""
    axis: int
    size_bytes: int


MessageSeconds = Callable[[int, int], float]
"""(axis, bytes) -> seconds of a sum of gradients."""


def step_seconds(
    cells: Sequence[Cell],
    message_s: MessageSeconds,
    update_s_per_byte: float,
    launches: list[Launch] | None = None,
) -> float:
    """Return the seconds of a step, with one message on the link at a time, in order.

    Whenever the link is free, all gradients that are complete leave together; what computing waits
    for comes after those that are complete. `update_s_per_byte` is what updating a byte of weights
    takes. The messages of gradients are appended to `launches`; the event simulation of these takes
    as long.
    """
    now_s = link_s = 0.0
    weights = 0
    for cell in cells:
        now_s += cell.row[0]
        weights += cell.weight_bytes
    pending: dict[int, int] = {}
    ready_s, last = 0.0, 0  # of what is pending

    def launch() -> float:
        """Send what is pending; return when the link is free again."""
        until_s = max(ready_s, link_s)
        for axis, size in pending.items():
            until_s += message_s(axis, size)
            if launches is not None:
                launches.append(Launch(last, axis, size))
        pending.clear()
        return until_s

    for number in range(len(cells) - 1, -1, -1):
        _, take_s, backward_s, give_s, axis, size = cells[number].row
        if take_s >= 0:
            if pending:
                link_s = launch()
            now_s = link_s = max(now_s, link_s) + take_s
        if pending and link_s < now_s + backward_s:
            link_s = launch()
        now_s += backward_s
        if size:
            pending[axis] = pending.get(axis, 0) + size
            ready_s, last = now_s, number
            if link_s <= now_s:
                link_s = launch()
        if give_s >= 0:
            if pending:
                link_s = launch()
            now_s = link_s = max(now_s, link_s) + give_s
    if pending:
        link_s = launch()
    return max(now_s, link_s) + update_s_per_byte * weights


def cached(message_s: MessageSeconds) -> MessageSeconds:
    """Return the same function with a memory: a search asks for the same messages again."""
    known: dict[tuple[int, int], float] = {}

    def find(axis: int, size: int) -> float:
        result = known.get((axis, size))
        if result is None:
            result = known[axis, size] = message_s(axis, size)
        return result

    return find


def sent_bytes(cells: Sequence[Cell]) -> Mapping[str, int]:
    """Return what each rank sends over the borders of a step, by axis."""
    total: dict[str, int] = {}
    for cell in cells:
        for border in cell.borders:
            total[border.axis] = total.get(border.axis, 0) + border.sent_bytes
    return total


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
        build = _ChainTasks(device, feeding)
        for piece in range(pieces):
            self._piece(build, last=piece == pieces - 1)
        last = build.add("update", build.compute, self.update_s, [*build.last, *build.sent])
        spans = build.run(slots)
        parts = dict.fromkeys(_ORDER, 0.0)
        for task, span in zip(build.tasks, spans, strict=True):
            if task.name in ("forward", "backward", "update"):
                parts[task.name] += span.end_s - span.begin_s
        parts["communicate"] = max(0.0, spans[last].end_s - sum(parts.values()))
        step = Step(tuple(build.tasks), tuple(spans))
        parts["read"] = max(0.0, step.seconds - sum(parts.values()))
        return Step(step.tasks, step.spans, parts)

    def _piece(self, build: "_ChainTasks", *, last: bool) -> None:
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
                build.sent += build.send(f"gradients {place}", self.timed[place], build.last)
            build.cross(cell.after_backward)


class _ChainTasks(StepTasks):
    """Tasks of which each waits for the last one of the rank's own row."""

    def __init__(self, device: Literal["cpu", "cuda"], feeding: Feeding) -> None:
        super().__init__(device, feeding)
        self.last: list[int] = []
        self.sent: list[int] = []
        """Messages that only the update waits for."""

    def compute_for(self, name: str, seconds: float) -> None:
        if seconds:
            self.last = [self.add(name, self.compute, seconds, self.last)]

    def cross(self, borders: Sequence[CellBorder]) -> None:
        for border in borders:
            if border.timed.alone_s:
                self.last = self.send(border.name, border.timed, self.last)


def _slower(cell: Cell, compute: float, wire: float) -> Cell:
    if wire == 1.0:
        return replace(
            cell, forward_s=cell.forward_s * compute, backward_s=cell.backward_s * compute
        )

    def longer(borders: tuple[CellBorder, ...]) -> tuple[CellBorder, ...]:
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
    cells: Sequence[Cell], message: Callable[[int, int], Timed], update_s_per_byte: float
) -> Chain:
    """Return the flow of some cells, with their gradients as `step_seconds` sends them.

    `message` gives what a sum of gradients takes, of (axis, bytes).
    """
    launches: list[Launch] = []
    step_seconds(cells, lambda axis, size: message(axis, size).alone_s, update_s_per_byte, launches)
    timed = tuple(message(launch.axis, launch.size_bytes) for launch in launches)
    weights = sum(cell.weight_bytes for cell in cells)
    return Chain(tuple(cells), tuple(launches), timed, update_s_per_byte * weights)
