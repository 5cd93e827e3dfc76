"""A split layer that its batch meets in rounds, so that messages travel while it computes.

Krizhevsky 2014 (arXiv 1404.5997, section 4): with k ranks there are k rounds. In scheme (b) one
rank sends its images to all others, and gets all outputs of these, while the other links are idle;
in (c) all ranks send a part of theirs.
"""

from dataclasses import replace
from typing import Literal

from skindx.core.cost.cells import Border, Cell
from skindx.core.cost.network import Timed
from skindx.core.cost.placing import Axis

Scheme = Literal["a", "b", "c"]


_FORWARD, _BACKWARD, _UPDATE = 1, 5, 9
"""Times that a weight goes to or from memory: it is read again in each further round, forward and
backward, where its gradient is written and added to that of the rounds before; and in an update by
SGD with momentum (five), with the copies of its gradient into a message's buffer and back (four).
"""


def in_rounds(cell: Cell, axis: Axis, scheme: Scheme, own_s_per_byte: float = 0.0) -> Cell:
    """Return a cell of scheme (a) in rounds; computing hides what it can of its borders.

    `own_s_per_byte` is what the update of a byte of weights takes: each further round passes all
    weights of the cell through memory, however few its images are.
    """
    if scheme == "a" or not cell.borders:
        return cell
    again_s = (axis.ranks - 1) * cell.weight_bytes * own_s_per_byte / _UPDATE
    forward_s = cell.forward_s + _FORWARD * again_s
    backward_s = cell.backward_s + _BACKWARD * again_s
    forward = _hidden(cell.before_forward, forward_s, cell.after_forward, axis, scheme)
    backward = _hidden(cell.before_backward, backward_s, cell.after_backward, axis, scheme)
    return replace(
        cell,
        forward_s=forward_s,
        backward_s=backward_s,
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
