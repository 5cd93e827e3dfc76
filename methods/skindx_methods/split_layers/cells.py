"""Operators as they are placed on the ranks, and what a step of them takes.

All ranks do the same at the same time, so one of them stands for all. At the borders of an operator
computing waits for messages; gradients of replicated weights travel beside backward.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

from skindx.core.cost.pricing import Timed
from skindx_methods.plan.events import Feeding, Step, StepTasks


@dataclass(frozen=True)
class CellBorder:
    """A collective that computing waits for."""

    name: str
    sent_bytes: int
    """Bytes that each rank sends."""
    timed: Timed


@dataclass(frozen=True)
class Cell:
    """One operator on one rank."""

    name: str
    forward_s: float
    backward_s: float
    weight_bytes: int
    """Bytes of the weights that the rank holds and updates."""
    gradient_bytes: int = 0
    """Bytes of gradients summed over ranks; 0 where no other rank has the same weights."""
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


def _alone_s(borders: Sequence[CellBorder]) -> float:
    return sum(border.timed.alone_s for border in borders)


class Launch(NamedTuple):
    """A message of gradients."""

    cell: int
    """Cell whose backward makes the last of these gradients."""
    size_bytes: int
    timed: Timed


_ORDER = ("read", "forward", "backward", "communicate", "update")


@dataclass(frozen=True)
class Chain:
    """A step of cells in forward order; messages are more than the gradients after backward."""

    cells: tuple[Cell, ...]
    launches: tuple[Launch, ...]
    """Messages of gradients, in the order in which they leave."""
    update_s: float
    """Time of the update of the weights that a rank holds."""

    @property
    def border_bytes(self) -> int:
        """Bytes that a rank sends over the borders."""
        return sum(border.sent_bytes for cell in self.cells for border in cell.borders)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients that it sums with other ranks."""
        return sum(launch.size_bytes for launch in self.launches)

    def slower(self, *, compute: float = 1.0, wire: float = 1.0, update: float = 1.0) -> "Chain":
        """Return the chain with its parts slowed down by these factors."""
        return Chain(
            tuple(_slower(cell, compute, wire) for cell in self.cells),
            tuple(launch._replace(timed=launch.timed.scaled(wire)) for launch in self.launches),
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
        launched: dict[int, list[tuple[int, Launch]]] = {}
        for place, launch in enumerate(self.launches if last else ()):
            launched.setdefault(launch.cell, []).append((place, launch))
        for number in range(len(self.cells) - 1, -1, -1):
            cell = self.cells[number]
            build.cross(cell.before_backward)
            build.compute_for("backward", cell.backward_s)
            for place, launch in launched.get(number, []):
                build.sent += build.send(f"gradients {place}", launch.timed, build.last)
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
    cells: Sequence[Cell], message: Callable[[int], Timed], update_s_per_byte: float
) -> Chain:
    """Return the flow of some cells, with one message of gradients on the link at a time.

    Whenever the link is free, all gradients that are complete leave together; what computing waits
    for comes after those that are complete. `message` gives what a sum of so many bytes of
    gradients takes; `update_s_per_byte` is what updating a byte of weights takes.
    """
    now_s = sum(
        cell.forward_s + _alone_s(cell.before_forward + cell.after_forward) for cell in cells
    )
    link_s = ready_s = 0.0
    launches: list[Launch] = []
    pending = last = 0  # bytes, and the cell of the last of them

    def launch() -> float:
        """Send what is pending; return when the link is free again."""
        nonlocal pending
        if not pending:
            return link_s
        launches.append(Launch(last, pending, message(pending)))
        pending = 0
        return max(ready_s, link_s) + launches[-1].timed.alone_s

    def cross(borders: Sequence[CellBorder]) -> None:
        nonlocal now_s, link_s
        if borders:
            link_s = launch()
            now_s = link_s = max(now_s, link_s) + _alone_s(borders)

    for number in range(len(cells) - 1, -1, -1):
        cell = cells[number]
        cross(cell.before_backward)
        if pending and link_s < now_s + cell.backward_s:
            link_s = launch()
        now_s += cell.backward_s
        if cell.gradient_bytes:
            pending += cell.gradient_bytes
            ready_s, last = now_s, number
            if link_s <= now_s:
                link_s = launch()
        cross(cell.after_backward)
    launch()
    weights = sum(cell.weight_bytes for cell in cells)
    return Chain(tuple(cells), tuple(launches), update_s_per_byte * weights)
