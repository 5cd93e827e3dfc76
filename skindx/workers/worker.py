"""A worker process as its server sees it: started, sent messages to, and ended."""

import asyncio
import socket
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from skindx.core.atomic_files import memory_folder, private_folder
from skindx.workers import framing
from skindx.workers.process import start

_BUFFER_BYTES = 1 << 20
_ROOM_BYTES = 256 << 20


class Lost(Exception):  # noqa: N818
    """The process ended, or sent what is no message."""


class Worker:
    """One running process; made by `started`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def receive(self) -> Any:
        """Return the next message. Raises Lost when the process ends instead."""
        try:
            return await framing.receive_async(self._reader)
        except (EOFError, OSError, ValueError, LookupError, TypeError) as error:
            raise Lost(type(error).__name__) from None

    async def send(self, body: Any) -> None:
        """Send a message. Raises Lost when the process has ended."""
        try:
            self._writer.write(framing.pack(body))
            await self._writer.drain()
        except OSError as error:
            raise Lost(type(error).__name__) from None


@asynccontextmanager
async def started(command: Sequence[str]) -> AsyncIterator[Worker]:
    """Start a worker, and end its process when the block ends.

    Its arguments are the command's, a connection's descriptor, and a folder. It is a new process
    and no fork: nothing of this one's memory, threads and files is in it. Its temporary files lie
    in that folder, in memory where there is room, and are deleted with it.
    """
    ours, theirs = socket.socketpair()
    with (
        private_folder("skindx-worker-", memory_folder(_ROOM_BYTES)) as folder,
        ours,
    ):
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
                yield Worker(reader, writer)
            finally:
                writer.transport.abort()
        finally:
            process.kill()  # it holds nothing that would have to be put away
            process.wait()
