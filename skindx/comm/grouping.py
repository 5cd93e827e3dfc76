"""Grouping of tensors into messages: fixed buckets, the published greedy, the exact optimum.

A plan is a list of group sizes: how many tensors each group has, in backward order.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from skindx.core.cost.collectives import Cost
from skindx.core.cost.profile import Trace

PAPER = (
    "MG-WFBP | Shi et al., MG-WFBP: Efficient Data Communication for Distributed "
    "Synchronous SGD Algorithms, arXiv 1811.11141, 2018 | tests/plan/test_bucketing.py | "
    "docs/measured/exchange.json"
)


@dataclass(frozen=True)
class Sending:
    """One group of tensors on its way; times count from the start of the iteration."""

    tensors: int
    size_bytes: int
    ready_s: float
    """When its last gradient is complete."""
    begin_s: float
    """When the groups before it have been sent."""
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """When each group was sent, and when the iteration ended."""

    groups: tuple[Sending, ...]
    backward_end_s: float
    finish_s: float
    """End of the update."""


def simulate(trace: Trace, groups: Sequence[int], cost: Callable[[float], float]) -> Timeline:
    """Send each group once it is complete and the one before is through; then update.

    `groups` says how many tensors each has, in backward order; `cost` gives seconds of bytes.
    MG-WFBP's recurrences (Shi et al. 2018, arXiv 1811.11141). Raises ValueError.
    """
    if min(groups, default=0) < 1 or sum(groups) != len(trace.names):
        raise ValueError(
            f"the groups {list(groups)} do not contain each of the {len(trace.names)} tensors of "
            "the trace exactly once."
        )
    ready_s, sendings, first, through_s = trace.ready_s, list[Sending](), 0, 0.0
    for last in accumulate(groups):
        size = sum(trace.sizes_bytes[first:last])
        begin_s = max(ready_s[last - 1], through_s)
        through_s = begin_s + cost(size)
        sendings.append(Sending(last - first, size, ready_s[last - 1], begin_s, through_s))
        first = last
    return Timeline(tuple(sendings), ready_s[-1], through_s + trace.update_s)


MB = 1 << 20


def fixed_buckets(
    sizes_bytes: Sequence[int], bucket_mb: float, first_mb: float | None = None
) -> list[int]:
    """Return how many tensors each bucket has; one is closed once it holds `bucket_mb`.

    With `first_mb` the first one is closed earlier, so that sending begins early: PyTorch's
    DistributedDataParallel takes 1 MB, then 25 MB.
    """
    groups, count, held = [], 0, 0
    limit = (bucket_mb if first_mb is None else first_mb) * MB
    for size in sizes_bytes:
        count, held = count + 1, held + size
        if held >= limit:
            groups.append(count)
            count, held, limit = 0, 0, bucket_mb * MB
    return [*groups, count] if count else groups


Plan = list[int]

ROUNDING = 1e-9
"""Relative difference up to which two times are equal."""

_FEW, _MOST_GROUPS = 8, 256
_WORK = 2**28
"""Most pairs of tensors to examine for a plan with fewer groups: about a second of work."""


def per_tensor(trace: Trace) -> Plan:
    """Send each tensor alone: plain wait-free backpropagation."""
    return [1] * len(trace.names)


def one_buffer(trace: Trace) -> Plan:
    """Send all at once, after backward."""
    return [len(trace.names)]


def ddp_buckets(trace: Trace, bucket_mb: float = 25) -> Plan:
    """Take PyTorch DistributedDataParallel's default: 1 MB first, then 25 MB each."""
    return fixed_buckets(trace.sizes_bytes, bucket_mb=bucket_mb, first_mb=1)


def greedy(trace: Trace, cost: Cost) -> Plan:
    """MG-WFBP as published (Shi et al. 2018, arXiv 1811.11141).

    A group takes the next tensor in if that is ready before the group would be through, and either
    before the group could begin or by less than alpha after.
    """
    ready_s, sizes = trace.ready_s, trace.sizes_bytes
    plan: Plan = [1]
    held, end_s = sizes[0], 0.0
    for number in range(1, len(sizes)):
        begin_s = max(end_s, ready_s[number - 1])
        next_s = ready_s[number]
        through_s = begin_s + cost(held)
        if next_s < through_s and (begin_s > next_s or next_s - begin_s < cost.alpha_s):
            plan[-1] += 1
            held += sizes[number]
        else:
            plan.append(1)
            held, end_s = sizes[number], through_s
    return plan


