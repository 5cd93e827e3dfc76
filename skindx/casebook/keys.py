"""The key file: one key a case, outside the database; a case is deleted when its key is gone.

Lines of JSON. The first names the case book and holds its two lasting secrets; each further line
is a case and its key, or the id of a deleted case. A new key is appended; a deletion writes the
file anew without the key and overwrites the old one.
"""

import base64
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skindx.errors import UserError
from skindx.files import only_writer

VARIABLE = "SKINDX_CASEBOOK_KEYS"
"""Environment variable that names the key file."""
_FORMAT = 1
_KEY_BYTES = 32
_WAIT_S = 60.0


@dataclass(frozen=True)
class Keys:
    """What a key file holds."""

    book: str
    """Random name of the case book that the keys belong to."""
    owners: bytes
    """Codes login names in the database (HMAC-SHA256)."""
    export: bytes
    """Codes pseudonyms in exports (HMAC-SHA256)."""
    cases: Mapping[str, bytes]
    """Case id -> AES-256 key."""
    deleted: frozenset[str]


def new_key() -> bytes:
    """Return a random AES-256 key."""
    return secrets.token_bytes(_KEY_BYTES)


class KeyFile:
    """A key file and its lock; several processes of one machine may use it at a time."""

    def __init__(self, path: Path) -> None:
        # A link stays a link: the file behind it is the one that is replaced.
        self.path = path.resolve()
        self._new = self.path.with_name(self.path.name + ".new")
        self._lock = self.path.with_name(self.path.name + ".lock")
        # The file's time, inode and size, and what it held: one value, as threads share it.
        self._last: tuple[tuple[int, int, int], Keys] | None = None

    def exists(self) -> bool:
        """Tell whether the file is there, whatever it holds."""
        return self.path.exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep all others from changing the file. Raises UserError after a minute of waiting."""
        with _told(self.path, "opened"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600))
        with only_writer(self._lock, wait_s=_WAIT_S):
            # Left behind by a process that was killed: it holds keys.
            overwrite(self._new)
            self._new.unlink(missing_ok=True)
            yield

    def create(self, export: bytes | None) -> None:
        """Write a new file, under the lock; `export` is an older book's secret of that name."""
        self._write(
            Keys(secrets.token_hex(16), new_key(), export or new_key(), {}, frozenset()),
        )

    def read(self) -> Keys:
        """Return the keys as the file says now.

        Raises UserError for a file that is missing, damaged, or open to others than its owner.
        """
        with _told(self.path, "read"):
            for _ in range(3):
                with self.path.open("rb") as file:
                    found = os.fstat(file.fileno())
                    stamp = (found.st_mtime_ns, found.st_ino, found.st_size)
                    last = self._last
                    if last is not None and stamp == last[0]:
                        return last[1]
                    if found.st_mode & 0o077:
                        raise UserError(
                            f"the key file {self.path} can be read by others than its owner; run "
                            f"`chmod 600 {self.path}`."
                        )
                    keys = _parsed(file.read())
                if keys is not None:
                    self._last = (stamp, keys)
                    return keys
                # Replaced and overwritten while it was read: the new file has another inode.
        raise UserError(
            f"{self.path} is no key file of a case book, or a damaged one; bring back a whole copy."
        )

    def add(self, cases: Mapping[str, bytes]) -> None:
        """Append the keys of new cases, under the lock; they are on the medium when this returns.

        Appended, so that no second copy of the other keys is made.
        """
        self.read()
        lines = "".join(_line(case=case, key=_text(key)) for case, key in cases.items())
        with _told(self.path, "written"), self.path.open("rb+") as file:
            whole = file.read()
            end = whole.rfind(b"\n") + 1  # behind it lies what a crash cut off
            try:
                file.seek(end)
                file.truncate()
                file.write(lines.encode())
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    os.ftruncate(file.fileno(), end)
                raise

    def destroy(self, case: str) -> None:
        """Write the file without the key of a case, under the lock, and overwrite the old file."""
        keys = self.read()
        rest = {name: key for name, key in keys.cases.items() if name != case}
        self._write(Keys(keys.book, keys.owners, keys.export, rest, keys.deleted | {case}))

    def _write(self, keys: Keys) -> None:
        with _told(self.path, "written"), _descriptor(self.path) as old:
            try:
                descriptor = os.open(self._new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(_content(keys))
                    file.flush()
                    os.fsync(file.fileno())
                self._new.replace(self.path)
            except BaseException:
                overwrite(self._new)
                self._new.unlink(missing_ok=True)
                raise
            _sync_folder(self.path.parent)
            if old is not None:
                _zero(old)


@contextmanager
def _descriptor(path: Path) -> Iterator[int | None]:
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
    """Write zeros over a file's bytes, if it is there.

    The medium may still keep the old blocks: flash memory and file systems that copy on write do.
    """
    with _descriptor(path) as descriptor:
        if descriptor is not None:
            _zero(descriptor)


def _zero(descriptor: int) -> None:
    left, piece = os.fstat(descriptor).st_size, bytes(1 << 20)
    os.lseek(descriptor, 0, os.SEEK_SET)
    while left > 0:
        left -= os.write(descriptor, piece[:left])
    os.fsync(descriptor)


def _content(keys: Keys) -> bytes:
    lines = [
        _line(format=_FORMAT, book=keys.book, owners=_text(keys.owners), export=_text(keys.export)),
        *(_line(case=case, key=_text(key)) for case, key in keys.cases.items()),
        *(_line(deleted=case) for case in sorted(keys.deleted)),
    ]
    return "".join(lines).encode()


def _parsed(content: bytes) -> Keys | None:
    """Return what the lines say; None for anything else. A last line without an end was cut off."""
    try:
        head, *rest = [json.loads(line) for line in content.split(b"\n")[:-1]]
        if head["format"] != _FORMAT:
            return None
        cases = {str(row["case"]): _key(row["key"]) for row in rest if "case" in row}
        deleted = frozenset(str(row["deleted"]) for row in rest if "deleted" in row)
        return Keys(str(head["book"]), _key(head["owners"]), _key(head["export"]), cases, deleted)
    except (ValueError, KeyError, TypeError):
        return None


def _line(**values: Any) -> str:
    return json.dumps(values) + "\n"


def _text(key: bytes) -> str:
    return base64.b64encode(key).decode()


def _key(text: str) -> bytes:
    key = base64.b64decode(text, validate=True)
    if len(key) != _KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes")
    return key


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _told(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise UserError(
            f"the key file {path} of this case book is missing, and without it nobody can read the "
            f"cases; bring it back, or name it with --casebook-key or {VARIABLE}."
        ) from None
    except OSError as error:
        raise UserError(
            f"the key file {path} cannot be {what} ({error.strerror}); look at its permissions "
            "and the room on its disk."
        ) from None
