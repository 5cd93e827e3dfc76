"""The pool: a `Diagnoser` behind which several processes work, and which outlives each of them."""

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from pydantic import Field

from skindx.config import Settings
from skindx.diagnosis.answer import Answer
from skindx.diagnosis.case import Case
from skindx.diagnosis.refusal import Refusal, Refused
from skindx.errors import JobError, UserError
from skindx.ui.pool.errors import Busy, Unanswered
from skindx.workers import framing
from skindx.workers.process import Lost, Worker, started
from skindx.workers.request_queue import Line, Ticket

log = logging.getLogger(__name__)

_TRIES = 2
_RETRY_AFTER_S = 5
_PAUSE_S = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Before the next start of a worker that ends again and again before it is ready."""

_NO_ANSWER = "the photo could not be judged, the server failed at it; try another photo."
_TOO_LONG = "no answer came in time, the server is too busy; try again in a few minutes."


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class PoolSettings(Settings):
    """How many work, how many may wait, and for how long."""

    workers: int = Field(default_factory=cores, ge=1, le=256)
    batch: int = Field(4, ge=1, le=64)
    """Most cases that a worker takes at once."""
    waiting: int = Field(128, ge=1)
    """Most cases that wait for a worker; one more is refused."""
    waiting_mb: int = Field(512, ge=64)
    """Most 2^20 bytes of photos that wait for a worker: they are held in memory."""
    work_s: float = Field(60.0, gt=0)
    """A worker that needs longer for a case is ended."""
    patience_s: float = Field(180.0, gt=0)
    """No case waits longer for its answer, work included."""


@dataclass(frozen=True)
class PoolStatus:
    """How the pool is at this moment."""

    workers: int
    ready: int
    waiting: int
    capacity: int
    restarts: int
    problem: str


class Pool:
    """Worker processes behind one line; start and stop it in one event loop.

    `command` starts a worker: see `loading.worker_command`.
    """

    def __init__(self, command: Sequence[str], settings: PoolSettings) -> None:
        self.settings = settings
        self._command = command
        self._line = Line(settings.waiting)
        self._tasks: list[asyncio.Task[None]] = []
        self._ready: dict[int, Worker] = {}
        self._open: set[Ticket] = set()
        self._restarts = 0
        self._problem = ""

    async def __aenter__(self) -> Self:
        """Start the workers and wait until all are ready.

        Raises UserError for a bundle that cannot be loaded, JobError for a worker that ends.
        """
        begun = [asyncio.get_running_loop().create_future() for _ in range(self.settings.workers)]
        self._tasks = [asyncio.create_task(self._keep(n, each)) for n, each in enumerate(begun)]
        try:
            await asyncio.gather(*begun)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the workers; cases that still wait get an error."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        for ticket in self._open:
            _fail(ticket, Unanswered("the server is being stopped; try again later."))

    @property
    def status(self) -> PoolStatus:
        """How many work and wait."""
        return PoolStatus(
            self.settings.workers,
            len(self._ready),
            len(self._line),
            self._line.capacity,
            self._restarts,
            self._problem,
        )

    @property
    def pids(self) -> list[int]:
        """The processes that are ready."""
        return [worker.process.pid for worker in self._ready.values()]

    async def diagnose(self, case: Case) -> Answer:
        """Answer a case. Raises Refused, Busy, Unanswered or another UserError; never hangs."""
        ticket = Ticket(case)
        size_bytes = self._line.size_bytes + ticket.size_bytes
        if len(self._line) >= self._line.capacity or size_bytes > self.settings.waiting_mb << 20:
            raise Busy(_RETRY_AFTER_S)
        self._open.add(ticket)
        try:
            async with asyncio.timeout(self.settings.patience_s):
                await self._line.join(ticket)
                return await ticket.answer
        except TimeoutError:
            raise Unanswered(_TOO_LONG) from None
        finally:
            ticket.answer.cancel()
            self._open.discard(ticket)
            self._line.leave(ticket)

    async def _keep(self, number: int, begun: "asyncio.Future[None]") -> None:
        """Have one worker running, always."""
        failures = 0
        while True:
            await asyncio.sleep(_PAUSE_S[min(failures, len(_PAUSE_S) - 1)])
            failures += 1
            try:
                async with started(self._command) as worker:
                    await self._until_ready(worker)
                    self._ready[number], self._problem, failures = worker, "", 0
                    if not begun.done():
                        begun.set_result(None)
                    await self._feed(worker)
            except (UserError, Lost, OSError) as error:
                self._problem = str(error) if isinstance(error, UserError) else "a worker ended"
                if not begun.done():
                    begun.set_exception(_first_failure(error))
                    return
                log.warning("a worker ended (%s) and is started again", error)
                self._restarts += 1
            finally:
                self._ready.pop(number, None)

    async def _until_ready(self, worker: Worker) -> None:
        told = await worker.told()
        if "unusable" in told:
            raise UserError(told["unusable"])

    async def _feed(self, worker: Worker) -> None:
        """Hand cases to a worker until it is lost. Raises Lost."""
        while True:
            reply = asyncio.ensure_future(worker.told())
            taking = asyncio.ensure_future(self._line.take(self.settings.batch))
            try:
                await asyncio.wait({reply, taking}, return_when=asyncio.FIRST_COMPLETED)
                if reply.done():
                    for ticket in reversed(taking.result() if taking.done() else ()):
                        await self._line.join(ticket, first=True)
                    raise Lost("it ended while it had nothing to do")
                await self._ask(worker, reply, taking.result())
            finally:
                reply.cancel()
                taking.cancel()
                with suppress(asyncio.CancelledError, Lost):
                    await reply

    async def _ask(
        self, worker: Worker, reply: "asyncio.Future[Any]", taken: Sequence[Ticket]
    ) -> None:
        tickets = [each for each in taken if not each.over]
        if not tickets:
            return
        try:
            async with asyncio.timeout(self.settings.work_s * len(tickets)):
                await worker.tell([framing.plain(each.case) for each in tickets])
                told = await reply
            for ticket, each in zip(tickets, told, strict=True):
                _settle(ticket, each)
        except (Lost, TimeoutError, ValueError, LookupError, TypeError) as error:
            # One of them may be what ended it: each is tried once more, alone.
            for ticket in reversed(tickets):
                ticket.tries += 1
                if ticket.tries >= _TRIES:
                    _fail(ticket, Unanswered(_NO_ANSWER))
                elif not ticket.over:
                    await self._line.join(ticket, first=True)
            raise Lost(str(error) or "it took too long") from None


def _settle(ticket: Ticket, told: dict[str, Any]) -> None:
    if "answer" in told:
        answer = framing.rebuilt(Answer, told["answer"])
        if not ticket.over:
            ticket.answer.set_result(answer)
    elif "refused" in told:
        refusals = tuple(framing.rebuilt(Refusal, refusal) for refusal in told["refusals"])
        _fail(ticket, Refused(told["gate"], told["refused"], told["photo"], refusals))
    elif "error" in told:
        _fail(ticket, UserError(told["error"]))
    else:
        _fail(ticket, Unanswered(_NO_ANSWER))


def _fail(ticket: Ticket, error: Exception) -> None:
    if not ticket.over:
        ticket.answer.set_exception(error)


def _first_failure(error: Exception) -> Exception:
    if isinstance(error, UserError):
        return error
    return JobError("a worker process ended before it was ready; its own words stand above.")
