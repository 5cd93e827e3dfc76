"""Files inside zips, tars, HDF5 and NPZ, also nested ones: read where they lie, under limits.

A table of one archive is copied to a temporary file; images are read one at a time.
"""

import gzip
import io
import lzma
import os
import re
import shutil
import tarfile
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, cast

from skindx.core.errors import UserError
from skindx.data.tables.arrays import SUFFIXES as ARRAYS
from skindx.data.tables.arrays import ArrayFile
from skindx.data.tables.fields import AGAIN

_ENDING = re.compile(r"\.(zip|tar|tar\.gz|tgz|npz|h5|hdf5)$", re.IGNORECASE)
_WITHIN = re.compile(r"\.(zip|tar|tar\.gz|tgz|npz|h5|hdf5)/", re.IGNORECASE)
ENDINGS = (
    "",
    *[".jpg", ".jpeg", ".png", ".JPG", ".JPEG", ".PNG", ".bmp", ".tif", ".tiff", ".webp"],
)
"""Endings to try for files of a folder that a cell names without an ending."""
_UNPACK = "unpack the archive and give the unpacked folder instead"
_DEEPEST = 3
"""Archives within archives."""
_MOST_MEMBERS = 5_000_000
_ALWAYS, _RATIO = 1 << 30, 100
"""Limits of what an archive unpacks to: bytes, or times its size; photographs do not shrink."""
DAMAGED = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, gzip.BadGzipFile),
    *(OSError, EOFError, NotImplementedError, RuntimeError, ValueError, OverflowError),
)


def may_be_archive(path: Path) -> bool:
    """Tell whether a path is a file that is named as a zip or a tar."""
    named = _ENDING.search(path.name) and not path.name.lower().endswith(ARRAYS)
    return bool(named) and path.is_file()


def archive_above(path: Path) -> Path | None:
    """Return the archive in which a path lies, or which it is; None for a path of this disk."""
    for one in (path, *path.parents):
        if _ENDING.search(one.name) and one.is_file():
            return one
    return None


@contextmanager
def file_on_disk(path: Path) -> Iterator[Path]:
    """Give a file itself, or a temporary copy of the member of an archive. Raises UserError."""
    archive = None if path.exists() else archive_above(path)
    archives = ArchiveFiles(archive.parent) if archive else None  # it is closed with its last user
    name = path.relative_to(archive.parent).as_posix() if archive else ""
    packed = archives.find(name) if archives else None
    if not packed:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, f"table{path.suffix}")
        with packed() as source, copy.open("wb") as out:
            shutil.copyfileobj(source, out)
        yield copy


def is_there(path: Path) -> bool:
    """Tell whether there is a file, also inside an archive."""
    if os.path.exists(path):  # noqa: PTH110 Path.exists raises for a name that is too long
        return True
    archive = archive_above(path)
    name = archive and path.relative_to(archive.parent).as_posix()
    return bool(archive and name and ArchiveFiles(archive.parent).find(name))


@dataclass
class _Opened:
    """An open archive: its members by name, and what reads one."""

    members: dict[str, Callable[[], IO[bytes]]] = field(default_factory=dict)
    arrays: ArrayFile | None = None

    def get(self, name: str) -> Callable[[], IO[bytes]] | None:
        """Return what opens a member."""
        if self.arrays is None:
            return self.members.get(name)
        arrays = self.arrays
        return partial(_of_arrays, arrays, name) if arrays.has(name) else None

    def images(self, folder: str) -> Iterator[str]:
        """Yield what looks like an image in a folder."""
        if self.arrays is not None:
            yield from self.arrays.images(folder)
        for member in self.members:
            if member.rpartition("/")[0] == folder and Path(member).suffix.lower() in ENDINGS[1:]:
                yield member