def optimum(trace: Trace, cost: Cost) -> Plan:
    """Return the plan with the fewest groups among those that no plan beats in `simulate`.

    The model hardly cares how what backward hides is grouped; real machines like fewer messages.
    With K groups it takes O(K L²), where K is mostly far below L: 3 to 5 on public traces of CNNs.
    Where so many rounds are more work than `_WORK`, it is an optimum with any number of groups.
    """
    ready_J = np.array(trace.ready_s)
    through_bytes = np.concatenate([[0], np.cumsum(trace.sizes_bytes, dtype=float)])
    sizes_JI = through_bytes[1:, None] - through_bytes[None, :-1]
    costs_JI = cost.alpha_s + cost.beta_s_per_byte * sizes_JI
    costs_JI[np.triu_indices(len(ready_J), 1)] = np.inf
    best_s, any_best = _earliest_end(ready_J, costs_JI)
    # I = tensors before the last group, J = tensors with it; each round adds a group, and the
    # first tensor with which there are so many groups is one further on.
    ends_I, cuts = np.full(len(ready_J), np.inf), []
    ends_I[0] = 0.0
    most = max(_FEW, min(_MOST_GROUPS, _WORK // len(ready_J) ** 2))
    for _ in range(min(most, len(ready_J))):
        ends_JI = np.maximum(ends_I, ready_J[:, None]) + costs_JI
        cuts.append(ends_JI.argmin(axis=1))
        ends_J = np.take_along_axis(ends_JI, cuts[-1][:, None], axis=1)[:, 0]
        if ends_J[-1] <= best_s * (1 + ROUNDING):
            return _walk_back(cuts, len(trace.names))
        ends_I, ready_J, costs_JI = ends_J[:-1], ready_J[1:], costs_JI[1:, 1:]
    return any_best


def _earliest_end(ready_J: np.ndarray, costs_JI: np.ndarray) -> tuple[float, Plan]:
    """Return when all is through at best, by dynamic programming over the last group's start.

    f(j) = min over i < j of max(f(i), ready(j)) + cost(i + 1 … j): to end the groups before
    earlier never hurts.
    """
    ends_s, starts = np.zeros(len(ready_J) + 1), []
    for j, ready_s in enumerate(ready_J):
        ends_I = np.maximum(ends_s[: j + 1], ready_s) + costs_JI[j, : j + 1]
        starts.append(int(ends_I.argmin()))
        ends_s[j + 1] = ends_I[starts[-1]]
    plan, last = [], len(starts)
    while last:
        plan.append(last - starts[last - 1])
        last = starts[last - 1]
    return float(ends_s[-1]), plan[::-1]


def _walk_back(cuts: list[np.ndarray], last: int) -> Plan:
    plan = []
    for before_it, cut in reversed(list(enumerate(cuts))):
        start = before_it + int(cut[last - 1 - before_it])
        plan.append(last - start)
        last = start
    return plan[::-1]


RULES: dict[str, Callable[[Trace, Cost], Plan]] = {
    "ddp": lambda trace, cost: ddp_buckets(trace),
    "optimum": optimum,
    "greedy": greedy,
    "one buffer": lambda trace, cost: one_buffer(trace),
    "per tensor": lambda trace, cost: per_tensor(trace),
}
"""Name of a rule -> the plan that it makes."""


def rules(trace: Trace, cost: Cost, names: Iterable[str] = tuple(RULES)) -> dict[str, Plan]:
    """Return the plan of each rule."""
    return {name: RULES[name](trace, cost) for name in names}


@dataclass(frozen=True)
class GroupingCandidate:
    """A plan worth timing live."""

    name: str
    plan: Plan
    predicted_s: float
    """The whole iteration, by `simulate`."""


def candidates(trace: Trace, cost: Cost, most: int = 5) -> list[GroupingCandidate]:
    """Return different plans, the fastest in the model first; DDP's buckets are always there.

    `most`: how many, at least one; five are all. A plan that several rules make has the name of the
    first, in the order below.
    """
    assert most >= 1
    plans = rules(trace, cost)
    different: list[GroupingCandidate] = []
    for name, plan in plans.items():
        if all(plan != candidate.plan for candidate in different):
            predicted_s = simulate(trace, plan, cost).finish_s
            different.append(GroupingCandidate(name, plan, predicted_s))
    default, *alternatives = different
    alternatives = sorted(alternatives, key=lambda candidate: candidate.predicted_s)[: most - 1]
    return sorted([default, *alternatives], key=lambda candidate: candidate.predicted_s)
