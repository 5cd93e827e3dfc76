"""A worker process: its command, environment, limits and answers, and its end with its parent."""

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing import parent_process
from multiprocessing.connection import wait
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from skindx.core.errors import UserError
from skindx.core.machine import ONE_THREAD, child_environment, python_command

if TYPE_CHECKING:
    import asyncio

    from pydantic import TypeAdapter

# Messages between processes: JSON for values, bytes as they are, no pickle.
#
# A message is the length of its head (4 bytes), the head (JSON: `body`, and the `sizes` of the
# blobs), and the blobs. In the body `{"#": n}` stands for the n-th blob.


LENGTH_BYTES = 4
LONGEST_HEAD = 1 << 28
"""Limit above every real head, and below the length that four characters of text would encode."""
_BLOB = "#"

T = TypeVar("T")


def pack(body: Any) -> bytes:
    """Return a message of plain values in which bytes may stand anywhere."""
    blobs: list[bytes] = []
    values = _without_bytes(body, blobs)
    sizes = [len(blob) for blob in blobs]
    head = json.dumps({"body": values, "sizes": sizes}, separators=(",", ":")).encode()
    return b"".join((len(head).to_bytes(LENGTH_BYTES, "big"), head, *blobs))


def receive(read: Callable[[int], bytes]) -> Any:
    """Return the body of the next message; `read(n)` returns the next n bytes, fewer at the end.

    Raises EOFError when the other side is gone, and ValueError for what is no message.
    """
    parts = _parse()
    size = next(parts)
    while True:
        data = read(size)
        if len(data) < size:
            raise EOFError("the other process has ended")
        try:
            size = parts.send(data)
        except StopIteration as done:
            return done.value


async def receive_async(reader: "asyncio.StreamReader") -> Any:
    """Return the body of the next message.

    Raises IncompleteReadError (an EOFError) when the other side is gone, and ValueError for what
    is no message.
    """
    parts = _parse()
    size = next(parts)
    while True:
        data = await reader.readexactly(size)
        try:
            size = parts.send(data)
        except StopIteration as done:
            return done.value


def _parse() -> Generator[int, bytes, Any]:
    """Yield how many bytes are wanted next, and return the body: how they come is the caller's."""
    size = int.from_bytes((yield LENGTH_BYTES), "big")
    if size > LONGEST_HEAD:
        raise ValueError(f"a head of {size} bytes begins no valid message")
    head = json.loads((yield size))
    blobs = []
    for blob_size in head["sizes"]:
        blobs.append((yield blob_size))  # noqa: PERF401 (a comprehension cannot yield)
    return _with_bytes(head["body"], blobs)


def plain(value: Any) -> Any:
    """Return a dataclass as plain values and bytes, for `pack`."""
    kind: Any = type(value)
    return _adapter(kind).dump_python(value)


def rebuilt(kind: type[T], values: Any) -> T:
    """Return the dataclass whose `plain` values these are. Raises ValueError for others."""
    wanted: Any = kind
    made: T = _adapter(wanted).validate_python(values)
    return made


@cache
def _adapter(kind: Any) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _without_bytes(value: Any, blobs: list[bytes]) -> Any:
    if isinstance(value, bytes):
        blobs.append(value)
        return {_BLOB: len(blobs) - 1}
    if isinstance(value, dict):
        return {key: _without_bytes(part, blobs) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_bytes(part, blobs) for part in value]
    return value


def _with_bytes(value: Any, blobs: Sequence[bytes]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_BLOB}:
            return blobs[value[_BLOB]]
        return {key: _with_bytes(part, blobs) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_bytes(part, blobs) for part in value]
    return value


_PARENT_IS_GONE = 3


def module_command(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs a module of this installation."""
    return tuple(python_command("-m", module, *arguments))


def start(
    command: Sequence[str], environment: dict[str, str] | None = None, **options: Any
) -> "subprocess.Popen[bytes]":
    """Start a process whose libraries use one thread each; the processes are the threads.

    `environment` is added to this process's own, `options` are those of `subprocess.Popen`.
    """
    return subprocess.Popen(
        command, env=child_environment(ONE_THREAD, environment or {}), **options
    )


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
        connection.sendall(pack({"unusable": str(error)}))
        return
    connection.sendall(pack({"ready": True}))
    while True:
        connection.sendall(pack(answers(inbox.get())))


def _receive(connection: socket.socket, inbox: "SimpleQueue[Any]", folder: Path) -> None:
    with connection.makefile("rb") as stream:
        while True:
            try:
                inbox.put(receive(stream.read))
            except (OSError, EOFError):  # the server has ended, so no answer is expected
                shutil.rmtree(folder, ignore_errors=True)
                os._exit(0)
