"""A split layer that its batch meets in rounds, so that messages travel while it computes.

Krizhevsky 2014 (arXiv 1404.5997, section 4): with k ranks there are k rounds. In scheme (b) one
rank sends its images to all others, and gets all outputs of these, while the other links are idle;
in (c) all ranks send a part of theirs.
"""

from dataclasses import replace
from typing import Literal

from skindx.planning.network import Timed
from skindx.planning.parallel.axes import Axis
from skindx.planning.parallel.cells import Border, Cell

Scheme = Literal["a", "b", "c"]


def in_rounds(cell: Cell, axis: Axis, scheme: Scheme) -> Cell:
    """Return a cell of scheme (a) in rounds; computing hides what it can of its borders."""
    if scheme == "a" or not cell.borders:
        return cell
    forward = _hidden(cell.before_forward, cell.forward_s, cell.after_forward, axis, scheme)
    backward = _hidden(cell.before_backward, cell.backward_s, cell.after_backward, axis, scheme)
    return replace(
        cell,
        before_forward=forward[0],
        after_forward=forward[1],
        before_backward=backward[0],
        after_backward=backward[1],
    )


def _hidden(
    before: tuple[Border, ...],
    compute_s: float,
    after: tuple[Border, ...],
    axis: Axis,
    scheme: Scheme,
) -> tuple[tuple[Border, ...], tuple[Border, ...]]:
    """Return the borders with the time in which nothing is computed.

    The first round's messages come before all computing and the last round's after it; all others
    travel beside it, on the same link.
    """
    rounds = axis.ranks
    whole_s = [_whole_s(border, axis, scheme) for border in (*before, *after)]
    link_s = sum(whole_s)
    waits_s = max(link_s - compute_s, link_s / rounds)
    share = waits_s / link_s if link_s else 1.0
    shown = [
        replace(border, timed=Timed(0.0, own_s * share))
        for border, own_s in zip((*before, *after), whole_s, strict=True)
    ]
    return tuple(shown[: len(before)]), tuple(shown[len(before) :])


def _whole_s(border: Border, axis: Axis, scheme: Scheme) -> float:
    """Return what all rounds of a border take on the link."""
    rounds, timed = axis.ranks, border.timed
    if scheme == "c":
        return rounds * timed.latency_s + timed.wire_s
    if border.name.startswith("gather"):
        return rounds * axis.broadcast(border.sent_bytes / (rounds - 1)).alone_s
    return rounds * timed.alone_s  # all that one rank gets comes over its own link
