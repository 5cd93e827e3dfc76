import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx_methods.plan.events import Resource, Span, StepTask, run

CORE, LINK = Resource("core"), Resource("link", slots=2, shared=True)


def test_a_chain_on_one_resource_as_a_hand_draws_it() -> None:
    tasks = [
        StepTask("a", "core", 2),
        StepTask("b", "core", 3, after=(0,)),
        StepTask("c", "core", 1, not_before_s=1),
    ]
    # c became ready at 1 and waits behind nothing but a: it goes before b, which is ready at 2...
    assert run(tasks, [CORE]) == [Span(0, 2), Span(3, 6), Span(2, 3)]


def test_two_on_a_shared_link_have_half_each() -> None:
    tasks = [StepTask("a", "link", 4), StepTask("b", "link", 4, not_before_s=2)]
    # a alone for 2 s (2 left), both at half speed for 4 s, then b alone: 2 left.
    assert run(tasks, [LINK]) == [Span(0, 6), Span(2, 8)]


def test_a_third_waits_for_a_slot_and_latency_is_not_shared() -> None:
    tasks = [
        StepTask("a", "link", 2, latency_s=1),
        StepTask("b", "link", 2, latency_s=1),
        StepTask("c", "link", 1, latency_s=1),
    ]
    # a, b: latency to 1, then 2 + 2 at half speed: both done at 5. c: 5 + 1 + 1.
    assert run(tasks, [LINK]) == [Span(0, 5), Span(0, 5), Span(5, 7)]


def test_a_short_one_leaves_its_share_to_the_long_one() -> None:
    tasks = [StepTask("long", "link", 5), StepTask("short", "link", 1)]
    assert run(tasks, [LINK]) == [Span(0, 6), Span(0, 2)]


def test_a_task_waits_for_all_before_it_on_whatever_resource() -> None:
    tasks = [
        StepTask("f", "core", 1),
        StepTask("s", "link", 4),
        StepTask("u", "core", 1, after=(0, 1)),
    ]
    assert run(tasks, [CORE, LINK])[2] == Span(4, 5)


def test_a_cycle_is_refused() -> None:
    tasks = [StepTask("a", "core", 1, after=(1,)), StepTask("b", "core", 1, after=(0,))]
    with pytest.raises(ValueError, match="a, b wait for each other"):
        run(tasks, [CORE])


works = st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=12)


@given(works, st.integers(1, 4), st.booleans())
def test_no_work_is_lost_and_none_is_done_faster_than_alone(
    drawn: list[tuple[float, float]], slots: int, shared: bool
) -> None:
    tasks = [StepTask(str(n), "r", work, not_before_s=at) for n, (work, at) in enumerate(drawn)]
    spans = run(tasks, [Resource("r", slots, shared)])
    for task, span in zip(tasks, spans, strict=True):
        assert span.begin_s >= task.not_before_s
        assert span.end_s - span.begin_s >= task.work_s * (1 - 1e-9) - 1e-9
    # One that shares is never idle while there is work: it ends when one after the other would.
    if shared or slots == 1:
        end_s = 0.0
        for work, at in sorted(drawn, key=lambda pair: pair[1]):
            end_s = max(end_s, at) + work
        assert max(span.end_s for span in spans) == pytest.approx(end_s, abs=1e-6)
