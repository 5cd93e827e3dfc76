"""The greedy schedule of hopping members against what no schedule beats."""

import random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx_bench.cluster.hop import bound_s, makespan_s
from skindx_methods.hopping.hop_units import choose


def test_the_bound_is_the_busiest_worker_or_member() -> None:
    assert bound_s([[1, 2], [3, 4]]) == 7  # the second member
    assert bound_s([[1, 9], [1, 9]]) == 18  # the second worker


def test_two_members_on_two_workers_by_hand() -> None:
    """Each begins on a worker of its own, then they change over."""
    for seed in range(20):
        took, bound = makespan_s([[2.0, 2.0], [2.0, 2.0]], 1, random.Random(seed))
        assert (took, bound) == (4.0, 4.0)


def test_one_member_is_sequential() -> None:
    took, bound = makespan_s([[1.0, 2.0, 3.0]], 2, random.Random(0))
    assert took == bound == 12.0


@pytest.mark.parametrize("unlike", [0.0, 0.5])
def test_eight_members_on_four_workers_are_within_a_tenth_of_the_bound(unlike: float) -> None:
    ratios = []
    for seed in range(60):
        rng = random.Random(seed)
        speeds = [1 + unlike * rng.uniform(-1, 1.5) for _ in range(8)]
        times_MP = [[speed * rng.uniform(0.95, 1.05) for _ in range(4)] for speed in speeds]
        took, bound = makespan_s(times_MP, 5, rng, validation=0.15, jitter=0.02)
        assert took >= bound - 1e-9
        ratios.append(took / bound)
    assert mean(ratios) < 1.06
    assert sorted(ratios)[int(0.95 * len(ratios))] <= 1.1


@given(
    st.lists(st.lists(st.floats(0.1, 10), min_size=3, max_size=3), min_size=1, max_size=6),
    st.integers(1, 3),
    st.integers(0, 99),
)
def test_greedy_is_never_twice_the_bound(
    times_MP: list[list[float]], epochs: int, seed: int
) -> None:
    """Between two barriers it could be; epochs of members overlap freely."""
    took, bound = makespan_s(times_MP, epochs, random.Random(seed))
    assert bound - 1e-6 <= took <= 2 * bound + 1e-6 or epochs > 1
    assert took <= sum(map(sum, times_MP)) * epochs + 1e-6


def test_members_with_as_much_left_are_drawn_at_random() -> None:
    rng = random.Random(1)
    assert {choose([5.0, 5.0, 4.99], rng) for _ in range(60)} == {0, 1, 2}
    assert {choose([5.0, 4.0], rng) for _ in range(60)} == {0}
