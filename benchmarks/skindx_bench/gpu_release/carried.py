"""A slice's state as files small enough to travel, and the working folder that they refill.

STATE/index.json       whose it is, and the size and hash of every part; written last
STATE/ID-000.part      a compressed tar file, cut into parts of at most so many bytes

The working folder stays on its machine and holds more: after a kill the same command goes on in
it. Each pack has an id and lists the ids of those before it, so that of a state and a working
folder the newer one counts, and one of another line of work is refused.
"""

import io
import json
import re
import secrets
import shutil
import tarfile
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from skindx.core.atomic_files import (
    FolderKind,
    atomic_folder,
    flush,
    leftovers,
    sha256_file,
    write_json,
)
from skindx.core.errors import UserError
from skindx.core.text import MADE_FROM, differences
from skindx.core.untrusted import read_json

INDEX, MARK = "index.json", "carried.json"
_FORMAT = 1
_PART = re.compile(r"[0-9a-f]{8}-\d{3}\.part")
_MOST_BEFORE = 500
"""Ids of earlier packs that an index lists."""
_WORK = FolderKind("the working folder of a slice", MARK, ("*",))


@dataclass(frozen=True)
class CarriedState:
    """The state of one slice, and its working folder."""

    folder: Path
    """Travels."""
    work: Path
    """Stays."""
    made_from: Mapping[str, Any]
    """Plain values of all that the state depends on."""
    most_bytes: int
    """Of one part."""

    def open(self) -> None:
        """Make the working folder, or refill it where the state is newer.

        Only for who holds the slice. Raises UserError for a damaged state, and for one of other
        settings, another version of the code or another line of work.
        """
        for left in leftovers(self.work):
            shutil.rmtree(left, ignore_errors=True)
        state = read_index(self.folder) if (self.folder / INDEX).exists() else None
        mark = _read_mark(self.work)
        for where, made in ((self.folder, state), (self.work, mark)):
            if made is not None and made.get(MADE_FROM) != self.made_from:
                raise UserError(
                    f"{where} is of a slice with other settings or another version of the code "
                    f"({differences(made.get(MADE_FROM), self.made_from)}); go on with those, or "
                    "move that folder away to begin the slice again."
                )
        if mark is not None and (
            state is None or mark["id"] == state["id"] or state["id"] in mark["before"]
        ):
            return
        if mark is not None and state is not None and mark["id"] not in state["before"]:
            raise UserError(
                f"{self.folder} does not follow from what {self.work} holds, nor the other way "
                "round: they were begun apart; move one of the two away."
            )
        with atomic_folder(self.work, _WORK) as made_here:
            if state is not None:
                unpack(self.folder, state, made_here)
            self._write_mark(
                made_here,
                state["id"] if state else secrets.token_hex(4),
                state["before"] if state else [],
            )

    def pack(self, files: Iterable[Path]) -> None:
        """Write a new state that holds these files of the working folder; the older one goes."""
        mark = _read_mark(self.work)
        assert mark is not None
        before = [*mark["before"], mark["id"]][-_MOST_BEFORE:]
        named = {str(file.relative_to(self.work)): file for file in files}
        made = pack(self.folder, named, self.most_bytes, made_from=self.made_from, before=before)
        self._write_mark(self.work, made, before)

    def _write_mark(self, work: Path, name: str, before: list[str]) -> None:
        write_json(work / MARK, {"id": name, "before": before, MADE_FROM: dict(self.made_from)})


def _read_mark(work: Path) -> dict[str, Any] | None:
    return read_json(work / MARK) if (work / MARK).is_file() else None


def pack(
    folder: Path,
    files: Mapping[str, Path],
    most_bytes: int,
    *,
    made_from: Mapping[str, Any],
    before: list[str],
) -> str:
    """Write files by name into a state of parts and return its id; the one before it goes then."""
    folder.mkdir(parents=True, exist_ok=True)
    name = secrets.token_hex(4)
    cutter = _Cutter(folder, name, most_bytes)
    with tarfile.open(fileobj=cast(Any, cutter), mode="w|gz") as archive:
        for path, file in sorted(files.items()):
            archive.add(file.resolve(), path, recursive=False)
    cutter.close()
    body = {
        "format": _FORMAT,
        "id": name,
        "before": before,
        MADE_FROM: dict(made_from),
        "parts": cutter.parts,
    }
    write_json(folder / INDEX, {**body, "seal": _seal(body)})
    for old in folder.glob("*.part"):
        if old.name not in cutter.parts:
            old.unlink()
    return name


