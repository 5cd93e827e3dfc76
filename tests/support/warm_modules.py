"""Start processes that run a module from a server that has imported what they need.

A crawl imports Scrapy and Twisted, which takes most of its second of a core. Forked from the server
it does all that it does for a user but these imports. What differs is its parent, which is the
server, and that the only descriptors it has are its three streams.
"""

import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from unittest.mock import patch

from skindx.data.crawl import crawl_process
from skindx.workers.fork_server import serve
from skindx.workers.forked_module import import_once
from skindx.workers.worker_process import start

CRAWL = (
    "scrapy.crawler",
    "skindx.data.blocklist",
    "skindx.data.crawl.crawl_process",
    "skindx.data.crawl.fetch_outcome",
    "skindx.data.crawl.spider",
    *(
        f"scrapy.downloadermiddlewares.{name}"
        for name in (
            *("cookies", "defaultheaders", "downloadtimeout", "httpauth", "httpcompression"),
            *("httpproxy", "offsite", "redirect", "retry", "robotstxt", "stats", "useragent"),
        )
    ),
    *(
        f"scrapy.extensions.{name}"
        for name in ("corestats", "feedexport", "logcount", "logstats", "memusage", "throttle")
    ),
    *(f"scrapy.spidermiddlewares.{name}" for name in ("depth", "httperror", "referer", "start")),
    *("scrapy.pqueues", "scrapy.squeues", "twisted.conch.telnet", "twisted.web.client"),
)
"""What a crawl imports; not the reactor, which belongs to one process."""
_NUMBER = struct.Struct("=i")
_PRELOADED = "SKINDX_TEST_PRELOADED"
_READ_AT_START = ("PYTHON", "LD_", "OMP_")


class WarmServer:
    """The process that has imported `modules`, started when it is first needed."""

    def __init__(self, *modules: str) -> None:
        self._modules = ",".join(modules)
        self._socket: socket.socket | None = None

    def start(
        self, command: Sequence[str], environment: dict[str, str] | None = None, **options: Any
    ) -> "WarmModule | subprocess.Popen[bytes]":
        """Start what `worker_process.start` starts; the interface is that of Popen.

        It is a new interpreter where the environment asks for another one than the server's.
        """
        if self._socket is None:
            self._environment = _read_at_start()
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                preloaded = {_PRELOADED: self._modules}
                self._process = start([sys.executable, __file__], preloaded, stdin=theirs)
        if _read_at_start() != self._environment or environment or command[2] != "-m":
            return start(command, environment, **options)
        return WarmModule(self._socket, command[3:], **options)

    def end(self) -> None:
        """Let the server end; what it has forked goes on."""
        if self._socket is not None:
            self._socket.close()
            self._process.wait()


def _read_at_start() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if name.startswith(_READ_AT_START)}


class WarmModule:
    """A process forked from the server; `pass_fds` is not for it, its caller lives as long."""

    def __init__(
        self, server: socket.socket, arguments: Sequence[str], *, stdin: int, stdout: IO[bytes],
        stderr: int, pass_fds: Sequence[int] = (),
    ) -> None:  # fmt: skip
        assert (stdin, stderr) == (subprocess.PIPE, subprocess.STDOUT)
        self.args = arguments
        self.returncode: int | None = None
        theirs_in, ours_in = os.pipe()
        self.stdin = os.fdopen(ours_in, "wb")
        self._status, theirs = socket.socketpair()
        given = [theirs_in, stdout.fileno(), stdout.fileno(), theirs.fileno()]
        request = {"function": json.dumps(arguments), "cwd": str(Path.cwd()), "umask": _umask()}
        try:
            message = json.dumps({**request, "environment": dict(os.environ)}).encode()
            socket.send_fds(server, [message], given)
        finally:
            os.close(theirs_in)
            theirs.close()
        self.pid: int = _NUMBER.unpack(self._status.recv(_NUMBER.size, socket.MSG_WAITALL))[0]

    def poll(self) -> int | None:
        if self.returncode is None:
            with suppress(BlockingIOError):
                self._end(_NUMBER.unpack(self._status.recv(_NUMBER.size, socket.MSG_DONTWAIT))[0])
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.poll() is None:
            self._status.settimeout(timeout)
            try:
                self._end(_NUMBER.unpack(self._status.recv(_NUMBER.size))[0])
            except TimeoutError:
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0) from None
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _end(self, code: int) -> None:
        self.returncode = code
        self._status.close()  # the server forgets it


def _umask() -> int:
    now = os.umask(0o022)
    os.umask(now)
    return now


@contextmanager
def warm_crawls() -> Iterator[None]:
    """Fork the crawls of this process; those of other processes start as a user's do."""
    server = WarmServer(*CRAWL)
    with patch.object(crawl_process, "start", server.start):
        yield
    server.end()


def cold_crawls() -> AbstractContextManager[object]:
    """Start crawls as a user's are, where a test looks at their processes."""
    return patch.object(crawl_process, "start", start)


_requested: list[str] = []
"""Module and arguments of the process that is forked next."""


def _remember(function: str) -> None:
    _requested[:] = json.loads(function)


def _run() -> int:
    module, *arguments = _requested
    sys.argv = [module, *arguments]
    sys.modules.pop(module, None)  # it has been imported, and runs again
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    return 0


if __name__ == "__main__":
    import_once(os.environ[_PRELOADED].split(","))
    assert "twisted.internet.reactor" not in sys.modules
    sys.exit(serve(_run, _remember))
