"""One iteration under wait-free backpropagation, simulated for a given grouping.

The special case of one link that carries one message at a time; `graph` has all others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from skindx.planning.events import Resource, Task, run
from skindx.planning.trace import Trace

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

    @property
    def exposed_s(self) -> float:
        """Communication that backward does not hide."""
        return self.groups[-1].end_s - self.backward_end_s


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
        tasks.append(Task("group", "link", cost(sizes[-1]), not_before_s=ready_s[last - 1]))
        first = last
    sendings = tuple(
        Sending(tensors, size, task.not_before_s, span.begin_s, span.end_s)
        for tensors, size, task, span in zip(groups, sizes, tasks, run(tasks, [_LINK]), strict=True)
    )
    return Timeline(sendings, ready_s[-1], sendings[-1].end_s + trace.update_s)
