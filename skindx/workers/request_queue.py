"""The queue in which requests wait for a worker: bounded, first come first served."""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")


class QueueFullError(Exception):
    """Too many requests wait already."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"the queue is full; try again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class NoAnswerError(Exception):
    """A request was taken and has no answer."""

    def __init__(self, reason: Literal["failed", "late", "stopped"]) -> None:
        super().__init__(reason)
        self.reason = reason
        """failed: a worker ended over it; late: no answer came in time; stopped: the pool ended."""


@dataclass(eq=False)
class Request(Generic[Q, A]):
    """A request to a worker, and the future of its answer."""

    question: Q
    size_bytes: int = 0
    answer: "asyncio.Future[A]" = field(default_factory=asyncio.Future)
    tries: int = 0
    """How often a worker was lost while it had this request."""

    @property
    def over(self) -> bool:
        """Whether no client waits for the answer any more."""
        return self.answer.done()

    def fail(self, error: Exception) -> None:
        """Answer with an exception, unless no client waits any more."""
        if not self.over:
            self.answer.set_exception(error)


class RequestQueue(Generic[Q, A]):
    """Requests in order; each worker takes a fair share, so that none stands idle."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._requests: deque[Request[Q, A]] = deque()
        self._changed = asyncio.Condition()
        self._takers = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._requests)

    @property
    def size_bytes(self) -> int:
        """Return how many bytes the waiting requests hold."""
        return sum(request.size_bytes for request in self._requests)

    async def put(self, request: Request[Q, A], *, first: bool = False) -> None:
        """Add a request at the end, or before all others."""
        async with self._changed:
            if first:
                self._requests.appendleft(request)
            else:
                self._requests.append(request)
            self._changed.notify_all()

    def remove(self, request: Request[Q, A]) -> None:
        """Take a request out, if it still waits."""
        if request in self._requests:
            self._requests.remove(request)

    async def take(self, most: int) -> list[Request[Q, A]]:
        """Wait for a request; return up to `most`, and no more than the other takers leave over.

        A request whose worker was lost is sent alone, so that it harms no other.
        """
        async with self._changed:
            self._takers += 1
            try:
                await self._changed.wait_for(lambda: self._requests)
                share = min(most, -(-len(self._requests) // self._takers))
            finally:
                self._takers -= 1
            taken = [self._requests.popleft()]
            while len(taken) < share and not taken[0].tries:
                if not self._requests or self._requests[0].tries:
                    break
                taken.append(self._requests.popleft())
            return taken
