"""A thread that keeps a worker alive in its queue, and notices when it was taken for dead."""

import threading
from typing import Self

from skindx.workers.leases.leases import Leases

_BEATS = 4
"""Heartbeats in the time of a lease."""


class Heartbeat:
    """Renews a worker's row from `with` on."""

    def __init__(self, leases: Leases, worker: str) -> None:
        self.lost = False
        """The worker was taken for dead: what it works on is another's now."""
        self._leases, self._worker = leases, worker
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="skindx-heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._ended.wait(self._leases.lease_s / _BEATS):
            if not self._is_alive():
                self.lost = True
                return

    def _is_alive(self) -> bool:
        try:
            return self._leases.beat(self._worker)
        except Exception:
            # A database that is away for a moment: the next beat, or the answer, will tell. A
            # thread that died of it would let a worker go on that others take for dead.
            return True
