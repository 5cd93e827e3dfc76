"""A pool of worker processes behind one bounded queue, which outlives each of them."""

import asyncio
import hashlib
import logging
import signal
import socket
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, Self, TypeVar

from pydantic import Field

from skindx.core.atomic_files import memory_folder, private_folder
from skindx.core.errors import JobError, UserError
from skindx.core.machine import cpu_count
from skindx.core.settings_base import Settings
from skindx.workers import worker_process
from skindx.workers.worker_process import start

log = logging.getLogger(__name__)

_BUFFER_BYTES = 1 << 20
_ROOM_BYTES = 256 << 20
_TRIES = 2
_END_S = 1.0
_MOST_REMEMBERED = 10_000
"""Most digests that are kept of questions which ended a worker, as long as the pool lives."""
_RETRY_AFTER_S = 5
_PAUSE_S = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses in seconds before the next start of a worker that keeps ending before it is ready."""

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


class Lost(Exception):  # noqa: N818
    """The process ended, or sent what is no message."""


class WorkerProcess:
    """One running process; made by `started`."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        process: "subprocess.Popen[bytes]",
    ) -> None:
        self._reader, self._writer, self._process = reader, writer, process

    async def was_killed(self) -> bool:
        """Tell whether it ended by SIGKILL: for want of memory, or by another hand than ours."""
        with suppress(subprocess.TimeoutExpired):
            return await asyncio.to_thread(self._process.wait, _END_S) == -signal.SIGKILL
        return False

    async def receive(self) -> Any:
        """Return the next message. Raises Lost when the process ends instead."""
        try:
            return await worker_process.receive_async(self._reader)
        except (EOFError, OSError, ValueError, LookupError, TypeError) as error:
            raise Lost(type(error).__name__) from None

    async def send(self, body: Any) -> None:
        """Send a message. Raises Lost when the process has ended."""
        try:
            self._writer.write(worker_process.pack(body))
            await self._writer.drain()
        except OSError as error:
            raise Lost(type(error).__name__) from None


