"""Decoded, shrunk images in one memory-mapped file: written once, shared by a node's ranks."""

import errno
import hashlib
import json
import mmap
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import atomic_file, only_writer
from skindx.core.errors import UserError
from skindx.data.loader.crops import resize_into, window_places
from skindx.data.loader.load import work_ahead
from skindx.data.loader.source import Files
from skindx.imaging.resize import resize_views, shrink, shrunk_size
from skindx.imaging.stored_colours import AS_STORED

# N = images, H, W = height, width

_VERSION = 1
"""Raise it when the same image becomes other pixels, or the file is laid out otherwise."""

_HEAD = 4096
"""Bytes before the first image: JSON, then spaces."""


class Pixels:
    """Images as they lie in the file; a `Source`."""

    def __init__(self, pages: mmap.mmap, sizes_N2: NDArray[np.int64]) -> None:
        self._flat = np.frombuffer(pages, np.uint8)
        self._sizes_N2, self._starts_N = sizes_N2, _starts(sizes_N2)
        self._starts = self._starts_N.tolist()
        self._sizes: list[tuple[int, int]] = [
            (height, width) for height, width in sizes_N2.tolist()
        ]

    def __len__(self) -> int:
        return len(self._sizes)

    def size(self, index: int) -> tuple[int, int]:
        """Return (height, width) of a shrunk image."""
        return self._sizes[index]

    def image(self, index: int, at_least: tuple[int, int] | None = None) -> NDArray[np.uint8]:
        """Return a read-only view H x W x 3 of the file, whatever `at_least` asks for."""
        flat = self._flat[self._starts[index] : self._starts[index + 1]]
        return flat.reshape(*self._sizes[index], 3)

    def crop(
        self, indices: Sequence[int], windows_T4: NDArray[np.float64], out_TSS3: NDArray[np.uint8]
    ) -> None:
        """Write a window of each image, resized to S x S, in one pass over the file's memory.

        Nothing is done image by image: the interpreter would take as long as the pixels.
        """
        rows, columns = out_TSS3.shape[1:3]
        sizes_T2 = self._sizes_N2[indices]
        top_T, left_T, rows_T, columns_T = window_places(windows_T4, sizes_T2).T
        stride_T = 3 * sizes_T2[:, 1]
        start_T = self._starts_N[indices] + top_T * stride_T + 3 * left_T
        views_T4 = np.stack([start_T, rows_T, columns_T, stride_T], axis=1)
        small = (rows_T <= 2 * rows) & (columns_T <= 2 * columns)
        if small.all():
            resize_views(self._flat, views_T4, out_TSS3)
            return
        for index, place, out_SS3 in zip(
            indices, window_places(windows_T4, sizes_T2).tolist(), out_TSS3, strict=True
        ):
            top, left, high, wide = place
            view_HW3 = self.image(index)[top : top + high, left : left + wide]
            resize_into(view_HW3, out_SS3)


def open_pixels(
    file: Path,
    files: Files,
    short_side: int,
    *,
    threads: int,
    on_write: Callable[[int], None] = lambda size_bytes: None,
) -> Pixels:
    """Map the images of `files`, shrunk to `short_side`, never enlarged; write them if need be.

    A file that was cut off, or is of other images, another side or another decoder, is written
    again. Of several processes one writes while the others wait for it. `on_write` gets the
    bytes before they are written. Raises UserError for an image that is gone or damaged or not
    the manifest's, and when the folder or its disk cannot take the file.
    """
    sizes_N2 = _sizes(files, short_side)
    mark = _fingerprint(files, short_side)
    with _telling(file, sizes_N2):
        pages = _map(file, mark, sizes_N2)
        if pages is None:
            with _cleared(file):
                pages = _map(file, mark, sizes_N2)  # another process may have written it meanwhile
                if pages is None:
                    on_write(_size_bytes(sizes_N2))
                    _write(file, files, sizes_N2, mark, threads)
                    pages = _map(file, mark, sizes_N2)
    assert pages is not None
    return Pixels(pages, sizes_N2)


def pixels_bytes(files: Files, short_side: int) -> int:
    """Return how large the file of these images is, or will be."""
    return _size_bytes(_sizes(files, short_side))


