from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from some_traces import costs, trace_of, traces

from skindx.comm.grouping import (
    Plan,
    candidates,
    ddp_buckets,
    greedy,
    one_buffer,
    optimum,
    per_tensor,
    simulate,
)
from skindx.core.cost.collectives import Cost
from skindx.core.cost.profile import Trace

MB = 1 << 20
ROUNDING = 1 + 1e-8


def finish_s(trace: Trace, plan: Plan, cost: Cost) -> float:
    return simulate(trace, plan, cost).finish_s


def all_plans(count: int) -> list[Plan]:
    """Every way to cut `count` tensors into groups: 2^(count - 1)."""
    return [
        [after - before for before, after in pairwise([0, *_cuts(choice), count])]
        for choice in product([False, True], repeat=count - 1)
    ]


def _cuts(choice: tuple[bool, ...]) -> list[int]:
    return [place for place, cut in enumerate(choice, start=1) if cut]


@given(traces(most=9), costs)
def test_no_grouping_beats_the_optimum(trace: Trace, cost: Cost) -> None:
    plans = all_plans(len(trace.names))
    best_s = min(finish_s(trace, plan, cost) for plan in plans)
    found = optimum(trace, cost)
    assert finish_s(trace, found, cost) <= best_s * ROUNDING
    # And none that is as fast has fewer groups.
    as_fast = [plan for plan in plans if finish_s(trace, plan, cost) <= best_s * (1 + 1e-12)]
    assert len(found) <= min(map(len, as_fast))


def test_no_grouping_of_twelve_beats_the_optimum() -> None:
    trace = trace_of(
        [9000, 200, 35000, 4, 5000, 5000, 12000, 64, 80000, 9, 15000, 300],
        [0.01, 0.002, 0.03, 0.001, 0.02, 0.0, 0.015, 0.004, 0.01, 0.006, 0.01, 0.02],
    )
    plans = all_plans(12)
    assert len(plans) == 2**11
    different = set()
    for alpha_s, beta in product([0.0, 1e-3, 1e-2, 0.1], [1e-7, 5e-7, 1e-6]):
        cost = Cost(alpha_s, beta)
        found = optimum(trace, cost)
        best_s = min(finish_s(trace, plan, cost) for plan in plans)
        assert finish_s(trace, found, cost) == pytest.approx(best_s, rel=1e-9)
        different.add(tuple(found))
    assert len(different) > 4


@given(traces(most=60), costs)
def test_the_optimum_is_never_slower_than_a_rule(trace: Trace, cost: Cost) -> None:
    best_s = finish_s(trace, optimum(trace, cost), cost)
    for rule in (per_tensor(trace), one_buffer(trace), ddp_buckets(trace), greedy(trace, cost)):
        assert best_s <= finish_s(trace, rule, cost) * ROUNDING


@given(traces(most=30), costs, st.floats(1, 10))
def test_a_slower_network_never_makes_the_optimum_faster(
    trace: Trace, cost: Cost, factor: float
) -> None:
    best_s = finish_s(trace, optimum(trace, cost), cost)
    for slower in (
        Cost(cost.alpha_s * factor, cost.beta_s_per_byte),
        Cost(cost.alpha_s, cost.beta_s_per_byte * factor),
    ):
        assert finish_s(trace, optimum(trace, slower), slower) * ROUNDING >= best_s


def test_500_tensors_where_each_must_go_alone() -> None:
    # Transfer and backward take equally long: any merging leaves the wire idle.
    trace = trace_of([1 << 20] * 500, [2.0**-10] * 500)
    assert optimum(trace, Cost(0.0, 2.0**-30)) == per_tensor(trace)
    # One message costs more than all of backward.
    assert optimum(trace, Cost(1.0, 2.0**-30)) == one_buffer(trace)


def test_the_greedy_follows_the_published_rule() -> None:
    # A message of n bytes takes 2 + n s. Gradients at 1, 2, 10, 13, 14, 14.5 s.
    trace = trace_of([3, 1, 1, 1, 7, 1], [1, 1, 8, 3, 1, 0.5])
    # t0 could begin at 1 and be through at 6; t1 is ready at 2, less than 2 s later: merged.
    # They begin at 2, through at 8; t2 is ready at 10, so they go without it.
    # t2 begins at 10, through at 13; t3 is ready at 13, not before: it goes alone.
    # t3 begins at 13, through at 16; t4 is ready at 14, less than 2 s later: merged,
    # and through at 24; t5 is ready at 14.5: merged too.
    assert greedy(trace, Cost(2, 1)) == [2, 1, 3]
    # t0 (1 to 5 s) does not wait for t1, ready at 4 s: that is alpha later, or more.
    assert greedy(trace_of([4, 1], [1, 3]), Cost(1, 1)) == [1, 1]
    assert greedy(trace_of([4, 1], [1, 3]), Cost(3.5, 1)) == [2]
    # The wire is busy until 11 s: t1 could not begin before t2 is ready at 7 s, so they merge.
    assert greedy(trace_of([9, 1, 1], [1, 4, 2]), Cost(1, 1)) == [1, 2]


def test_the_greedy_can_be_almost_twice_as_slow() -> None:
    # A large tensor comes first, and a hundred small ones, each less than alpha after the one
    # before: the greedy always waits for one more, until backward is over.
    trace = trace_of([90 * MB] + [4] * 100, [0.0] + [0.9e-3] * 100)
    cost = Cost(1e-3, 1e-3 / MB)
    assert greedy(trace, cost) == one_buffer(trace)
    assert optimum(trace, cost) == [1, 100]
    ratio = finish_s(trace, greedy(trace, cost), cost) / finish_s(trace, [1, 100], cost)
    assert ratio == pytest.approx(181 / 92, rel=1e-5)


def test_buckets_are_those_of_ddp() -> None:
    sizes = [MB // 2, MB // 2, 20 * MB, 6 * MB, 24 * MB, 4]
    assert ddp_buckets(trace_of(sizes, [0.1] * 6)) == [2, 2, 2]


@given(traces(most=30), costs, st.integers(1, 5))
def test_candidates_are_different_sorted_few_and_ddp_is_among_them(
    trace: Trace, cost: Cost, most: int
) -> None:
    found = candidates(trace, cost, most)
    assert 1 <= len(found) <= most
    plans = [candidate.plan for candidate in found]
    assert all(plans.count(plan) == 1 for plan in plans)
    times = [candidate.predicted_s for candidate in found]
    assert times == sorted(times)
    assert times == [finish_s(trace, plan, cost) for plan in plans]
    [ddp] = [candidate for candidate in found if candidate.name == "ddp"]
    assert ddp.plan == ddp_buckets(trace)
    if most > 1:
        best_s = finish_s(trace, optimum(trace, cost), cost)
        assert times[0] <= best_s * ROUNDING


def test_a_single_tensor_leaves_nothing_to_choose() -> None:
    [only] = candidates(trace_of([10], [1]), Cost(1, 1))
    assert (only.name, only.plan, only.predicted_s) == ("ddp", [1], 12)
