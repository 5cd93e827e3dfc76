import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.planning.strategies.hopping import hops


def test_two_members_on_two_partitions_change_places_once() -> None:
    found = hops([[2.0, 2.0], [2.0, 2.0]], [100.0, 100.0], seconds_per_byte=0.01, latency_s=0.5)
    assert found.seconds == pytest.approx(2 + (0.5 + 1) + 2)
    assert found.bound_s == 4
    assert found.sent_bytes == 200


@given(st.integers(1, 8), st.integers(1, 4), st.floats(0.1, 3))
def test_no_epoch_beats_the_bound_and_equal_units_come_near_it(
    members: int, ranks: int, unit: float
) -> None:
    found = hops([[unit] * ranks] * members, [0.0] * members, 0.0, 0.0)
    assert found.seconds >= found.bound_s * (1 - 1e-9)
    assert found.seconds <= 1.5 * found.bound_s
    if members >= 2 * ranks:
        assert found.seconds <= 1.26 * found.bound_s
