"""NPZ and HDF5: arrays as columns, arrays of pixels as images, and one encoded image a key.

Only numbers and texts are read: no pickle, no link out of the file, no array that lies in another
one. Of a large array one image is in memory at a time.
"""

import io
import math
import re
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from skindx.core.errors import UserError
from skindx.core.machine import how_to_install
from skindx.data.tables.cells import split_of

if TYPE_CHECKING:  # numpy: not for a crawl, which reads recipes
    import numpy as np

SUFFIXES = (".npz", ".h5", ".hdf5")
_MOST_BYTES = 200_000_000
"""Most bytes of one image."""
_ALWAYS, _RATIO = 1 << 30, 100
"""Limits of what an NPZ unpacks to: bytes, or times its size."""
_MOST_CELLS = 50_000_000
_DEEPEST = 4
"""Groups within groups."""


@dataclass(frozen=True)
class StoredArray:
    """One array: its shape, and what of it a row or a column is."""

    shape: tuple[int, ...]
    dtype: "np.dtype[Any]"
    source: Any
    """An h5py.Dataset, or the file of an NPZ's array and where its first number stands."""

    @property
    def is_pixels(self) -> bool:
        """Tell whether its rows are images: N x H x W, N x H x W x C, or with C before H."""
        whole = self.dtype.kind == "u" and self.dtype.itemsize == 1
        return whole and (len(self.shape) == 3 or (len(self.shape) == 4 and self._channels != ()))

    @property
    def _channels(self) -> tuple[int, ...]:
        return tuple(at for at in (3, 1) if self.shape[at] in (1, 3))

    @property
    def is_column(self) -> bool:
        return len(self.shape) == 1 or (len(self.shape) == 2 and self.shape[1] == 1)

    @property
    def is_encoded(self) -> bool:
        """Tell whether it is the bytes of one file."""
        plain = self.dtype.kind in "VSO" and self.shape in ((), (1,))
        return plain or (
            self.dtype.kind in "ui" and self.dtype.itemsize == 1 and len(self.shape) == 1
        )

    def row(self, number: int) -> "np.ndarray[Any, Any]":
        """Return one row. Raises ValueError, OSError."""
        import numpy as np

        if not isinstance(self.source, tuple):
            return np.asarray(self.source[number])
        file, start = self.source
        size = math.prod(self.shape[1:]) * self.dtype.itemsize
        file.seek(start + number * size)
        return np.frombuffer(file.read(size), self.dtype).reshape(self.shape[1:])

    def png(self, number: int) -> bytes:
        """Return one image as PNG, which loses nothing."""
        import numpy as np
        from PIL import Image

        if math.prod(self.shape[1:]) > _MOST_BYTES:
            raise ValueError("an image in the file is too large")
        pixels = self.row(number)
        if pixels.ndim == 3:
            pixels = np.moveaxis(pixels, 0, 2) if 3 not in self._channels else pixels
            pixels = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
        out = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(pixels)).save(out, "PNG", compress_level=1)
        return out.getvalue()

    def values(self) -> list[Any]:
        """Return a column's cells as plain values."""
        import numpy as np

        if self.shape[0] > _MOST_CELLS:
            raise ValueError("a column of the file is too long")
        if isinstance(self.source, tuple):
            file, start = self.source
            file.seek(start)
            whole = np.frombuffer(file.read(self.shape[0] * self.dtype.itemsize), self.dtype)
        else:
            whole = np.asarray(self.source[()])
        return [_plain(value) for value in whole.reshape(-1).tolist()]


