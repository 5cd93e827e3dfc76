"""Sessions of logged-in users: random tokens in cookies, and hashes of them here."""

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

LIFE_S = 12 * 3600
_MOST = 10_000
_BASIC_LIFE_S = 300.0


class Sessions:
    """Sessions in memory: a restart of the server ends them all.

    Each is bound to the password's hash under which it began, so that it ends when the password is
    changed, and when the user is removed, even if a user of that name is added again.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: OrderedDict[bytes, tuple[str, str, float]] = OrderedDict()

    def begin(self, user: str, hashed: str) -> str:
        """Return the token of a new session; `hashed` is the user's line in the file of users."""
        token = secrets.token_urlsafe(32)
        self._open[_digest(token)] = (user, hashed, self._clock() + LIFE_S)
        while len(self._open) > _MOST:
            self._open.popitem(last=False)
        return token

    def user(self, token: str, known: Mapping[str, str]) -> str:
        """Return whose session it is, "" for one that is over; `known` are names and hashes now."""
        user, hashed, until = self._open.get(_digest(token), ("", "", 0.0))
        if user and (until < self._clock() or known.get(user) != hashed):
            self.end(token)
            return ""
        return user

    def end(self, token: str) -> None:
        """End a session."""
        self._open.pop(_digest(token), None)


class Remembered:
    """Passwords that were right a moment ago, so that not every request costs a slow hash.

    Kept under a key that is made again at each start and never leaves the process.
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
