"""A worker process as its server sees it."""

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from skindx.workers import framing

_ONE_THREAD = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "RAYON_NUM_THREADS",
)
_BUFFER_BYTES = 1 << 20
_SHARED_MEMORY, _ROOM_BYTES = Path("/dev/shm"), 256 << 20  # noqa: S108


class Lost(Exception):  # noqa: N818
    """The process ended, or answered nothing sensible."""


class Worker:
    """One running process; made by `started`."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.process = process
        self._reader, self._writer = reader, writer

    async def told(self) -> Any:
        """Return the next message. Raises Lost when the process ends instead."""
        try:
            size = int.from_bytes(await self._reader.readexactly(framing.LENGTH_BYTES), "big")
            head = await self._reader.readexactly(size)
            blobs = [await self._reader.readexactly(each) for each in framing.blob_sizes(head)]
            return framing.unpack(head, blobs)
        except (asyncio.IncompleteReadError, OSError, ValueError, LookupError, TypeError) as error:
            raise Lost(type(error).__name__) from None

    async def tell(self, body: Any) -> None:
        """Send a message. Raises Lost when nobody takes it."""
        try:
            self._writer.write(framing.pack(body))
            await self._writer.drain()
        except OSError as error:
            raise Lost(type(error).__name__) from None


@asynccontextmanager
async def started(command: Sequence[str]) -> AsyncIterator[Worker]:
    """Start a worker, and see to it that its process is over at the end.

    Its arguments are the command's, a connection's descriptor, and a folder. It is a new process
    and no fork: nothing of this one's memory, threads and files is in it. What it writes for a
    moment lies in that folder of its own, in memory where there is room, which goes with it.
    """
    ours, theirs = socket.socketpair()
    with (
        tempfile.TemporaryDirectory(
            prefix="skindx-worker-", dir=_in_memory(), ignore_cleanup_errors=True
        ) as folder,
        ours,
    ):
        with theirs:
            for each in (ours, theirs):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            process = _start([*command, str(theirs.fileno()), folder], theirs, folder)
        try:
            reader, writer = await asyncio.open_connection(sock=ours, limit=_BUFFER_BYTES)
            try:
                yield Worker(process, reader, writer)
            finally:
                writer.transport.abort()
        finally:
            process.kill()  # it holds nothing that would have to be put away
            process.wait()


def _start(
    command: Sequence[str], connection: socket.socket, folder: str
) -> "subprocess.Popen[bytes]":
    one_thread = dict.fromkeys(_ONE_THREAD, "1")
    return subprocess.Popen(
        command,
        env=os.environ | one_thread | {"MALLOC_ARENA_MAX": "2", "TMPDIR": folder},
        pass_fds=[connection.fileno()],
        process_group=0,  # Ctrl+C is the server's alone: it ends its workers itself
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def _in_memory() -> Path | None:
    try:
        roomy = shutil.disk_usage(_SHARED_MEMORY).free > _ROOM_BYTES
        return _SHARED_MEMORY if roomy and os.access(_SHARED_MEMORY, os.W_OK) else None
    except OSError:
        return None
