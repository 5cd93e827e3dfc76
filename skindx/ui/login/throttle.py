"""Wrong passwords cost waiting time, above all to the address that sends them.

Failures are counted for each pair of name and address, so guesses from elsewhere lock out no user.
All addresses together have an allowance for a name, and all names for an address, which bounds a
search from many addresses or over many names; a pair that logged in lately needs neither.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from skindx.ui.shares import network

FREE = 5
"""Tries of a pair before the first wait: everybody mistypes."""
OF_A_NAME, NAME_EVERY_S = 50, 60.0
"""Tries of a name from all addresses: so many at once, then one more each minute."""
OF_AN_ADDRESS, ADDRESS_EVERY_S = 30, 10.0
"""Tries of an address over all names."""
_FIRST_S, _LONGEST_S = 2.0, 900.0
_FORGOTTEN_S = 3600.0
_TRUSTED_S = 30 * 86400.0
_MOST = 10_000
_LONGEST_NAME = 65


class Throttle:
    """Limits attempts at passwords; all in memory."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()
        self._trusted: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._names = Allowance(OF_A_NAME, NAME_EVERY_S, clock)
        self._addresses = Allowance(OF_AN_ADDRESS, ADDRESS_EVERY_S, clock)

    def wait_s(self, name: str, address: str) -> float:
        """Return in how many seconds this pair may try; 0: now."""
        pair = _pair(name, address)
        wait_s = self._pause_s(pair)
        if self._is_trusted(pair):
            return wait_s
        return max(wait_s, self._names.wait_s(pair[0]), self._addresses.wait_s(pair[1]))

    def failed(self, name: str, address: str) -> None:
        """Count a failure."""
        now, pair = self._clock(), _pair(name, address)
        count, last = self._failures.pop(pair, (0, now))
        self._failures[pair] = (1 if now - last > _FORGOTTEN_S else count + 1, now)
        _shorten(self._failures)
        if not self._is_trusted(pair):
            self._names.use(pair[0])
            self._addresses.use(pair[1])

    def succeeded(self, name: str, address: str) -> None:
        """Take back one failure, which was counted before the check, and trust the pair."""
        pair = _pair(name, address)
        self._failures.pop(pair, None)
        if not self._is_trusted(pair):
            self._names.give_back(pair[0])
            self._addresses.give_back(pair[1])
        self._trusted.pop(pair, None)
        self._trusted[pair] = self._clock() + _TRUSTED_S
        _shorten(self._trusted)

    def _is_trusted(self, pair: tuple[str, str]) -> bool:
        return self._trusted.get(pair, float("-inf")) > self._clock()

    def _pause_s(self, pair: tuple[str, str]) -> float:
        now = self._clock()
        count, last = self._failures.get(pair, (0, now))
        if count < FREE:
            return 0.0
        pause_s = min(_LONGEST_S, _FIRST_S * 2.0 ** min(count - FREE, 20))
        return max(0.0, last + pause_s - now)


class Allowance:
    """A token bucket a key: `most` tries at once, one more each `every_s` seconds."""

    def __init__(self, most: int, every_s: float, clock: Callable[[], float]) -> None:
        self._most, self._every_s, self._clock = most, every_s, clock
        self._used: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, key: str) -> float:
        """Return in how many seconds the key has a try left; 0: now."""
        return max(0.0, self._used_of(key) + 1 - self._most) * self._every_s

    def use(self, key: str) -> None:
        """Use up one try."""
        self._put(key, self._used_of(key) + 1)

    def give_back(self, key: str) -> None:
        """Give one try back."""
        self._put(key, self._used_of(key) - 1)

    def _used_of(self, key: str) -> float:
        used, at = self._used.get(key, (0.0, 0.0))
        return max(0.0, used - (self._clock() - at) / self._every_s)

    def _put(self, key: str, used: float) -> None:
        self._used.pop(key, None)
        self._used[key] = (max(0.0, used), self._clock())
        _shorten(self._used)


def _pair(name: str, address: str) -> tuple[str, str]:
    # Longer names do not exist: invented ones must not fill the memory.
    return name[:_LONGEST_NAME], network(address)


def _shorten(table: OrderedDict[Any, Any]) -> None:
    while len(table) > _MOST:
        table.popitem(last=False)
