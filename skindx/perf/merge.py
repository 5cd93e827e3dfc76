"""Which tensors are sent together: the published greedy, the exact optimum, and simple rules.

A plan is a list of group sizes: how many tensors each group has, in backward order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from skindx.buckets import fixed_buckets
from skindx.perf.cost import Cost
from skindx.perf.timeline import simulate
from skindx.perf.trace import Trace

Plan = list[int]


def per_tensor(trace: Trace) -> Plan:
    """Send each tensor alone: plain wait-free backpropagation."""
    return [1] * len(trace.names)


def one_buffer(trace: Trace) -> Plan:
    """Send all at once, after backward."""
    return [len(trace.names)]


def ddp_buckets(trace: Trace) -> Plan:
    """Take PyTorch DistributedDataParallel's default: 1 MB first, then 25 MB each."""
    return fixed_buckets(trace.sizes_bytes, bucket_mb=25, first_mb=1)


def greedy(trace: Trace, cost: Cost) -> Plan:
    """MG-WFBP as published (Shi et al. 2018, arXiv 1811.11141, algorithm 1).

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
    """Return a plan that no other beats in the model of `simulate`; O(L²).

    The first j tensors are through at best at f(j) = min over i < j of
    max(f(i), ready(j)) + cost(bytes of i + 1 … j): to end the groups before earlier never hurts.
    """
    through_bytes = np.concatenate([[0], np.cumsum(trace.sizes_bytes, dtype=np.int64)])
    end_s = np.zeros(len(trace.names) + 1)
    cut = [0] * len(end_s)
    for j, ready_s in enumerate(trace.ready_s, start=1):
        begins_s = np.maximum(end_s[:j], ready_s)
        costs_s = cost.alpha_s + cost.beta_s_per_byte * (through_bytes[j] - through_bytes[:j])
        ends_s = begins_s + costs_s
        # Of equally good ones the earliest cut: fewer messages.
        cut[j] = int(ends_s.argmin())
        end_s[j] = ends_s[cut[j]]
    plan, j = [], len(trace.names)
    while j:
        plan.append(j - cut[j])
        j = cut[j]
    return plan[::-1]


def names_of(trace: Trace, plan: Sequence[int]) -> list[list[str]]:
    """Return the names of each group's tensors."""
    names = iter(trace.names)
    return [[next(names) for _ in range(count)] for count in plan]


@dataclass(frozen=True)
class Candidate:
    """A plan worth timing live."""

    name: str
    plan: Plan
    predicted_s: float
    """The whole iteration, by `simulate`."""


def candidates(trace: Trace, cost: Cost, most: int = 4) -> list[Candidate]:
    """Return different plans, the fastest in the model first; DDP's buckets are always there.

    `most`: how many, at least one. A plan that several rules make bears the first one's name,
    except DDP's, which keeps its own.
    """
    plans = {
        "ddp": ddp_buckets(trace),
        "optimum": optimum(trace, cost),
        "greedy": greedy(trace, cost),
        "one buffer": one_buffer(trace),
        "per tensor": per_tensor(trace),
    }
    different: list[Candidate] = []
    for name, plan in plans.items():
        if all(plan != each.plan for each in different):
            predicted_s = simulate(trace, plan, cost).finish_s
            different.append(Candidate(name, plan, predicted_s))
    default, *others = different
    others = sorted(others, key=lambda each: each.predicted_s)[: most - 1]
    return sorted([default, *others], key=lambda each: each.predicted_s)
