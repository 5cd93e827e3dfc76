"""One iteration under wait-free backpropagation, simulated for a given grouping."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from skindx.planning.trace import Trace


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
    ready_s, sendings, end_s, first = trace.ready_s, [], 0.0, 0
    for last in accumulate(groups):
        size = sum(trace.sizes_bytes[first:last])
        begin_s = max(end_s, ready_s[last - 1])
        end_s = begin_s + cost(size)
        sendings.append(Sending(last - first, size, ready_s[last - 1], begin_s, end_s))
        first = last
    return Timeline(tuple(sendings), ready_s[-1], end_s + trace.update_s)
