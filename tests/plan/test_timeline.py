from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from some_traces import costs, trace_of, traces

from skindx.comm.grouping import Sending, simulate
from skindx.core.cost.collectives import Cost
from skindx.core.cost.profile import Trace

# Forward 10 s, gradients at 11, 13, 16 s; a message of n bytes takes 1 + n s; update 0.5 s.
TRACE = trace_of([4, 1, 2], [1, 2, 3], forward_s=10, update_s=0.5)
COST = Cost(1, 1)


def test_three_messages_as_a_hand_draws_them() -> None:
    timeline = simulate(TRACE, [1, 1, 1], COST)
    assert timeline.groups == (
        Sending(1, 4, ready_s=11, begin_s=11, end_s=16),
        Sending(1, 1, ready_s=13, begin_s=16, end_s=18),  # waits for the one before
        Sending(1, 2, ready_s=16, begin_s=18, end_s=21),
    )
    assert timeline.backward_end_s == 16
    assert timeline.groups[-1].end_s - timeline.backward_end_s == 5
    assert timeline.finish_s == 21.5


def test_merged_messages_as_a_hand_draws_them() -> None:
    assert simulate(TRACE, [1, 2], COST).groups == (
        Sending(1, 4, ready_s=11, begin_s=11, end_s=16),
        Sending(2, 3, ready_s=16, begin_s=16, end_s=20),
    )
    assert simulate(TRACE, [2, 1], COST).groups == (
        Sending(2, 5, ready_s=13, begin_s=13, end_s=19),
        Sending(1, 2, ready_s=16, begin_s=19, end_s=22),
    )
    assert simulate(TRACE, [3], COST).finish_s == 16 + 8 + 0.5


def test_any_cost_of_bytes_will_do() -> None:
    assert simulate(TRACE, [3], lambda size: 2.0 if size == 7 else 9.0).finish_s == 18.5


@pytest.mark.parametrize("groups", [[], [1, 1], [4], [3, 0], [4, -1]])
def test_groups_that_do_not_share_out_all_tensors_are_refused(groups: list[int]) -> None:
    with pytest.raises(ValueError, match="do not contain each of the 3 tensors"):
        simulate(TRACE, groups, COST)


@st.composite
def grouped(draw: st.DrawFn) -> tuple[Trace, list[int]]:
    trace = draw(traces())
    count = len(trace.names)
    cuts = sorted(draw(st.sets(st.integers(1, count - 1)))) if count > 1 else []
    return trace, [after - before for before, after in pairwise([0, *cuts, count])]


@given(grouped(), costs)
def test_one_wire_carries_one_message_at_a_time_and_none_before_it_is_ready(
    trace_and_groups: tuple[Trace, list[int]], cost: Cost
) -> None:
    trace, groups = trace_and_groups
    timeline = simulate(trace, groups, cost)
    assert [group.tensors for group in timeline.groups] == groups
    assert sum(group.size_bytes for group in timeline.groups) == sum(trace.sizes_bytes)
    for group in timeline.groups:
        assert group.ready_s <= group.begin_s
        assert group.end_s == group.begin_s + cost(group.size_bytes)
    for before, after in pairwise(timeline.groups):
        # The wire is idle only while nothing is ready.
        assert after.begin_s == max(before.end_s, after.ready_s)
    assert timeline.finish_s >= timeline.backward_end_s + trace.update_s


@given(grouped(), costs, st.floats(1, 10))
def test_slower_networks_and_slower_backward_never_finish_earlier(
    trace_and_groups: tuple[Trace, list[int]], cost: Cost, factor: float
) -> None:
    trace, groups = trace_and_groups
    finish_s = simulate(trace, groups, cost).finish_s
    slower = [
        (trace, Cost(cost.alpha_s * factor, cost.beta_s_per_byte)),
        (trace, Cost(cost.alpha_s, cost.beta_s_per_byte * factor)),
        (trace.model_copy(update={"backward_s": [t * factor for t in trace.backward_s]}), cost),
        (trace.model_copy(update={"forward_s": trace.forward_s * factor}), cost),
    ]
    for other, other_cost in slower:
        assert simulate(other, groups, other_cost).finish_s >= finish_s
