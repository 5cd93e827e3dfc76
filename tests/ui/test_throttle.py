"""Who waits after wrong passwords, and how many an attacker can try."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.ui.http.login import (
    ADDRESS_EVERY_S,
    FREE,
    NAME_EVERY_S,
    OF_A_NAME,
    OF_AN_ADDRESS,
    Throttle,
    network,
)

HERE, THERE = "192.0.2.1", "198.51.100.7"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def tries(throttle: Throttle, name: str, address: str, most: int) -> int:
    """Return how many of `most` wrong passwords in a row were looked at."""
    looked_at = 0
    for _ in range(most):
        if throttle.wait_s(name, address) == 0:
            throttle.failed(name, address)
            looked_at += 1
    return looked_at


def test_the_wait_of_a_pair_grows_and_ends_with_success() -> None:
    clock = Clock()
    throttle = Throttle(clock)
    waits = []
    for _ in range(FREE + 12):
        assert throttle.wait_s("anna", HERE) == 0
        throttle.failed("anna", HERE)
        waits.append(throttle.wait_s("anna", HERE))
        clock.now += waits[-1]
    assert waits[: FREE - 1] == [0] * (FREE - 1)
    later = waits[FREE - 1 :]
    assert later == sorted(later)
    assert later[0] < later[3] < later[-1] == later[-2] == 900
    throttle.failed("anna", HERE)
    assert throttle.wait_s("anna", HERE) > 0
    throttle.succeeded("anna", HERE)
    assert throttle.wait_s("anna", HERE) == 0


def test_wrong_passwords_lock_out_only_where_they_come_from() -> None:
    throttle = Throttle(Clock())
    assert tries(throttle, "anna", THERE, 20) == FREE
    assert throttle.wait_s("anna", HERE) == 0
    assert throttle.wait_s("ben", THERE) == 0
    for name in "abcdefgh":
        assert tries(throttle, name, HERE, 1) == 1
    assert throttle.wait_s("anna", HERE) == 0


def test_many_addresses_share_the_tries_of_a_name_and_trusted_ones_need_none() -> None:
    clock = Clock()
    throttle = Throttle(clock)
    throttle.succeeded("anna", HERE)
    looked_at = sum(tries(throttle, "anna", f"203.0.113.{n}", 1) for n in range(200))
    assert looked_at == OF_A_NAME
    assert throttle.wait_s("anna", THERE) > 0
    assert throttle.wait_s("anna", HERE) == 0  # logged in from there before
    assert throttle.wait_s("ben", THERE) == 0
    clock.now += NAME_EVERY_S
    assert throttle.wait_s("anna", THERE) == 0
    assert tries(throttle, "anna", HERE, 50) == FREE  # trust does not mean any number


def test_an_address_has_its_tries_over_all_names() -> None:
    clock = Clock()
    throttle = Throttle(clock)
    throttle.succeeded("anna", THERE)
    assert sum(tries(throttle, f"n{n}", THERE, 1) for n in range(200)) == OF_AN_ADDRESS
    assert throttle.wait_s("new colleague", THERE) <= ADDRESS_EVERY_S
    assert throttle.wait_s("anna", THERE) == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["anna", "ben"]),
            st.integers(0, 200).map(lambda n: f"10.0.0.{n}"),
            st.floats(0, 400),
        ),
        max_size=300,
    )
)
def test_the_tries_of_a_name_and_of_an_address_are_bounded(
    attempts: list[tuple[str, str, float]],
) -> None:
    clock = Clock()
    throttle = Throttle(clock)
    counts: dict[str, int] = {}
    for name, address, pause_s in attempts:
        clock.now += pause_s
        if throttle.wait_s(name, address) == 0:
            throttle.failed(name, address)
            counts[name] = counts.get(name, 0) + 1
            counts[address] = counts.get(address, 0) + 1
    for key, count in counts.items():
        most, every_s = (
            (OF_AN_ADDRESS, ADDRESS_EVERY_S) if key[0] == "1" else (OF_A_NAME, NAME_EVERY_S)
        )
        assert count <= most + clock.now / every_s + 1e-6


@pytest.mark.parametrize(
    ("address", "held"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix socket", "unix socket"),
        ("", ""),
    ],
)
def test_an_ipv6_client_holds_a_network(address: str, held: str) -> None:
    assert network(address) == held
