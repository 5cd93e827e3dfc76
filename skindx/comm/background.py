"""Work that goes on beside backward: on a CPU by a thread, on a GPU in its own queue."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch


class Background:
    """Runs calls one after the other, in the order in which they were given.

    When one fails, those after it are not begun: they would wait for ranks that are gone.
    """

    def __init__(self, device: torch.device) -> None:
        """On a GPU a call only queues work for the device, so it is made at once."""
        self._thread = ThreadPoolExecutor(1, "exchange") if device.type == "cpu" else None
        self._waiting: list[Future[None]] = []
        self._failed = False

    def do(self, call: Callable[[], None]) -> None:
        """Begin with `call` when those before it are done."""
        if self._thread is None:
            call()
        else:
            self._waiting.append(self._thread.submit(self._run, call))

    def _run(self, call: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            call()
        except BaseException:
            self._failed = True
            raise

    def wait(self) -> None:
        """Wait for all of them; what one raised is raised here."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            future.result()

    def close(self) -> None:
        """End the thread."""
        if self._thread:
            self._thread.shutdown(wait=False, cancel_futures=True)