@asynccontextmanager
async def started(
    command: Sequence[str], where: Path | None = None
) -> AsyncIterator[WorkerProcess]:
    """Start a worker, and end its process when the block ends.

    Its arguments are the command's, a connection's descriptor, and a folder. It is a new process
    and no fork: nothing of this one's memory, threads and files is in it. Its temporary files lie
    in that folder, below `where` or in memory where there is room, and are deleted with it.
    """
    ours, theirs = socket.socketpair()
    with private_folder("skindx-worker-", where or memory_folder(_ROOM_BYTES)) as folder, ours:
        with theirs:
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            process = start(
                [*command, str(theirs.fileno()), str(folder)],
                {"MALLOC_ARENA_MAX": "2", "TMPDIR": str(folder)},
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl+C goes to the server alone: it ends its workers itself
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        try:
            reader, writer = await asyncio.open_connection(sock=ours, limit=_BUFFER_BYTES)
            try:
                yield WorkerProcess(reader, writer, process)
            finally:
                writer.transport.abort()
        finally:
            process.kill()  # it holds nothing that would have to be put away
            process.wait()


class PoolSettings(Settings):
    """Limits of a pool: requests at work, requests that wait, and times."""

    workers: int = Field(default_factory=cpu_count, ge=1, le=256)
    batch: int = Field(4, ge=1, le=64)
    """Most requests that a worker takes at once."""
    waiting: int = Field(128, ge=1, le=10**6)
    """Most requests that wait for a worker; one more is refused."""
    waiting_mb: int = Field(512, ge=64, le=10**8)
    """Most 2^20 bytes of requests that wait for a worker: they are held in memory."""
    work_s: float = Field(60.0, gt=0, le=1e6)
    """Seconds after which a worker that still works on a request is ended."""
    patience_s: float = Field(180.0, gt=0, le=1e6)
    """Longest wait of a request for its answer, in seconds, work included."""


@dataclass(frozen=True)
class PoolStatus:
    """State of the pool at this moment."""

    workers: int
    ready: int
    waiting: int
    capacity: int
    restarts: int
    problem: str


class WorkerPool(Generic[Q, A]):
    """Worker processes behind one queue; start and stop it in one event loop.

    `command` starts a worker, which answers with `worker_process.serve`. `encode` turns a question
    into plain values and bytes, `decode` an answer back into a value, or into the exception to
    raise; it raises ValueError, LookupError or TypeError for what is no answer. `size_bytes` says
    how much memory a waiting question takes. The workers' own folders lie in `folder`, else in
    memory.
    """

    def __init__(
        self,
        command: Sequence[str],
        settings: PoolSettings,
        *,
        encode: Callable[[Q], Any],
        decode: Callable[[Any], A | Exception],
        size_bytes: Callable[[Q], int],
        folder: Path | None = None,
    ) -> None:
        self.settings = settings
        self._folder = folder
        self._command = command
        self._encode, self._decode, self._size_bytes = encode, decode, size_bytes
        self._queue: RequestQueue[Q, A] = RequestQueue(settings.waiting)
        self._tasks: list[asyncio.Task[None]] = []
        self._ready: set[int] = set()
        self._open: set[Request[Q, A]] = set()
        self._restarts = 0
        self._problem = ""
        self._fatal: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        """Start the workers and wait until all are ready.

        Raises UserError for what a worker cannot load, JobError for a worker that ends.
        """
        loop = asyncio.get_running_loop()
        begun = [loop.create_future() for _ in range(self.settings.workers)]
        self._tasks = [
            asyncio.create_task(self._keep(number, first)) for number, first in enumerate(begun)
        ]
        try:
            await asyncio.gather(*begun)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the workers; requests that still wait get an error."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        for request in self._open:
            request.fail(NoAnswerError("stopped"))

    @property
    def status(self) -> PoolStatus:
        """How many work and wait."""
        return PoolStatus(
            self.settings.workers,
            len(self._ready),
            len(self._queue),
            self._queue.capacity,
            self._restarts,
            self._problem,
        )

    async def ask(self, question: Q) -> A:
        """Return the answer to a question; never hangs.

        Raises QueueFullError, NoAnswerError, or what `decode` returned. A question that ended a
        worker, alone and by itself, is not tried again, whoever brings it.
        """
        request: Request[Q, A] = Request(question, self._size_bytes(question))
        # Most sizes are of no such question, and need no digest.
        if request.size_bytes in self._fatal.values() and self._digest(question) in self._fatal:
            raise NoAnswerError("failed")
        size_bytes = self._queue.size_bytes + request.size_bytes
        full = len(self._queue) >= self._queue.capacity
        if full or size_bytes > self.settings.waiting_mb << 20:
            raise QueueFullError(_RETRY_AFTER_S)
        self._open.add(request)
        try:
            async with asyncio.timeout(self.settings.patience_s):
                await self._queue.put(request)
                return await request.answer
        except TimeoutError:
            raise NoAnswerError("late") from None
        finally:
            request.answer.cancel()
            self._open.discard(request)
            self._queue.remove(request)

    async def _keep(self, number: int, begun: "asyncio.Future[None]") -> None:
        """Have one worker running, always."""
        failures = 0
        while True:
            await asyncio.sleep(_PAUSE_S[min(failures, len(_PAUSE_S) - 1)])
            failures += 1
            try:
                async with started(self._command, self._folder) as worker:
                    await _until_ready(worker)
                    self._ready.add(number)
                    self._problem, failures = "", 0
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
                self._ready.discard(number)

    async def _feed(self, worker: WorkerProcess) -> None:
        """Hand requests to a worker until it is lost. Raises Lost."""
        while True:
            reply = asyncio.ensure_future(worker.receive())
            taking = asyncio.ensure_future(self._queue.take(self.settings.batch))
            try:
                await asyncio.wait({reply, taking}, return_when=asyncio.FIRST_COMPLETED)
                if reply.done():
                    for request in reversed(taking.result() if taking.done() else ()):
                        await self._queue.put(request, first=True)
                    raise Lost("it ended while it had nothing to do")
                await self._exchange(worker, reply, taking.result())
            finally:
                reply.cancel()
                taking.cancel()
                with suppress(asyncio.CancelledError, Lost):
                    await reply

    async def _exchange(
        self, worker: WorkerProcess, reply: "asyncio.Future[Any]", taken: Sequence[Request[Q, A]]
    ) -> None:
        """Send requests to a worker and take its answers. Raises Lost."""
        requests = [request for request in taken if not request.over]
        if not requests:
            return
        try:
            async with asyncio.timeout(self.settings.work_s * len(requests)):
                await worker.send([self._encode(request.question) for request in requests])
                answers = await reply
            for request, plain in zip(requests, answers, strict=True):
                self._finish(request, self._decode(plain))
        except (Lost, TimeoutError, ValueError, LookupError, TypeError) as error:
            # One of several may be what ended it: each is tried once more, alone.
            by_itself = len(requests) == 1 and not (
                isinstance(error, Lost) and await worker.was_killed()
            )
            for request in reversed(requests):
                request.tries += 1
                if request.tries >= _TRIES or by_itself:
                    self._remember(request)
                    request.fail(NoAnswerError("failed"))
                elif not request.over:
                    await self._queue.put(request, first=True)
            raise Lost(str(error) or "it took too long") from None

    def _digest(self, question: Q) -> str:
        return hashlib.sha256(worker_process.pack(self._encode(question))).hexdigest()

    def _remember(self, request: Request[Q, A]) -> None:
        self._fatal[self._digest(request.question)] = request.size_bytes
        if len(self._fatal) > _MOST_REMEMBERED:
            del self._fatal[next(iter(self._fatal))]

    def _finish(self, request: Request[Q, A], answer: A | Exception) -> None:
        if isinstance(answer, Exception):
            request.fail(answer)
        elif not request.over:
            request.answer.set_result(answer)


async def _until_ready(worker: WorkerProcess) -> None:
    message = await worker.receive()
    if "unusable" in message:
        raise UserError(message["unusable"])


def _first_failure(error: Exception) -> Exception:
    if isinstance(error, UserError):
        return error
    return JobError("a worker process stopped before it was ready; read its error above.")