class ArrayFile:
    """The arrays of an NPZ or of an HDF5 by name."""

    def __init__(self, path: Path, file: IO[bytes], stack: ExitStack) -> None:
        """Open it for as long as the stack. Raises UserError, ValueError, OSError."""
        self._path, self._stack = path, stack
        self._store: Any = None
        self._arrays: dict[str, StoredArray] = {}
        if path.suffix.lower() == ".npz":
            self._read_npz(file)
        else:
            self._store = stack.enter_context(_hdf5().File(file, "r"))

    def get(self, name: str) -> StoredArray | None:
        """Return an array; None where there is none, or it lies elsewhere."""
        if self._store is None:
            return self._arrays.get(name)
        h5py, item = _hdf5(), self._store
        for part in name.split("/"):
            here = isinstance(item, h5py.Group) and part not in ("", ".", "..")
            link = item.get(part, getlink=True) if here else None
            if type(link) is not h5py.HardLink:
                return None
            item = item[part]
        here = isinstance(item, h5py.Dataset) and not item.external and not item.is_virtual
        if not here or item.shape is None:
            return None
        return StoredArray(item.shape, item.dtype, item)

    def names(self, above: str = "", depth: int = 0) -> Iterator[str]:
        """Yield the names of all arrays."""
        yield from self._arrays
        if self._store is None or depth > _DEEPEST:
            return
        group = self._store[above] if above else self._store
        for key in group:
            if type(group.get(key, getlink=True)) is not _hdf5().HardLink:
                continue
            name = f"{above}/{key}".lstrip("/")
            if group.get(key, getclass=True) is _hdf5().Group:
                yield from self.names(name, depth + 1)
            else:
                yield name

    def member(self, name: str) -> bytes | None:
        """Return an image: of one key its bytes, of images/12 a PNG; None where there is none."""
        above, _, last = name.rpartition("/")
        if above and last.isdecimal() and (array := self.get(above)) and array.is_pixels:
            return array.png(int(last)) if int(last) < array.shape[0] else None
        array = self.get(name)
        if array is None or not array.is_encoded:
            return None
        if math.prod(array.shape) * array.dtype.itemsize > _MOST_BYTES:
            raise ValueError("the file is too large")
        value = array.source[()] if not isinstance(array.source, tuple) else array.values()
        value = bytes(value) if isinstance(value, list) else value
        return value if isinstance(value, bytes) else bytes(value.tobytes())

    def has(self, name: str) -> bool:
        """Tell whether there is an image of a name, without reading it."""
        above, _, last = name.rpartition("/")
        if above and last.isdecimal() and (array := self.get(above)) and array.is_pixels:
            return int(last) < array.shape[0]
        array = self.get(name)
        return array is not None and array.is_encoded

    def images(self, folder: str) -> Iterator[str]:
        """Yield the images of a group of encoded images, or of an array of pixels."""
        array = self.get(folder) if folder else None
        if array is not None and array.is_pixels:
            yield from (f"{folder}/{number}" for number in range(array.shape[0]))
        elif array is None and self._store is not None:
            group = self._store.get(folder) if folder else self._store
            for key in group if isinstance(group, _hdf5().Group) else ():
                yield f"{folder}/{key}".lstrip("/")

    def _read_npz(self, file: IO[bytes]) -> None:
        import numpy as np

        archive = self._stack.enter_context(zipfile.ZipFile(file))
        size = self._path.stat().st_size if self._path.exists() else 0
        infos = archive.infolist()
        if sum(info.file_size for info in infos) > max(_ALWAYS, _RATIO * size):
            raise UserError(f"{self._path} unpacks to far more than its size; do not use it.")
        for info in infos:
            if not info.filename.endswith(".npy"):
                continue
            copy = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            with archive.open(info) as packed:
                while chunk := packed.read(1 << 20):
                    copy.write(chunk)
            copy.seek(0)
            version = np.lib.format.read_magic(copy)
            read = {(1, 0): np.lib.format.read_array_header_1_0}
            shape, fortran, dtype = read.get(version, np.lib.format.read_array_header_2_0)(copy)
            start, wanted = copy.tell(), math.prod(shape) * dtype.itemsize
            if dtype.hasobject or (fortran and len(shape) > 1):
                continue  # a pickle is never loaded
            if copy.seek(0, 2) != start + wanted:
                raise ValueError(f"{info.filename[:80]!r} has another length than it says")
            name = info.filename.removesuffix(".npy")
            self._arrays[name] = StoredArray(shape, dtype, (copy, start))


Columns = dict[str, Sequence[Any]]


@contextmanager
def array_tables(path: Path, shown: str, notes: list[str]) -> Iterator[Iterator[Columns]]:
    """Give the columns of each split of the arrays in a file: arrays of one length.

    A name that has a split in it (train_images, y_test) is the column without it, and the split is
    a column of its own. A cell of an array of pixels is the path of its image, which begins with
    `shown`. Raises UserError, ValueError, OSError.
    """
    with ExitStack() as stack:
        store = ArrayFile(path, stack.enter_context(path.open("rb")), stack)
        splits: dict[str, dict[str, tuple[str, StoredArray]]] = {}
        for name in store.names():
            array = store.get(name)
            if array is not None and array.shape and (array.is_pixels or array.is_column):
                parts = re.split(r"[/_.]", name)
                split = next(filter(None, map(split_of, parts)), None) or ""
                rest = "_".join(part for part in parts if not split_of(part))
                splits.setdefault(split, {})[rest or name] = name, array
        yield (_of_split(split, named, shown, notes) for split, named in splits.items())


def _of_split(
    split: str, named: dict[str, tuple[str, StoredArray]], shown: str, notes: list[str]
) -> Columns:
    counts = Counter(array.shape[0] for _, array in named.values())
    pixels = [array.shape[0] for _, array in named.values() if array.is_pixels]
    length = pixels[0] if pixels else counts.most_common(1)[0][0]
    columns: Columns = {}
    for column, (name, array) in named.items():
        if array.shape[0] != length:
            notes.append(
                f"the array {name!r} has {array.shape[0]:,} rows and not {length:,}: left out."
            )
        elif array.is_pixels:
            columns[column] = [f"{shown}/{name}/{number}" for number in range(length)]
        elif array.dtype.names:
            rows = array.values()
            columns |= {one: [row[at] for row in rows] for at, one in enumerate(array.dtype.names)}
        else:
            columns[column] = array.values()
    return columns | ({"split": [split] * length} if split else {})


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _hdf5() -> Any:
    try:
        import h5py
    except ImportError:
        raise UserError(
            f"HDF5 is read with h5py, which is not installed; run {how_to_install('data')}."
        ) from None
    return h5py
