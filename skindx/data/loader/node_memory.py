"""Encoded images in one copy for all ranks of a node, which no kill leaves behind."""

import os
import secrets
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from skindx.data.loader.source import Files, rank_in_memory
from skindx.data.manifest import Record


@dataclass(frozen=True, slots=True)
class Handle:
    """Facts with which another process of the machine finds the memory."""

    pid: int
    descriptor: int
    name: str


class NodeMemory(Files):
    """Files whose bytes are kept, by whichever rank reads one first, for every rank of the node.

    The memory is a file without a name (memfd_create), which the system frees when the last
    process that has it open is gone, however that ended. Bytes are written before their mark, both
    by system calls, so that an image marked as kept is whole; two ranks that read the same file
    at once write the same. `share` is as in `InMemory`.
    """

    def __init__(
        self,
        dataset: Path,
        records: Sequence[Record],
        sizes: Sequence[int],
        descriptor: int,
        share: float = 1.0,
    ) -> None:
        """Take over `descriptor`; `sizes` are the bytes of all images, the same on all ranks."""
        super().__init__(dataset, records)
        self.share = share
        self._starts = list(accumulate(sizes, initial=len(sizes)))  # the marks lie first
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def read(self, index: int) -> bytes:
        """Return an image's encoded bytes. Raises UserError when the file cannot be read."""
        start, end = self._starts[index : index + 2]
        if os.pread(self._descriptor, 1, index) == b"\1":
            return os.pread(self._descriptor, end - start, start)
        data = super().read(index)
        wanted = len(data) == end - start and rank_in_memory(index) < self.share
        # A write is cut short only where there is no memory left: then nothing is marked.
        if wanted and os.pwrite(self._descriptor, data, start) == len(data):
            os.pwrite(self._descriptor, b"\1", index)
        return data

    def offer(self) -> tuple[int, Handle]:
        """Return another descriptor of this memory, and its handle."""
        descriptor = os.dup(self._descriptor)
        link = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        name = link.removeprefix("/memfd:").removesuffix(" (deleted)")
        return descriptor, Handle(os.getpid(), descriptor, name)


def create(sizes: Sequence[int]) -> tuple[int, Handle] | None:
    """Return a descriptor of new, empty memory and its handle; None where there is none."""
    if not hasattr(os, "memfd_create"):
        return None
    name = f"skindx-{secrets.token_hex(8)}"
    try:
        descriptor = os.memfd_create(name)
        os.truncate(descriptor, len(sizes) + sum(sizes))  # takes no memory yet
    except OSError:
        return None
    return descriptor, Handle(os.getpid(), descriptor, name)


def attach(handle: Handle) -> int | None:
    """Return a descriptor of another process's memory; None when it cannot be reached."""
    path = Path(f"/proc/{handle.pid}/fd/{handle.descriptor}")
    try:
        # In another container the same number is another process: the name shows it.
        if str(path.readlink()) != f"/memfd:{handle.name} (deleted)":
            return None
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
