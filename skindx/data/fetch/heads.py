"""An answer's head (status line and headers) has an end: Twisted collects whatever comes."""

from collections.abc import Iterator
from typing import Any

from twisted.python.failure import Failure
from twisted.web._newclient import HEADER, STATUS, HTTP11ClientProtocol
from twisted.web.client import _HTTP11ClientFactory

MAX_HEAD_BYTES = 262_144


class HeadTooLongError(Exception):
    """A server sent more headers, or answers before the answer (100 Continue), than any needs."""


class LimitedProtocol(HTTP11ClientProtocol):  # type: ignore[misc, unused-ignore]
    """One connection; it is given up when a head goes on and on."""

    _head_bytes = 0

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 (Twisted's name)
        """Parse what came, and count it while no body has begun."""
        super().dataReceived(data)
        if self._parser is None or self._parser.state not in (STATUS, HEADER):
            self._head_bytes = 0
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._giveUp(Failure(HeadTooLongError(f"more than {MAX_HEAD_BYTES} bytes of head")))


class LimitedFactory(_HTTP11ClientFactory):  # type: ignore[misc, unused-ignore]
    """Makes such connections for Scrapy's pool."""

    def buildProtocol(self, addr: Any) -> LimitedProtocol:  # noqa: N802 (Twisted's name)
        """Return the protocol of a new connection."""
        return LimitedProtocol(self._quiescentCallback)


def head_too_long(problem: BaseException) -> bool:
    """Tell whether this is why no answer came; Twisted and Scrapy wrap the reason."""
    return any(isinstance(reason, HeadTooLongError) for reason in _reasons(problem))


def _reasons(problem: BaseException | None) -> Iterator[BaseException]:
    while problem is not None:
        yield problem
        for failure in getattr(problem, "reasons", None) or ():
            yield from _reasons(failure.value)
        problem = problem.__cause__
