"""Operators as they are placed on the ranks, and what a step of them takes.

All ranks do the same at the same time, so one of them stands for all. At the borders of an operator
computing waits for messages; gradients of replicated weights travel beside backward.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from skindx.planning.network import Timed


@dataclass(frozen=True)
class Border:
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
    before_forward: tuple[Border, ...] = ()
    after_forward: tuple[Border, ...] = ()
    before_backward: tuple[Border, ...] = ()
    after_backward: tuple[Border, ...] = ()

    @cached_property
    def borders(self) -> tuple[Border, ...]:
        """All of them."""
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


def _alone_s(borders: Sequence[Border]) -> float:
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
    own_s_per_byte: float,
    launches: list[Launch] | None = None,
) -> float:
    """Return the seconds of a step, with one message on the link at a time, in order.

    Whenever the link is free, all gradients that are complete leave together; what computing waits
    for comes after those that are complete. `own_s_per_byte` is what updating a byte of weights
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
    return max(now_s, link_s) + own_s_per_byte * weights


def cached(message_s: MessageSeconds) -> MessageSeconds:
    """Return the same function with a memory: a search asks for the same messages again."""
    known: dict[tuple[int, int], float] = {}

    def find(axis: int, size: int) -> float:
        found = known.get((axis, size))
        if found is None:
            found = known[axis, size] = message_s(axis, size)
        return found

    return find


def sent_bytes(cells: Sequence[Cell]) -> Mapping[str, int]:
    """Return what each rank sends over the borders of a step, by axis."""
    total: dict[str, int] = {}
    for cell in cells:
        for border in cell.borders:
            total[border.axis] = total.get(border.axis, 0) + border.sent_bytes
    return total
