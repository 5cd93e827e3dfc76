"""Processes forked from one that has imported what they need.

An interpreter that imports torch takes seconds of a core and some hundred megabytes; a fork takes
milliseconds, and shares the memory. Fork before torch has computed anything: its threads, and a
GPU's state, survive no fork.
"""

import ctypes
import gc
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_CLONE_NEWNET = 0x40000000  # <sched.h>
_POLL_S = 0.02


def import_once(modules: Sequence[str]) -> None:
    """Import what forked processes will need."""
    # Imports are a million objects that stay to the end: no collection goes through them, and
    # those of the forked processes leave the shared memory as it is.
    gc.disable()
    for name in modules:
        import_module(name)
    gc.freeze()
    gc.enable()


@dataclass(frozen=True)
class ForkContext:
    """Environment of a forked process, as far as it differs from this one's."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables beside, or in place of, this process's own."""
    network: Path | None = None
    """File of a network namespace to enter, as root."""
    streams: tuple[int, ...] = ()
    """Descriptors of its standard input and output."""
    closed: Sequence[int] = ()
    """Descriptors of this process that it does not keep."""


class ForkedModule:
    """A process that runs a module as `python -m` does. The interface is that of Popen."""

    def __init__(self, module: str, arguments: Sequence[str], place: ForkContext) -> None:
        """Fork it."""
        sys.stdout.flush()
        sys.stderr.flush()
        # A signal before the child is rid of this process's handlers would run them twice.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self.pid = os.fork()
        if not self.pid:
            _restore_signals(before)
            _become(module, arguments, place)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal, or None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code once it has ended. Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            time.sleep(_POLL_S)
        return code

    def terminate(self) -> None:
        """Send SIGTERM, if it still runs."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, if it still runs."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _restore_signals(mask: set[int | signal.Signals]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _become(module: str, arguments: Sequence[str], place: ForkContext) -> None:
    """Be the new process, and end with it; exit handlers of the old one do not run."""
    code = 1
    try:
        os.environ.update(place.environment)
        if place.network:
            enter_network(place.network)
        for number, descriptor in enumerate(place.streams):
            os.dup2(descriptor, number)
        for descriptor in place.closed:
            os.close(descriptor)
        sys.modules.pop(module, None)  # it may have been imported, and runs again
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = _exit_code(end)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _exit_code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def enter_network(network: Path) -> None:
    """Move this process into a network namespace; /sys still shows the interfaces of the old."""
    libc = ctypes.CDLL(None, use_errno=True)
    with network.open("rb") as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(network))
