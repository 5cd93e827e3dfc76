"""Sandboxed calls: untrusted files are handed to processes with limited memory and time.

A file may hang its decoder, crash it, or ask for all memory: only that file is lost. A process
says when a file is done, so that the first one not done when it ends is the suspect. If its time
ran out, or its decoder crashed, it is given up; if the process died otherwise it is tried once more
alone, because a lack of memory also ends processes that work on other files.

In the process, paths come in on standard input, signs of life and answers go out. Its limits are
the kernel's, so that they hold in the middle of a C library, and also when the caller is gone: a
data segment of fixed size and an alarm clock. It runs functions of this package with the mark
`@sandboxed`, nothing else.
"""

import gc
import os
import re
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryFile
from types import FunctionType
from typing import IO, Any, BinaryIO, TypeVar

from skindx.workers import worker_process
from skindx.workers.fork_server import Forked, serve
from skindx.workers.worker_process import SandboxLimits, limit_memory, limit_time

Work = Callable[[Sequence[Path]], Iterator[list[Any] | None]]
"""Yields None after each file, and at the end a list with the answers to all of them."""

MakeWork = Callable[[dict[str, Any]], Work]
"""Makes the work from a job of plain values."""

READY = "ready"
DONE = "done"
"""Sent after each file; then the answers to a whole batch are sent as one list."""

Batch = tuple[int, ...]
"""Positions among the paths."""