def _size_bytes(sizes_N2: NDArray[np.int64]) -> int:
    return int(_starts(sizes_N2)[-1])


def _sizes(files: Files, short_side: int) -> NDArray[np.int64]:
    """Return sizes_N2 (height, width) after shrinking to `short_side`; small ones stay."""
    sizes = [files.size(index) for index in range(len(files.records))]
    shrunk = [shrunk_size(*size, short_side) if min(size) > short_side else size for size in sizes]
    return np.array(shrunk, np.int64).reshape(-1, 2)


def _starts(sizes_N2: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each image begins in the file, and where the last one ends."""
    return np.concatenate([[_HEAD], _HEAD + np.cumsum(3 * sizes_N2.prod(axis=1))])


def _fingerprint(files: Files, short_side: int) -> str:
    import cv2
    import PIL
    import simplejpeg

    parts = {
        "version": _VERSION,
        **({"decoding": files.decoding} if files.decoding != AS_STORED else {}),
        "short_side": short_side,
        "decoders": [cv2.__version__, PIL.__version__, simplejpeg.__version__],
        "pictures": [(record.sha256, record.height, record.width) for record in files.records],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _head(mark: str) -> bytes:
    return json.dumps({"skindx": "pixels", "fingerprint": mark}).encode().ljust(_HEAD)


def _map(file: Path, mark: str, sizes_N2: NDArray[np.int64]) -> mmap.mmap | None:
    """Map a file that is whole and has the fingerprint; None for any other."""
    try:
        with file.open("rb") as opened:
            whole = os.fstat(opened.fileno()).st_size == _size_bytes(sizes_N2)
            if not whole or opened.read(_HEAD) != _head(mark):
                return None
            return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        return None


@contextmanager
def _cleared(file: Path) -> Iterator[None]:
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = file.parent / f"{file.name}.lock"
    lock.touch()
    with only_writer(lock):
        # No other process writes now: a half-written file here was left by a killed one.
        for left in file.parent.glob(f"{file.name}.tmp-*"):
            left.unlink(missing_ok=True)
        yield


@contextmanager
def _telling(file: Path, sizes_N2: NDArray[np.int64]) -> Iterator[None]:
    """Turn what the system says of the cache's folder into a sentence."""
    try:
        yield
    except OSError as error:
        needed = f"{_size_bytes(sizes_N2) / 1e9:.2g} GB"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            free = ""
            with suppress(OSError):
                free = f", where {shutil.disk_usage(file.parent).free / 1e9:.2g} GB are free"
            why = f"needs {needed} in {file.parent}{free}"
        else:
            why = f"cannot be written to {file.parent} ({error.strerror or error})"
        raise UserError(
            f"the image cache {why}; set `loader.cache.folder` to a folder on another disk, or "
            "set `loader.cache.kind` to memory."
        ) from None


def _write(file: Path, files: Files, sizes_N2: NDArray[np.int64], mark: str, threads: int) -> None:
    starts = _starts(sizes_N2).tolist()

    with atomic_file(file) as temporary, temporary.open("r+b") as out:
        # Reserved first: a disk that is too small is reported now, not after an hour of decoding.
        if hasattr(os, "posix_fallocate"):  # macOS has none, and reports it when the disk is full
            os.posix_fallocate(out.fileno(), 0, starts[-1])
        os.pwrite(out.fileno(), _head(mark), 0)

        def write(index: int) -> None:
            pixels = _shrunk(files, index, sizes_N2[index].tolist()).reshape(-1).data
            start = starts[index]
            while pixels:
                written = os.pwrite(out.fileno(), pixels, start)
                pixels, start = pixels[written:], start + written

        for _ in work_ahead(write, range(len(sizes_N2)), threads=threads, ahead=4 * threads):
            pass


def _shrunk(files: Files, index: int, size: Sequence[int]) -> NDArray[np.uint8]:
    data = files.read(index)
    if hashlib.sha256(data).hexdigest() != files.records[index].sha256:
        raise files.unreadable(index, "its content differs from its SHA-256 in the manifest")
    image = files.decode(index, data)
    if list(image.shape[:2]) != list(files.size(index)):
        raise files.unreadable(index, "its size differs from the size in the manifest")
    return image if list(size) == list(image.shape[:2]) else shrink(image, min(size))
