import pytest
from hypothesis import given
from hypothesis import strategies as st
from some_plans import cluster, profile, profiles

from skindx_methods.plan.choices import PlannedMember, Workload
from skindx_methods.plan.estimate import Machine
from skindx_methods.plan.search import PlanLimits, search
from skindx_methods.plan.strategy_kinds import hops


def test_two_members_on_two_partitions_change_places_once() -> None:
    found = hops([[2.0, 2.0], [2.0, 2.0]], [100.0, 100.0], seconds_per_byte=0.01, latency_s=0.5)
    assert found == pytest.approx(2 + (0.5 + 1) + 2)


@given(st.integers(1, 8), st.integers(1, 4), st.floats(0.1, 3))
def test_no_epoch_beats_the_bound_and_equal_units_come_near_it(
    members: int, ranks: int, unit: float
) -> None:
    found = hops([[unit] * ranks] * members, [0.0] * members, 0.0, 0.0)
    bound_s = unit * max(members, ranks)  # of an open shop: the longest row or column
    assert bound_s * (1 - 1e-9) <= found <= 1.5 * bound_s
    if members >= 2 * ranks:
        assert found <= 1.26 * bound_s


def test_members_side_by_side_send_nothing_and_hop_with_all_their_state() -> None:
    own = profile()
    work = Workload(tuple(PlannedMember(f"m{n}", own, 8, epochs=2, images=320) for n in range(4)))
    where = Machine(profiles(own), cluster(2))
    apart = search(work, where, PlanLimits(strategy="members", side_by_side=True)).chosen
    # 40 steps of 10.5 s an epoch; two members a rank.
    assert apart.seconds == pytest.approx(2 * 2 * 40 * 10.5)
    assert apart.choice.fragment()["engine"]["schedule"] == "members"
    hopping = search(work, where, PlanLimits(strategy="hop", side_by_side=True)).chosen
    state_s = 0.01 + 1e-4 * (12_000 + 24_000)
    assert apart.seconds < hopping.seconds < apart.seconds + 2 * 4 * 2 * state_s