_BATCH = 32
_BY_ITSELF = {signal.SIGALRM, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
"""Ends of a process that only its file can have caused."""
_PREPARE = "_sandboxed_after"
_MODULE = re.compile(r"skindx(\.[A-Za-z_]\w*)+")

M = TypeVar("M", bound=MakeWork)


@dataclass(frozen=True, slots=True)
class Failure:
    """The process ended over a file instead of answering."""

    reason: str
    """decode-timeout or decode-crash."""
    detail: str


def sandboxed(prepare: Callable[[], None]) -> Callable[[M], M]:
    """Mark a function of a module of skindx as one that a sandboxed process may run.

    `prepare` imports all that the work needs, since an import might fail once the memory is
    limited. The process that forks the others calls it, so that they find its work done.
    """

    def mark(make_work: M) -> M:
        setattr(make_work, _PREPARE, prepare)
        return make_work

    return mark


def reference(make_work: MakeWork) -> str:
    """Return MODULE:NAME of a marked function. Raises ValueError for any other."""
    name = f"{make_work.__module__}:{getattr(make_work, '__name__', '')}"
    if resolve(name) is not make_work:
        raise ValueError(f"{name} is another function")
    return name


def resolve(name: str) -> MakeWork:
    """Return the marked function at MODULE:NAME. Raises ValueError for any other reference."""
    module, _, function_name = name.partition(":")
    if not _MODULE.fullmatch(module) or not function_name.isidentifier():
        raise ValueError(f"{name!r} names no function of skindx")
    function = getattr(import_module(module), function_name, None)
    if (
        not isinstance(function, FunctionType)
        or function.__module__ != module
        or not hasattr(function, _PREPARE)
    ):
        raise ValueError(f"{name!r} is not marked as @sandboxed")
    return function


def prepare(make_work: MakeWork) -> None:
    """Do what a marked function needs before its first call; a second time costs little."""
    getattr(make_work, _PREPARE)()


def for_each(answer: Callable[[Path], Any]) -> Work:
    """Return work that answers one file after the other."""

    def work(paths: Sequence[Path]) -> Iterator[list[Any] | None]:
        answers = []
        for path in paths:
            answers.append(answer(path))
            yield None
        yield answers

    return work


def run_sandboxed(
    make_work: MakeWork,
    job: dict[str, Any],
    paths: Sequence[Path],
    limits: SandboxLimits,
    workers: int,
) -> Iterator[tuple[int, Any]]:
    """Yield (position, answer or Failure) once for each path, in any order.

    `make_work` is a function marked by `@sandboxed`, `job` its plain values; what is too large for
    an answer it writes to a file. Raises RuntimeError when a process does not even start. No
    process outlives the iteration.
    """
    pool = _SandboxPool(_order(make_work, job, limits), paths, max(1, workers))
    try:
        yield from pool.answers()
    finally:
        pool.stop()


def _order(make_work: MakeWork, job: dict[str, Any], limits: SandboxLimits) -> dict[str, Any]:
    return {
        "function": reference(make_work),
        "job": job,
        "timeout_s": limits.timeout_s,
        "memory_mb": limits.memory_mb,
    }


class LastingProcess:
    """One process that answers a file whenever it is asked; when it ends, another follows it.

    It is for one thread at a time, and ends with this object's owner.
    """

    def __init__(self, make_work: MakeWork, job: dict[str, Any], limits: SandboxLimits) -> None:
        self._order = _order(make_work, job, limits)
        self._process: Forked | None = None

    def ask(self, path: Path) -> Any:
        """Return the answer to a file, or a Failure.

        A file whose process was ended from outside is tried once more. Raises RuntimeError when a
        process does not even start.
        """
        code = 0
        for _ in range(2):
            process = self._process = self._process or self._start()
            try:
                _send(process, [str(path)])
                while (answers := _receive(process)) == DONE:
                    pass
            except BaseException:  # an answer that comes later would be taken for another file's
                self.end()
                raise
            if answers is not None:
                return answers[0]
            code = process.wait()
            self.end()
            if -code in _BY_ITSELF:
                break
        return _failure(code, self._order["timeout_s"])

    def end(self) -> None:
        if self._process:
            self._process.kill()
            self._process.end()
            self._process = None

    def _start(self) -> Forked:
        with TemporaryFile() as errors:
            try:
                process = Forked(self._order["function"], errors)
            except OSError as error:
                raise _no_start(str(error)) from None
            _send(process, self._order)
            if _receive(process) != READY:
                process.end()
                errors.seek(0)
                raise _no_start(errors.read().decode("utf-8", "replace").strip())
        return process


def _failure(code: int, timeout_s: int) -> Failure:
    """Return what a process says of its file by the code with which it ended."""
    if code == -signal.SIGALRM:
        return Failure("decode-timeout", f"its decoder took longer than {timeout_s} s")
    ending = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    return Failure("decode-crash", f"its decoder {ending}")


class _SandboxPool:
    """`workers` threads, each with a process of its own, empty one queue of batches."""

    def __init__(self, order: dict[str, Any], paths: Sequence[Path], workers: int) -> None:
        self._order = order
        self._paths = paths
        size = max(1, min(_BATCH, -(-len(paths) // workers)))
        every = range(len(paths))
        self._batches = deque(tuple(every[low : low + size]) for low in every[::size])
        self._answers: SimpleQueue[tuple[int, Any] | BaseException] = SimpleQueue()
        self._lock = threading.Lock()
        self._stopping = False
        self._processes: set[Forked] = set()
        count = min(workers, len(self._batches))
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]

    def answers(self) -> Iterator[tuple[int, Any]]:
        for thread in self._threads:
            thread.start()
        for _ in self._paths:
            answer = self._answers.get()
            if isinstance(answer, BaseException):
                raise answer
            yield answer

    def stop(self) -> None:
        """End what still runs."""
        with self._lock:
            self._stopping = True
            for process in self._processes:
                process.kill()
        for thread in self._threads:
            if thread.ident:
                thread.join()

    def _work(self) -> None:
        try:
            while self._batches and not self._stopping:
                self._feed()
        except BaseException as error:  # it belongs to the caller's thread
            self._answers.put(error)

    def _feed(self) -> None:
        """Give one process batches until none is left, or until it ends over one of them."""
        with TemporaryFile() as errors, self._process(errors) as process:
            if _receive(process) != READY and not self._stopping:
                process.wait()
                errors.seek(0)
                raise _no_start(errors.read().decode("utf-8", "replace").strip())
            while True:
                try:
                    batch = self._batches.popleft()
                except IndexError:
                    return
                done = 0
                _send(process, [str(self._paths[at]) for at in batch])
                while (answers := _receive(process)) == DONE:
                    done += 1
                if answers is None:
                    code = process.wait()
                    break
                for answer in zip(batch, answers, strict=True):
                    self._answers.put(answer)
        if not self._stopping:
            self._blame(batch, done, code)

    def _blame(self, batch: Batch, done: int, code: int) -> None:
        """Decide what becomes of a batch whose process ended after `done` of its files.

        Each call gives up a file or splits its batch, so that the retries end.
        """
        suspect, remaining = batch[done : done + 1], batch[:done] + batch[done + 1 :]
        if len(batch) == 1 or (suspect and -code in _BY_ITSELF):
            failure = _failure(code, self._order["timeout_s"])
            self._answers.put(((suspect or batch)[0], failure))
            remaining = remaining if suspect else ()
        elif suspect:
            self._batches.appendleft(suspect)
        else:  # it died over the batch as a whole
            self._batches.extendleft((at,) for at in remaining)
            remaining = ()
        if remaining:
            self._batches.appendleft(remaining)

    @contextmanager
    def _process(self, errors: IO[bytes]) -> Iterator[Forked]:
        """Start a process that writes its errors to a file; at the end it is gone."""
        try:
            process = Forked(self._order["function"], errors)
        except OSError as error:
            raise _no_start(str(error)) from None
        with self._lock:
            self._processes.add(process)
            if self._stopping:
                process.kill()
        try:
            _send(process, self._order)
            yield process
        finally:
            with self._lock:
                self._processes.discard(process)
            process.end()


def _no_start(text: str) -> RuntimeError:
    return RuntimeError(f"a sandboxed process does not start; it wrote:\n{text}")


def _send(process: Forked, body: Any) -> None:
    with suppress(BrokenPipeError):  # it has ended, as receiving will show
        process.stdin.write(worker_process.pack(body))
        process.stdin.flush()


def _receive(process: Forked) -> Any:
    """Return the next message, None if the process ended, or sent what is no message."""
    try:
        return worker_process.receive(process.stdout.read)
    except (EOFError, ValueError):
        return None


def _run_child() -> int:
    """Be a sandboxed process: answer batches until standard input ends."""
    # Whatever a library prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller decides, by closing our input
    order = worker_process.receive(sys.stdin.buffer.read)
    make_work = resolve(order["function"])
    prepare(make_work)
    work = make_work(order["job"])
    gc.freeze()  # nothing of what was imported is ever garbage
    limit_memory(order["memory_mb"])
    answers.write(worker_process.pack(READY))
    while True:
        try:
            paths = worker_process.receive(sys.stdin.buffer.read)
        except EOFError:
            return 0
        _answer(work, [Path(path) for path in paths], order["timeout_s"], answers)


def _answer(work: Work, paths: Sequence[Path], timeout_s: int, answers: BinaryIO) -> None:
    limit_time(timeout_s)  # each sign of life puts the end off
    for answer in work(paths):
        limit_time(timeout_s if answer is None else 0)
        answers.write(worker_process.pack(DONE if answer is None else answer))


if __name__ == "__main__":  # started by the fork server's callers, not by hand
    sys.exit(serve(_run_child, lambda name: prepare(resolve(name))))
