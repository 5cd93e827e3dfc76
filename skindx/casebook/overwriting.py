"""Zeros over the bytes of a file that is let go.

The medium may still keep the old blocks: flash memory and file systems that copy on write do.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def descriptor_of(path: Path) -> Iterator[int | None]:
    """Yield a descriptor of a file that is there, None for one that is not."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def overwrite(path: Path) -> None:
    """Write zeros over a file's bytes, if it is there."""
    with descriptor_of(path) as descriptor:
        if descriptor is not None:
            zero(descriptor)


def zero(descriptor: int) -> None:
    """Write zeros over the bytes of an open file."""
    left, piece = os.fstat(descriptor).st_size, bytes(1 << 20)
    os.lseek(descriptor, 0, os.SEEK_SET)
    while left > 0:
        left -= os.write(descriptor, piece[:left])
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Bring a renaming in a folder to the medium."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
