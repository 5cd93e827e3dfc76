"""A worker process: its command, environment, limits and answers, and its end with its parent."""

import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import wait
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn

from skindx.core.errors import UserError
from skindx.core.machine import ONE_THREAD
from skindx.workers import messages

_PARENT_IS_GONE = 3


def module_command(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs a module of this installation."""
    return (sys.executable, "-m", module, *arguments)


def start(
    command: Sequence[str], environment: dict[str, str] | None = None, **options: Any
) -> "subprocess.Popen[bytes]":
    """Start a process whose libraries use one thread each; the processes are the threads.

    `environment` is added to this process's own, `options` are those of `subprocess.Popen`.
    """
    return subprocess.Popen(command, env=os.environ | ONE_THREAD | (environment or {}), **options)


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Seconds for each file, and 10^6 bytes of memory."""

    timeout_s: int
    memory_mb: int


def limit_memory(memory_mb: int) -> None:
    """Bound what this process may allocate; beyond it allocations fail.

    RLIMIT_DATA counts all private memory, touched or not (Linux 4.7 and later), but not the code
    of libraries, of which RLIMIT_AS would count every mapped gigabyte.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (memory_mb * 10**6, memory_mb * 10**6))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_time(timeout_s: int) -> None:
    """End this process in `timeout_s` seconds, whatever it does then; 0: not any more.

    An alarm's default action is the kernel's: it holds in the middle of a C library, and also
    when the parent is gone.
    """
    signal.alarm(timeout_s)


def leave_process(code: int) -> NoReturn:
    """End this process at once: no shutdown of the interpreter or collective delays it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def exit_with_parent() -> None:
    """End this process as soon as the parent closes its standard input, by intent or by dying."""
    threading.Thread(target=_wait_for_the_end, daemon=True).start()


def exit_with_parent_process() -> None:
    """End this process of `multiprocessing` as soon as the one that started it is gone.

    Python ends its children when it ends by itself, not when it is killed.
    """
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_wait_for, args=(parent.sentinel,), daemon=True).start()


def _wait_for(sentinel: int) -> None:
    wait([sentinel])
    os._exit(_PARENT_IS_GONE)


def _wait_for_the_end() -> None:
    # A raw read: a thread that waits in sys.stdin would block the interpreter's own end.
    while os.read(0, 4096):
        pass
    os._exit(_PARENT_IS_GONE)


Answers = Callable[[list[Any]], list[Any]]
"""Returns one plain value for each request of a batch."""


def serve(connection: socket.socket, folder: Path, load: Callable[[], Answers]) -> None:
    """Answer batches until the connection closes; the process ends then, and `folder` is deleted.

    Sends `{"ready": true}` first, or `{"unusable": sentence}` where `load` raises UserError.
    """
    inbox: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, inbox, folder), daemon=True).start()
    try:
        answers = load()
    except UserError as error:
        connection.sendall(messages.pack({"unusable": str(error)}))
        return
    connection.sendall(messages.pack({"ready": True}))
    while True:
        connection.sendall(messages.pack(answers(inbox.get())))


def _receive(connection: socket.socket, inbox: "SimpleQueue[Any]", folder: Path) -> None:
    with connection.makefile("rb") as stream:
        while True:
            try:
                inbox.put(messages.receive(stream.read))
            except (OSError, EOFError):  # the server has ended, so no answer is expected
                shutil.rmtree(folder, ignore_errors=True)
                os._exit(0)