class ArchiveFiles:
    """The members of archives below a folder, by paths such as images.zip/a/1.jpg."""

    def __init__(self, root: Path) -> None:
        self._root = Path(os.path.realpath(root))
        self._opened: dict[str, _Opened] = {}
        self.missing: set[str] = set()
        """Archives that were not there; who looks again empties it."""
        self._stack = ExitStack()
        weakref.finalize(self, self._stack.close)

    def find(self, path: str) -> Callable[[], IO[bytes]] | None:
        """Return what opens a member; None where no archive has it. Raises UserError."""
        if not _WITHIN.search(path):
            return None
        parts = path.split("/")
        names = [at for at, part in enumerate(parts, 1) if _ENDING.search(part)]
        for at in names if "\0" not in path else ():
            if "/".join(parts[:at]) in self.missing:
                continue
            archive = Path(os.path.realpath(self._root / "/".join(parts[:at])))
            if self._root in archive.parents and archive.is_file():
                opened = self._open("/".join(parts[:at]), partial(_plainly, archive))
                return self._member(opened, "/".join(parts[:at]), parts[at:], 1)
            self.missing.add("/".join(parts[:at]))
        return None

    def images(self, folder: str) -> Iterator[str]:
        """Yield what looks like an image in a folder of an archive that has been opened."""
        for name, opened in self._opened.items():
            if folder == name or folder.startswith(f"{name}/"):
                for member in opened.images(folder[len(name) + 1 :]):
                    yield f"{name}/{member}"

    def members(self, archive: str) -> dict[str, Callable[[], IO[bytes]]]:
        """Return the members of a zip or tar below the folder. Raises UserError."""
        if archive.lower().endswith(ARRAYS):
            return {}
        return self._open(archive, partial(_plainly, self._root / archive)).members

    def _member(
        self, opened: _Opened, name: str, parts: list[str], depth: int
    ) -> Callable[[], IO[bytes]] | None:
        inner = "/".join(parts)
        if member := opened.get(inner):
            return member
        for at in range(1, len(parts)):
            first = "/".join(parts[:at])
            if _ENDING.search(first) and first in opened.members:
                if depth >= _DEEPEST:
                    raise UserError(
                        f"{name} has archives inside archives inside archives; {_UNPACK}."
                    )
                nested = self._open(f"{name}/{first}", opened.members[first])
                return self._member(nested, f"{name}/{first}", parts[at:], depth + 1)
        return None

    def _open(self, name: str, source: Callable[[], IO[bytes]]) -> _Opened:
        if name not in self._opened:
            try:
                self._opened[name] = self._list(name, source)
            except UserError:
                raise
            except DAMAGED as error:
                detail = " ".join(str(error).split())[:200] or type(error).__name__
                raise UserError(
                    f"{self._root / name} cannot be read as an archive ({detail}); {AGAIN}."
                ) from None
        return self._opened[name]

    def _list(self, name: str, source: Callable[[], IO[bytes]]) -> _Opened:
        file = self._stack.enter_context(source())
        if isinstance(file, zipfile.ZipExtFile | tarfile.ExFileObject):
            file = self._unpacked(name, file, None)  # its size was checked with its archive
        size = os.fstat(file.fileno()).st_size
        if name.lower().endswith(("gz", "tgz")):
            file = self._unpacked(name, cast(IO[bytes], gzip.GzipFile(fileobj=file)), size)
        if name.lower().endswith(ARRAYS):
            return _Opened(arrays=ArrayFile(self._root / name, file, self._stack))
        return self._zip(name, file, size) if _is_zip(name) else self._tar(name, file, size)

    def _zip(self, name: str, file: IO[bytes], size: int) -> _Opened:
        archive = self._stack.enter_context(zipfile.ZipFile(file))
        opened, total = _Opened(), 0
        crcs: dict[str, int] = {}
        for info in archive.infolist():
            total += info.file_size
            if info.is_dir() or _is_clutter(info.filename):
                continue
            if info.flag_bits & 1:
                raise UserError(f"{self._root / name} is protected by a password; {_UNPACK}.")
            member = _plain_name(info.filename)
            if crcs.setdefault(member, info.CRC) != info.CRC:
                raise UserError(
                    f"{self._root / name} has two different files of the name {member[:80]!r}; "
                    f"{_UNPACK}, and keep only the correct one."
                )
            opened.members[member] = partial(archive.open, info)
        self._check(name, len(crcs), total, size)
        return opened

    def _tar(self, name: str, file: IO[bytes], size: int) -> _Opened:
        archive = self._stack.enter_context(tarfile.open(fileobj=file, mode="r:"))  # noqa: SIM115
        opened, total = _Opened(), 0
        for number, info in enumerate(archive):
            total += info.size
            self._check(name, number, total, size)
            if not info.isreg() or _is_clutter(info.name):
                continue
            member = _plain_name(info.name)
            if member in opened.members:
                raise UserError(
                    f"{self._root / name} has two files of the name {member[:80]!r}; {_UNPACK}."
                )
            opened.members[member] = partial(_extracted, archive, info)
        return opened

    def _unpacked(self, name: str, file: IO[bytes], size: int | None) -> IO[bytes]:
        """Return a temporary copy of what a compressed stream holds."""
        copy = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        total = 0
        while chunk := file.read(1 << 20):
            total += len(chunk)
            if size is not None:
                self._check(name, 0, total, size)
            copy.write(chunk)
        copy.seek(0)
        return copy

    def _check(self, name: str, members: int, total: int, size: int) -> None:
        if members > _MOST_MEMBERS or total > max(_ALWAYS, _RATIO * size):
            raise UserError(
                f"{self._root / name} unpacks to far more than its size, as no archive of "
                f"photographs does; if you trust it, {_UNPACK}."
            )


def _plainly(path: Path) -> IO[bytes]:
    return path.open("rb")


def _is_zip(name: str) -> bool:
    return name.lower().endswith(".zip")


def _of_arrays(arrays: ArrayFile, name: str) -> IO[bytes]:
    return io.BytesIO(arrays.member(name) or b"")


def _extracted(archive: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    file = archive.extractfile(info)
    assert file is not None
    return file


def _plain_name(name: str) -> str:
    return name.replace("\\", "/").removeprefix("./")


def _is_clutter(name: str) -> bool:
    parts = _plain_name(name).split("/")
    return "__MACOSX" in parts or parts[-1].startswith(".")
