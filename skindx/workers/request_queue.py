"""The line in which cases wait for a worker: bounded, first come first served."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from skindx.diagnosis.answer import Answer
from skindx.diagnosis.case import Case


@dataclass(eq=False)
class Ticket:
    """A waiting case, and where its answer goes."""

    case: Case
    answer: asyncio.Future[Answer] = field(default_factory=asyncio.Future)
    tries: int = 0
    """How often a worker was lost while it had this case."""

    @property
    def size_bytes(self) -> int:
        """Return how many bytes its photos have."""
        return sum(map(len, self.case.photos))

    @property
    def over(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.answer.done()


class Line:
    """Cases in order; whoever takes from it gets a fair share, so that no worker stands idle."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._tickets: deque[Ticket] = deque()
        self._changed = asyncio.Condition()
        self._takers = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._tickets)

    @property
    def size_bytes(self) -> int:
        """Return how many bytes the photos have that wait."""
        return sum(ticket.size_bytes for ticket in self._tickets)

    async def join(self, ticket: Ticket, *, first: bool = False) -> None:
        """Add a ticket at the end, or before all others."""
        async with self._changed:
            if first:
                self._tickets.appendleft(ticket)
            else:
                self._tickets.append(ticket)
            self._changed.notify_all()

    def leave(self, ticket: Ticket) -> None:
        """Forget a ticket, if it still waits."""
        if ticket in self._tickets:
            self._tickets.remove(ticket)

    async def take(self, most: int) -> list[Ticket]:
        """Wait for a case; return up to `most`, and no more than the other takers leave over.

        A case that a worker was lost with comes alone: it shall harm no other.
        """
        async with self._changed:
            self._takers += 1
            try:
                await self._changed.wait_for(lambda: self._tickets)
                share = min(most, -(-len(self._tickets) // self._takers))
            finally:
                self._takers -= 1
            taken = [self._tickets.popleft()]
            while len(taken) < share and not taken[0].tries:
                if not self._tickets or self._tickets[0].tries:
                    break
                taken.append(self._tickets.popleft())
            return taken
