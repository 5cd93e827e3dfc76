"""Start trainings' launchers from the ranks' server, which has imported DeepSpeed already.

A launcher imports it, forks its ranks and ends with them: seconds of a core for each training of a
test. Forked from the server it does all of that but the import. What differs is its parent: that is
the server, which reaps it.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import reduction
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ranks import forking

from skindx.training.launching import supervise
from skindx.training.launching.local import NO_IMPORTS, main
from skindx.workers.worker_process import leave_process

_MODULE = "skindx.training.launching.local"
_READ_AT_IMPORT = ("OMP_NUM_THREADS", "DS_ACCELERATOR", "LD_PRELOAD")
"""Libraries read these as they are imported: other values than the server's need a new process."""
_SERVERS = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
"""What the server has, as far as it matters; later a test may have set something for itself."""


class _Descriptor:
    """A file descriptor that a new process gets as its own."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _detached, (reduction.DupFd(self._number),)


def _detached(handle: Any) -> int:
    number: int = handle.detach()
    return number


class WarmLauncher:
    """A launcher forked from the server. The interface is that of Popen."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str], stdin: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        streams = [_Descriptor(number) for number in (stdin, 1, 2)]
        self._process = forking().Process(
            target=_become, args=(arguments, dict(environment), str(Path.cwd()), streams)
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        # Ranks are known by their group, which is the launcher's from here on.
        while os.getpgid(self.pid) != self.pid and self._process.is_alive():
            time.sleep(0.002)

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("launcher", timeout or 0)
        return code


def _become(
    arguments: list[str], environment: dict[str, str], folder: str, streams: list[int]
) -> None:
    os.setsid()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = open(0)  # noqa: SIM115 (it was the null device)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = main(arguments)
    except SystemExit as end:
        code = int(end.code or 0)
    leave_process(code if code >= 0 else 128 - code)


class _Subprocess:
    """`subprocess` for the module that starts launchers."""

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    @staticmethod
    def Popen(command: list[str], **options: Any) -> Any:
        environment = options["env"]
        warm = (
            command[1:3] == ["-m", _MODULE]
            and command[3] != NO_IMPORTS
            and _read_at_import(environment) == _read_at_import(_SERVERS)
            and options["stdin"] is not None
        )
        if warm:
            return WarmLauncher(command[3:], environment, options["stdin"])
        return subprocess.Popen(command, **options)


def _read_at_import(environment: Mapping[str, str]) -> list[str | None]:
    return [environment.get(name) for name in _READ_AT_IMPORT]


@contextmanager
def warm_launchers() -> Iterator[None]:
    """Start launchers from the server; those of other processes start as a user's do."""
    with patch.object(supervise, "subprocess", _Subprocess()):
        yield
