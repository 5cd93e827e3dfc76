"""Connections that a slow or greedy client cannot keep: deadlines, and a most for each address.

uvicorn ends only a connection that rests between two requests. A client that connects and sends
nothing, sends half a header, trickles a body that is not read, or does not read its answer would
hold its connection for ever.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from skindx.ui.shares import PER_ADDRESS, Shares, network

_FULL = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


@dataclass(frozen=True)
class Patience:
    """How long connections may wait for their clients, and how many of them there may be."""

    header_s: float = 10.0
    """From connecting, or from the last answer, to the end of the next request's header."""
    stalled_s: float = 20.0
    """An answer has to move on within this time ..."""
    bytes_per_s: float = 1024.0
    """... at this mean rate."""
    per_address: int = PER_ADDRESS
    total: int = 1000


class PatientProtocol(H11Protocol):
    """HTTP/1.1 of uvicorn, with deadlines; `check` has to be called about once a second."""

    patience: Patience
    crowd: Shares
    is_proxy: Callable[[str], bool]

    def connection_made(self, transport: Any) -> None:
        """Take a connection, or end it where its address or all together have too many."""
        self._entered = False
        super().connection_made(transport)
        self._waits_since = time.monotonic()
        self._unsent: tuple[float, int] | None = None
        address = self.client[0] if self.client else ""
        # A proxy brings the requests of many clients; `RequestShares` separates them.
        self._address = "" if self.is_proxy(address) else network(address)
        exceeded = self.crowd.exceeded(self._address, 1)
        if exceeded == "total" or (exceeded and self._address):
            self._end(_FULL)
            return
        self._entered = True
        self.crowd.add(self._address, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        if self._entered:
            self._entered = False
            self.crowd.add(self._address, -1)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes, unless the connection is being ended."""
        if not self.transport.is_closing():
            super().data_received(data)

    def on_response_complete(self) -> None:
        """Count from here how long the next request takes."""
        self._waits_since = time.monotonic()
        super().on_response_complete()

    def check(self, now: float) -> None:
        """End the connection if its client is too slow."""
        if self._is_stalled(now):
            self.transport.abort()
        elif self._is_between_requests and now - self._waits_since > self.patience.header_s:
            if self.transport.is_closing():
                return
            half = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
            self._end(_LATE if half else b"")

    @property
    def _is_between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _is_stalled(self, now: float) -> bool:
        """Tell whether what is to be sent has moved on too slowly."""
        size = self.transport.get_write_buffer_size()
        if not size:
            self._unsent = None
        elif self._unsent is None:
            self._unsent = now, size
        elif now - self._unsent[0] >= self.patience.stalled_s:
            since, before = self._unsent
            self._unsent = now, size
            return before - size < self.patience.bytes_per_s * (now - since)
        return False

    def _end(self, answer: bytes) -> None:
        if answer:
            self.transport.write(answer)
        self.transport.close()


def protocol(patience: Patience, is_proxy: Callable[[str], bool]) -> type[PatientProtocol]:
    """Return the protocol of one server; connections from proxies are counted together."""
    crowd = Shares(patience.per_address, patience.total)
    fields = {"patience": patience, "crowd": crowd, "is_proxy": staticmethod(is_proxy)}
    return type("ServerProtocol", (PatientProtocol,), fields)
