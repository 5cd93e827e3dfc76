"""Wrong passwords cost patience: the more of them, the longer until the next may be tried."""

import time
from collections import OrderedDict
from collections.abc import Callable

FREE = 5
"""Tries before the first wait: everybody mistypes."""
_FIRST_S, _LONGEST_S = 2.0, 900.0
_FORGOTTEN_S = 3600.0
_MOST = 10_000


class Throttle:
    """Counts failures of keys, such as a name and an address, each for itself."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def wait_s(self, *keys: str) -> float:
        """Return in how many seconds the next try is allowed; 0: now."""
        now = self._clock()
        return max((self._left(key, now) for key in keys), default=0.0)

    def failed(self, *keys: str) -> None:
        """Note a failure of each key."""
        now = self._clock()
        for key in keys:
            count, last = self._failures.pop(key, (0, now))
            self._failures[key] = (1 if now - last > _FORGOTTEN_S else count + 1, now)
        while len(self._failures) > _MOST:
            self._failures.popitem(last=False)

    def succeeded(self, *keys: str) -> None:
        """Forget the failures of each key."""
        for key in keys:
            self._failures.pop(key, None)

    def _left(self, key: str, now: float) -> float:
        count, last = self._failures.get(key, (0, now))
        if count < FREE:
            return 0.0
        pause_s = min(_LONGEST_S, _FIRST_S * 2.0 ** min(count - FREE, 20))
        return max(0.0, last + pause_s - now)