def read_index(folder: Path) -> dict[str, Any]:
    """Return the index of a state. Raises UserError where it or a part is not as written."""
    index = read_json(folder / INDEX)
    seal = index.pop("seal", None)
    if seal != _seal(index) or index.get("format") != _FORMAT:
        raise _damaged(folder, f"{INDEX} was altered or is of another version")
    for name, part in index["parts"].items():
        file = folder / name
        if not _PART.fullmatch(name) or not file.is_file():
            raise _damaged(folder, f"{name} is missing")
        if file.stat().st_size != part["bytes"] or sha256_file(file) != part["sha256"]:
            raise _damaged(folder, f"{name} is not as it was written")
    return index


def unpack(folder: Path, index: Mapping[str, Any], into: Path) -> None:
    """Write the files of a state, whose index `read_index` gave, below a folder."""
    with (
        closing(_Joined([folder / name for name in sorted(index["parts"])])) as pieces,
        tarfile.open(fileobj=cast(Any, pieces), mode="r|gz") as archive,
    ):
        archive.extractall(into, filter="data")


def _damaged(folder: Path, what: str) -> UserError:
    return UserError(
        f"the state in {folder} is damaged ({what}); bring all its files again, or move it away "
        "to go on without it."
    )


def _seal(body: Mapping[str, Any]) -> str:
    return sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


class _Cutter:
    """Takes a stream and writes it as files of at most so many bytes."""

    def __init__(self, folder: Path, name: str, most_bytes: int) -> None:
        self.parts: dict[str, dict[str, Any]] = {}
        """Name -> bytes and sha256 of each part that is whole."""
        self._folder, self._name, self._most = folder, name, most_bytes
        self._open: io.BufferedWriter | None = None
        self._size = 0

    def write(self, content: bytes) -> int:
        """Write to the part that is open, and to the next ones where it is full."""
        left = memoryview(content)
        while left:
            if self._open is None:
                self._open, self._size = self._file().open("wb"), 0
            taken = left[: self._most - self._size]
            self._open.write(taken)
            self._size += len(taken)
            left = left[len(taken) :]
            if self._size == self._most:
                self.close()
        return len(content)

    def close(self) -> None:
        """End the part that is open."""
        if self._open is not None:
            self._open.close()
            self._open = None
            file = self._file()
            flush(file)
            self.parts[file.name] = {"bytes": file.stat().st_size, "sha256": sha256_file(file)}

    def _file(self) -> Path:
        return self._folder / f"{self._name}-{len(self.parts):03d}.part"


class _Joined:
    """Files, read one after the other."""

    def __init__(self, files: list[Path]) -> None:
        self._files = files
        self._open: io.BufferedReader | None = None

    def read(self, count: int) -> bytes:
        """Return at most so many bytes; none at the end."""
        content = b""
        while len(content) < count:
            if self._open is None:
                if not self._files:
                    break
                self._open = self._files.pop(0).open("rb")
            more = self._open.read(count - len(content))
            if not more:
                self.close()
            content += more
        return content

    def close(self) -> None:
        """End the file that is open."""
        if self._open is not None:
            self._open.close()
            self._open = None


@cache
def code_version() -> str:
    """Return a hash of the code and presets of the three distributions that run here."""
    sums = sha256()
    for package in ("skindx", "skindx_methods", "skindx_bench"):
        spec = find_spec(package)
        if spec is None or not spec.origin:
            continue
        root = Path(spec.origin).parent
        for file in sorted(root.rglob("*")):
            if file.suffix in (".py", ".yaml", ".cpp") and file.is_file():
                content = sha256(file.read_bytes()).hexdigest()
                sums.update(f"{package}/{file.relative_to(root)} {content}\n".encode())
    return sums.hexdigest()[:16]
