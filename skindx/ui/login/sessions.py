"""Who is logged in: random tokens in cookies, and hashes of them here."""

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

LIFE_S = 12 * 3600
_MOST = 10_000
_BASIC_LIFE_S = 300.0


class Sessions:
    """Sessions in memory: a restart of the server ends them all."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: OrderedDict[bytes, tuple[str, float]] = OrderedDict()

    def begin(self, user: str) -> str:
        """Return the token of a new session."""
        token = secrets.token_urlsafe(32)
        self._open[_digest(token)] = (user, self._clock() + LIFE_S)
        while len(self._open) > _MOST:
            self._open.popitem(last=False)
        return token

    def user(self, token: str) -> str:
        """Return whose session it is; "" for none and for one that is over."""
        user, until = self._open.get(_digest(token), ("", 0.0))
        if user and until < self._clock():
            self.end(token)
            return ""
        return user

    def end(self, token: str) -> None:
        """End a session."""
        self._open.pop(_digest(token), None)

    def end_all(self, user: str) -> None:
        """End all sessions of a user."""
        for key in [key for key, (whose, _) in self._open.items() if whose == user]:
            del self._open[key]


class Remembered:
    """Passwords that were right a moment ago, so that not every request costs a slow hash.

    Kept under a key that is made anew at each start and never leaves the process.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._key = clock, secrets.token_bytes(32)
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def holds(self, name: str, password: str, hashed: str) -> bool:
        """Tell whether this password was right for this hash lately."""
        return self._until.get(self._digest(name, password, hashed), 0.0) > self._clock()

    def add(self, name: str, password: str, hashed: str) -> None:
        """Remember a password that was right."""
        self._until[self._digest(name, password, hashed)] = self._clock() + _BASIC_LIFE_S
        while len(self._until) > _MOST:
            self._until.popitem(last=False)

    def _digest(self, *parts: str) -> bytes:
        return hmac.digest(self._key, "\0".join(parts).encode(), "sha256")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
