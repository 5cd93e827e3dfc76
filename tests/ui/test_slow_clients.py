"""Clients that are silent, slow or too many, by raw sockets; others are still answered."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_server import Client, running, simple

from skindx.ui.http.request_limits import (
    BodyLimit,
    ConnectionQuota,
    Pace,
    RequestQuota,
    client_of,
    network,
)
from skindx.ui.http.server import ConnectionTimeouts

PATIENCE = ConnectionTimeouts(header_s=1.5, stalled_s=1.5, per_address=12, total=40)
PACE = Pace(silence_s=1.5, grace_s=1.5)
SOON_S = 12.0
_sources = count(2)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    limited = BodyLimit(simple, lambda path: 1 << 20, ConnectionQuota(4 << 20, 8 << 20), PACE)
    with running(limited, PATIENCE) as port:
        yield port


@pytest.fixture
def source() -> str:
    """Return a loopback address that no other test uses."""
    return f"127.0.1.{next(_sources)}"


POST = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n"


SLOW = {
    "silent": (b"", b""),
    "half a header": (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", b""),
    "a header that trickles": (b"GET / HTTP/1.1\r\nX-Long: ", b"x"),
    "half a second header": (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET / HT", b""),
    "a second header that trickles": (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /", b"x"),
    "no body": (POST, b""),
    "a body that trickles": (POST, b"x"),
    "a body that nobody reads": (POST.replace(b"POST / ", b"POST /refuse "), b"x"),
}


def test_slow_clients_are_cut_and_meanwhile_others_are_answered(port: int, source: str) -> None:
    slow = {name: Client(port, source) for name in SLOW}
    for name, client in slow.items():
        client.send(SLOW[name][0])
    with ThreadPoolExecutor(len(slow)) as threads:
        ends = {
            name: threads.submit(client.ended_after_s, SOON_S, SLOW[name][1])
            for name, client in slow.items()
        }
        assert Client(port, source).get() == 200
        assert all(end.result() >= 0.5 for end in ends.values()), ends
    assert Client(port, source).get() == 200


def test_an_answer_that_is_not_read_is_given_up(port: int, source: str) -> None:
    client = Client(port, source)
    client.send(b"GET /large HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    client.closed_without_reading_after_s(SOON_S)


def test_timeouts_with_a_client_that_keeps_its_connection(port: int, source: str) -> None:
    client = Client(port, source)
    for _ in range(3):
        assert client.get("/hold") == 200  # a slow answer is not the client's fault
    assert client.get() == 200


def test_one_address_cannot_take_the_places_of_others(port: int, source: str) -> None:
    crowd = [Client(port, source) for _ in range(3 * PATIENCE.per_address)]
    # Those over the most are ended, the others may still ask.
    assert sum(client.get() == 200 for client in crowd) == PATIENCE.per_address
    assert Client(port, f"127.0.2.{source.rpartition('.')[2]}").get() == 200
    for client in crowd:
        client.close()


def test_eight_trickling_bodies_and_a_silent_crowd_delay_nobody(port: int, source: str) -> None:
    slow = [Client(port, source) for _ in range(8)]
    for client in slow:
        client.send(POST)
    silent = [Client(port, source) for _ in range(30)]
    other = f"127.0.2.{source.rpartition('.')[2]}"
    assert Client(port, other).get() == 200
    for client in slow + silent:
        client.ended_after_s(SOON_S)
    assert Client(port, source).get() == 200


def test_behind_a_proxy_the_forwarded_address_counts() -> None:
    shared = RequestQuota(simple, 3)
    with running(shared, ConnectionTimeouts(per_address=5), proxy="127.0.0.1") as port:
        crowd = [Client(port) for _ in range(12)]
        for client in crowd:
            client.send(b"GET /hold HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n")
        assert Client(port).get("/", "X-Forwarded-For: 192.0.2.1") == 429
        assert Client(port).get("/", "X-Forwarded-For: 192.0.2.2") == 200
        # Who is no proxy cannot choose the address that counts.
        liars = [Client(port, "127.0.3.1") for _ in range(3)]
        for number, client in enumerate(liars):
            forged = f"X-Forwarded-For: 192.0.2.{number}".encode()
            client.send(b"GET /hold HTTP/1.1\r\nHost: h\r\n" + forged + b"\r\n\r\n")
        assert Client(port, "127.0.3.1").get("/", "X-Forwarded-For: 192.0.2.9") == 429
        for client in crowd + liars:
            client.close()


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("unix", "unix"),
    ],
)
def test_of_an_ipv6_address_the_network_counts(address: str, counted: str) -> None:
    assert network(address) == counted
    assert client_of({"client": (address, 1)}) == counted


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 50)), max_size=30))
def test_shares_never_exceed_their_limits(asked: list[tuple[str, int]]) -> None:
    shares, taken = ConnectionQuota(60, 90), []
    for client, amount in asked:
        if not shares.exceeded(client, amount):
            shares.add(client, amount)
            taken.append((client, amount))
        assert shares.held == sum(amount for _, amount in taken) <= 90
        for name in "ab":
            assert sum(amount for client, amount in taken if client == name) <= 60
    for client, amount in taken:
        shares.add(client, -amount)
    assert shares.held == 0
    assert not shares.exceeded("a", 60)
