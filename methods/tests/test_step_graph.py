import pytest
from hypothesis import given
from hypothesis import strategies as st
from some_plans import cluster, exchanging, profile
from some_traces import costs, traces

from skindx.comm.grouping import rules, simulate
from skindx.core.cost.collectives import Cost
from skindx.core.cost.pricing import Load, Message, StepSchedule, Timed
from skindx.core.cost.profile import Trace
from skindx_methods.plan.cluster import ClusterNetwork
from skindx_methods.plan.events import Feeding, simulate_step
from skindx_methods.plan.profiles import trace_of

ONE_LINK = ClusterNetwork(cluster(4))


@given(traces(most=8), costs, st.sampled_from(["ddp", "optimum", "per tensor", "one buffer"]))
def test_with_one_link_a_step_is_the_timeline(trace: Trace, cost: Cost, rule: str) -> None:
    plan = rules(trace, cost, [rule])[rule]
    messages, last = [], 0
    for count in plan:
        size = sum(trace.sizes_bytes[last : last + count])
        last += count
        messages.append(Message(last, size, Timed(0.0, cost(size))))
    step = simulate_step(trace, StepSchedule(tuple(messages)), ONE_LINK)
    assert step.seconds == pytest.approx(simulate(trace, plan, cost).finish_s, abs=1e-9)
    assert sum(step.parts.values()) == pytest.approx(step.seconds, abs=1e-9)


def step_of(name: str, local_s: float = 0.0, **options: object) -> float:
    own = profile(local_s)
    load = Load(trace_of(own), own, "cuda")
    schedule = exchanging(name, **options).schedule(load, ONE_LINK)
    return simulate_step(load.trace, schedule, ONE_LINK).seconds


def test_exchanges_as_a_hand_counts_them() -> None:
    # Forward 3 s; b's 8,000 bytes are ready at 7 s, a's 4,000 at 10 s; 0.1 s + 0.1 ms a byte.
    assert step_of("dense") == pytest.approx(10 + 1.3 + 0.5)
    assert step_of("dense", 0.2) == pytest.approx(10 + 0.1 + 1.3 + 0.1 + 0.5)
    assert step_of("one-buffer") == pytest.approx(11.8)
    # b travels from 7 to 7.9 s, a from 10 to 10.5 s.
    assert step_of("per-tensor") == pytest.approx(10.5 + 0.5)
    assert step_of("fused") == pytest.approx(11.0)
    assert step_of("fused", wire="bf16") == pytest.approx(10.3 + 0.5)
    # 3 of 3,000 elements are 24 bytes: two rounds of 0.01 s + 24 x 0.1 ms.
    assert step_of("gtopk") == pytest.approx(10 + 2 * (0.01 + 0.0024) + 0.5)
    # Three steps of it.
    assert step_of("topk") == pytest.approx(10 + 3 * (0.01 + 0.0024) + 0.5)
    # Of b's 40 x 50: left 40 x 4 with a's 1,000 elements, right 50 x 4; of 4 bytes.
    assert step_of("powersgd") == pytest.approx(10 + 0.1 + 0.464 + 0.1 + 0.08 + 0.5)


def test_pieces_are_exchanged_once() -> None:
    own = profile()
    load = Load(trace_of(own), own, "cuda")
    schedule = exchanging("dense").schedule(load, ONE_LINK)
    step = simulate_step(load.trace, schedule, ONE_LINK, pieces=3)
    assert step.seconds == pytest.approx(30 + 1.3 + 0.5)
    assert step.parts["forward"] == pytest.approx(9)


def test_on_cores_images_and_bytes_slow_computing_down_and_beside_a_gpu_they_do_not() -> None:
    own = profile()
    load = Load(trace_of(own), own, "cpu")
    reads = Feeding(read_s=4.0)
    beside = simulate_step(load.trace, StepSchedule(), ONE_LINK, feeding=reads)
    assert beside.seconds == pytest.approx(10.5)
    shared = simulate_step(load.trace, StepSchedule(), ONE_LINK, device="cpu", feeding=reads)
    assert shared.seconds == pytest.approx(14.5)
    slow = simulate_step(load.trace, StepSchedule(), ONE_LINK, feeding=Feeding(read_s=12.0))
    assert slow.parts["read"] == pytest.approx(1.5)
    pushed = StepSchedule((Message(1, 8000, Timed(0.0, 1.0, 2.0)),))
    busy = simulate_step(load.trace, pushed, ONE_LINK, device="cpu")
    assert busy.seconds == pytest.approx(12.5)


def test_two_at_once_share_a_link() -> None:
    two = ClusterNetwork(cluster(4, at_once=2, backend="gloo"))
    trace = Trace(names=("a", "b"), sizes_bytes=(1, 1), backward_s=(1.0, 1.0))
    messages = (Message(1, 1, Timed(0.0, 3.0)), Message(2, 1, Timed(0.0, 3.0)))
    # The first alone from 1 to 2 s, both at half speed until 6 s, the second alone to 7 s.
    assert simulate_step(trace, StepSchedule(messages), two).seconds == pytest.approx(7.0)
    serial = StepSchedule(messages, serial=True)
    assert simulate_step(trace, serial, two).seconds == pytest.approx(7.0)
    late = (Message(1, 1, Timed(2.0, 1.0)), Message(2, 1, Timed(2.0, 1.0)))
    # Latencies pass at the same time: 1 to 4 s, and 2 to 5 s; one after the other 7 s.
    assert simulate_step(trace, StepSchedule(late), two).seconds == pytest.approx(5.0)
    assert simulate_step(trace, StepSchedule(late, serial=True), two).seconds == pytest.approx(7.0)
