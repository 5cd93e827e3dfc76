"""Images inside zips and tars, also nested ones: read where they lie, with limits for bombs."""

import gzip
import lzma
import os
import re
import tarfile
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, cast

from skindx.core.errors import UserError

_ENDING = re.compile(r"\.(zip|tar|tar\.gz|tgz)$", re.IGNORECASE)
_DEEPEST = 3
"""Archives within archives."""
_MOST_MEMBERS = 5_000_000
_ALWAYS, _RATIO = 1 << 30, 100
"""An archive may unpack to so many bytes, or so many times its size; photographs do not shrink."""
DAMAGED = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, gzip.BadGzipFile),
    *(OSError, EOFError, NotImplementedError, RuntimeError, ValueError, OverflowError),
)


def may_be_archive(path: Path) -> bool:
    """Tell whether a path is a file that is named as an archive."""
    return _ENDING.search(path.name) is not None and path.is_file()


@dataclass
class _Opened:
    """An open archive: its members by name, and what reads one."""

    members: dict[str, Callable[[], IO[bytes]]] = field(default_factory=dict)


class ArchiveFiles:
    """The members of archives below a folder, by paths such as images.zip/a/1.jpg."""

    def __init__(self, root: Path) -> None:
        self._root = Path(os.path.realpath(root))
        self._opened: dict[str, _Opened] = {}
        self._stack = ExitStack()
        weakref.finalize(self, self._stack.close)

    def find(self, path: str) -> Callable[[], IO[bytes]] | None:
        """Return what opens a member; None where no archive has it. Raises UserError."""
        parts = path.split("/")
        names = [at for at, part in enumerate(parts, 1) if _ENDING.search(part)]
        for at in names if "\0" not in path else ():
            archive = Path(os.path.realpath(self._root / "/".join(parts[:at])))
            if self._root in archive.parents and archive.is_file():
                opened = self._open("/".join(parts[:at]), partial(_plainly, archive))
                return self._member(opened, "/".join(parts[:at]), parts[at:], 1)
        return None

    def members(self, archive: str) -> list[str]:
        """Return the paths of all members of an archive. Raises UserError."""
        self.find(f"{archive}/-")
        return list(self._opened[archive].members) if archive in self._opened else []

    def names(self, folder: str) -> Iterator[str]:
        """Yield the members of a folder of an archive that has been opened."""
        for name, opened in self._opened.items():
            if folder == name or folder.startswith(f"{name}/"):
                inner = folder[len(name) + 1 :]
                for member in opened.members:
                    above, _, last = member.rpartition("/")
                    if above == inner:
                        yield f"{folder}/{last}"

    def _member(
        self, opened: _Opened, name: str, parts: list[str], depth: int
    ) -> Callable[[], IO[bytes]] | None:
        inner = "/".join(parts)
        if inner in opened.members:
            return opened.members[inner]
        for at in range(1, len(parts)):
            first = "/".join(parts[:at])
            if _ENDING.search(first) and first in opened.members:
                if depth >= _DEEPEST:
                    raise UserError(f"{name} holds archives in archives in archives; unpack it.")
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
                    f"{self._root / name} cannot be read as an archive ({detail}); get it again."
                ) from None
        return self._opened[name]

    def _list(self, name: str, source: Callable[[], IO[bytes]]) -> _Opened:
        file = self._stack.enter_context(source())
        if isinstance(file, zipfile.ZipExtFile | tarfile.ExFileObject):
            file = self._unpacked(name, file, None)  # its size was checked with its archive
        size = os.fstat(file.fileno()).st_size
        if name.lower().endswith(("gz", "tgz")):
            file = self._unpacked(name, cast(IO[bytes], gzip.GzipFile(fileobj=file)), size)
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
                raise UserError(f"{self._root / name} has a password; unpack it yourself.")
            member = _plain_name(info.filename)
            if crcs.setdefault(member, info.CRC) != info.CRC:
                raise UserError(
                    f"{self._root / name} has {member[:80]} twice, with other bytes; unpack it and "
                    "keep one."
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
                raise UserError(f"{self._root / name} has {member[:80]} twice; unpack it.")
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
                "photographs does; unpack it yourself if you trust it."
            )


def _plainly(path: Path) -> IO[bytes]:
    return path.open("rb")


def _is_zip(name: str) -> bool:
    return name.lower().endswith(".zip")


def _extracted(archive: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    file = archive.extractfile(info)
    assert file is not None
    return file


def _plain_name(name: str) -> str:
    return name.replace("\\", "/").removeprefix("./")


def _is_clutter(name: str) -> bool:
    parts = _plain_name(name).split("/")
    return "__MACOSX" in parts or parts[-1].startswith(".")
