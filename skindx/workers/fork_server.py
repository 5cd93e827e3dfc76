"""One process that has imported what sandboxed processes need, and forks each of them.

A new interpreter takes half a second of a core to import its decoders; a fork takes milliseconds.
The server reads requests from a socket of whole messages. Each brings the descriptors of the new
process's standard streams, and one on which the server says its number and how it ended. It ends
when the other end of the socket is closed.
"""

import atexit
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, BinaryIO

from skindx.core.machine import ONE_THREAD, child_environment
from skindx.workers.worker_process import module_command, start

_NUMBER = struct.Struct("=i")
_LONGEST = 1 << 17
"""Most bytes of a request, of which most is the environment."""
_STREAMS = 4
_PRELOADED = ("numpy", "cv2", "simplejpeg", "PIL.Image", "pydantic")


class Forked:
    """A process that the server forked, with pipes to its standard input and output."""

    def __init__(self, function: str, errors: IO[bytes]) -> None:
        """Fork a process that is ready for a marked function and writes its errors to a file.

        Raises RuntimeError, with what the server wrote, when it cannot be started.
        """
        with _LOCK:
            try:
                self._fork(_server(), function, errors)
            except OSError:  # it was killed, or is of a process that this one was forked from
                self._fork(_server(restart=True), function, errors)

    def _fork(self, server: "_ForkServer", function: str, errors: IO[bytes]) -> None:
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        self._status, theirs = socket.socketpair()
        self.stdin: BinaryIO = os.fdopen(ours_in, "wb")
        self.stdout: BinaryIO = os.fdopen(ours_out, "rb")
        self._code: int | None = None
        given = [theirs_in, theirs_out, errors.fileno(), theirs.fileno()]
        place = {"cwd": str(Path.cwd()), "umask": _umask(), "environment": _environment()}
        try:
            with theirs:
                server.request({"function": function, **place}, given)
            self.pid = self._number()
        except (EOFError, OSError):
            self._close()
            raise ConnectionError(server.wrote()) from None
        finally:
            os.close(theirs_in)
            os.close(theirs_out)

    def kill(self) -> None:
        """Kill it. Its number stays its own until `end`."""
        if self._code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Return its exit code, negative for a signal, once it has ended."""
        if self._code is None:
            try:
                self._code = self._number()
            except EOFError:  # the server was killed without notice
                self._code = -signal.SIGKILL
        return self._code

    def end(self) -> None:
        """Close its input and wait for its end."""
        with suppress(BrokenPipeError):
            self.stdin.close()
        self.wait()
        self._close()

    def _close(self) -> None:
        for stream in (self.stdin, self.stdout, self._status):
            with suppress(OSError):
                stream.close()

    def _number(self) -> int:
        data = self._status.recv(_NUMBER.size, socket.MSG_WAITALL)
        if len(data) < _NUMBER.size:
            raise EOFError
        (number,) = _NUMBER.unpack(data)
        return int(number)


class _ForkServer:
    def __init__(self) -> None:
        self.interpreter = _interpreter()
        self._errors = TemporaryFile()  # noqa: SIM115 (as long as the server)
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = module_command("skindx.workers.sandbox")
            self._process = start(command, stdin=theirs, stderr=self._errors)

    def request(self, body: dict[str, Any], descriptors: list[int]) -> None:
        socket.send_fds(self._requests, [json.dumps(body).encode()], descriptors)

    def wrote(self) -> str:
        """Return what the server wrote before it ended."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._errors.seek(0)
        return self._errors.read().decode("utf-8", "replace").strip()

    def end(self) -> None:
        self._requests.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._errors.close()


_LOCK = threading.Lock()
_known: _ForkServer | None = None


def _server(*, restart: bool = False) -> _ForkServer:
    """Return the server of the interpreter that would start now; the first call starts one."""
    global _known  # noqa: PLW0603
    if _known and (restart or _known.interpreter != _interpreter()):
        _known.end()
        _known = None
    if _known is None:
        _known = _ForkServer()
    return _known


@atexit.register
def _end() -> None:
    if _known:
        _known.end()


def _interpreter() -> dict[str, str]:
    """Return the variables that decide how an interpreter starts."""
    return {name: text for name, text in os.environ.items() if name.startswith(("PYTHON", "LD_"))}


def _environment() -> dict[str, str]:
    return child_environment(ONE_THREAD)


def _umask() -> int:
    """Return this process's umask; os.umask returns it only by changing it for all threads."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o022


class _Children:
    """Forked processes: each stays a zombie, with its number, until its owner is done."""

    def __init__(self) -> None:
        self._status: dict[int, socket.socket] = {}
        self._ended: set[int] = set()

    def sockets(self) -> list[socket.socket]:
        return list(self._status.values())

    def add(self, pid: int, status: socket.socket) -> None:
        self._status[pid] = status
        self._send(status, pid)

    def look(self) -> None:
        """Tell the owners of those that have ended how they did."""
        for pid in self._status.keys() - self._ended:
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            if end := os.waitid(os.P_PID, pid, options):
                exited = end.si_code == os.CLD_EXITED
                self._ended.add(pid)
                self._send(self._status[pid], end.si_status if exited else -end.si_status)

    def release(self, status: socket.socket) -> None:
        """Forget a child whose owner has closed its end. One that still works is killed."""
        (pid,) = (pid for pid, known in self._status.items() if known is status)
        if pid not in self._ended:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        del self._status[pid]
        self._ended.discard(pid)
        status.close()

    @staticmethod
    def _send(status: socket.socket, number: int) -> None:
        with suppress(OSError):
            status.send(_NUMBER.pack(number))


def serve(child: Callable[[], int], prepare: Callable[[str], None]) -> int:
    """Fork a process that returns `child()` for each request, until the socket is closed.

    Before that `prepare` gets the name of the function that the process is for.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the callers decide
    for name in _PRELOADED:
        with suppress(ImportError):
            import_module(name)
    wake, waker = socket.socketpair()
    wake.setblocking(False)
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    requests = socket.socket(fileno=os.dup(0))
    children = _Children()
    while True:
        ready, _, _ = select.select([requests, wake, *children.sockets()], [], [])
        if wake in ready:
            wake.recv(_LONGEST)
            children.look()
        for status in set(ready) - {requests, wake}:
            children.release(status)
        if requests in ready:
            message, descriptors, _, _ = socket.recv_fds(requests, _LONGEST, _STREAMS)
            if not message:
                return 0
            order = json.loads(message)
            with suppress(Exception):  # the child says why
                prepare(order["function"])
            pid = os.fork()
            if not pid:
                _become(child, order, descriptors)
            for descriptor in descriptors[:3]:
                os.close(descriptor)
            children.add(pid, socket.socket(fileno=descriptors[3]))


def _become(child: Callable[[], int], order: dict[str, Any], descriptors: list[int]) -> None:
    """Be the child, and end with what it returns."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for place, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, place)
        os.closerange(3, max(descriptors) + 1)
        os.chdir(order["cwd"])
        os.umask(order["umask"])
        os.environ.clear()
        os.environ.update(order["environment"])
        code = child()
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
