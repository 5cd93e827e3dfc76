"""The key file lies outside the database; a case is deleted when its key is gone from it.

It holds lines of JSON: the first names the case book and has its two lasting secrets, each further
line is a case and its key, or the id of a deleted case. A new key is appended; a deletion writes
the file again without the key and overwrites the old one with zeros. The medium may still keep the
old blocks: flash memory and file systems that copy on write do. What a case holds is encrypted
under its own key: AES-256-GCM (NIST SP 800-38D).
"""

import base64
import errno
import hmac
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import flush, only_writer
from skindx.core.errors import UserError
from skindx.core.private_files import make_private, new_private, open_private
from skindx.core.untrusted import MALFORMED


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


_FORMAT = 1
_KEY_BYTES = 32


@dataclass(frozen=True)
class Keys:
    """Contents of a key file."""

    book: str
    """Random name of the case book that the keys belong to."""
    owners: bytes
    """Codes login names in the database (HMAC-SHA256)."""
    export: bytes
    """Codes pseudonyms in exports (HMAC-SHA256)."""
    cases: Mapping[str, bytes]
    """Case id -> AES-256 key."""
    deleted: frozenset[str]

    @property
    def of_deletions(self) -> bytes:
        """AES-256 key of the traces of deletions, drawn from `owners` by HKDF (RFC 5869)."""
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        return HKDF(SHA256(), _KEY_BYTES, None, b"skindx traces of deletions").derive(self.owners)


def new_key() -> bytes:
    """Return a random AES-256 key."""
    return secrets.token_bytes(_KEY_BYTES)


def content_of(keys: Keys) -> bytes:
    lines = [
        line_of(
            format=_FORMAT,
            book=keys.book,
            owners=key_text(keys.owners),
            export=key_text(keys.export),
        ),
        *(line_of(case=case, key=key_text(key)) for case, key in keys.cases.items()),
        *(line_of(deleted=case) for case in sorted(keys.deleted)),
    ]
    return "".join(lines).encode()


def parsed(content: bytes) -> Keys | None:
    """Return what the lines say; None for anything else. A last line without an end was cut off."""
    try:
        head, *rest = [json.loads(line) for line in content.decode().split("\n")[:-1]]
        if head["format"] != _FORMAT:
            return None
        cases = {str(row["case"]): _key(row["key"]) for row in rest if "case" in row}
        deleted = frozenset(str(row["deleted"]) for row in rest if "deleted" in row)
        return Keys(str(head["book"]), _key(head["owners"]), _key(head["export"]), cases, deleted)
    except MALFORMED:
        return None


def line_of(**values: Any) -> str:
    return json.dumps(values) + "\n"


def key_text(key: bytes) -> str:
    """Return a key as a line holds it."""
    return base64.b64encode(key).decode()


def _key(text: str) -> bytes:
    key = base64.b64decode(text, validate=True)
    if len(key) != _KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes")
    return key


VARIABLE = "SKINDX_CASEBOOK_KEYS"
"""Environment variable that names the key file."""
_WAIT_S = 60.0


class KeyFileError(UserError):
    """The key file cannot be used; the message names it, for the operator of the case book."""


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
        """Keep all others from changing the file. Raises KeyFileError after a minute of waiting."""
        with _file_errors(self.path, "opened"):
            make_private(self.path.parent)
            os.close(open_private(self._lock))
        with ExitStack() as held:
            try:
                held.enter_context(only_writer(self._lock, wait_s=_WAIT_S))
            except UserError as error:
                raise KeyFileError(str(error)) from None
            # Left behind by a process that was killed: it holds keys.
            overwrite(self._new)
            self._new.unlink(missing_ok=True)
            yield

    def create(self, export: bytes | None) -> None:
        """Write a new file, under the lock; `export` is an older book's secret of that name."""
        keys = Keys(secrets.token_hex(16), new_key(), export or new_key(), {}, frozenset())
        with _file_errors(self.path, "written"):
            self._write(keys)

    def read(self) -> Keys:
        """Return the keys as the file says now.

        Raises KeyFileError for a file that is missing, damaged, or open to others than its owner.
        """
        with _file_errors(self.path, "read"):
            for _ in range(3):
                with self.path.open("rb") as file:
                    stat = os.fstat(file.fileno())
                    stamp = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
                    last = self._last
                    if last is not None and stamp == last[0]:
                        return last[1]
                    if stat.st_mode & 0o077:
                        raise KeyFileError(
                            f"other users can read the key file {self.path}; run `chmod 600 "
                            f"{self.path}`."
                        )
                    keys = parsed(file.read())
                if keys is not None:
                    self._last = (stamp, keys)
                    return keys
                # Replaced and overwritten while it was read: the new file has another inode.
        raise KeyFileError(f"{self.path} is not a valid key file; restore it from a backup.")

    def add(self, cases: Mapping[str, bytes]) -> None:
        """Append the keys of new cases, under the lock; they are on the medium when this returns.

        Appended, so that no second copy of the other keys is made.
        """
        self.read()
        lines = "".join(line_of(case=case, key=key_text(key)) for case, key in cases.items())
        with _file_errors(self.path, "written"), self.path.open("rb+") as file:
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

    @contextmanager
    def new_case(self, case: str) -> Iterator[Keys]:
        """Yield the keys with a new one for a case, which goes again where the block fails.

        Keeps all others from changing the file.
        """
        with self.locked():
            self.add({case: new_key()})
            try:
                yield self.read()
            except BaseException:
                with suppress(UserError):  # a key without a case opens nothing
                    self.destroy(case)
                raise

    def destroy(self, case: str) -> None:
        """Write the file without the key of a case, under the lock, and overwrite the old file.

        Where the disk is full, the key is overwritten in its place: a deletion makes room.
        """
        keys = self.read()
        rest = {name: key for name, key in keys.cases.items() if name != case}
        fewer = Keys(keys.book, keys.owners, keys.export, rest, keys.deleted | {case})
        with _file_errors(self.path, "written"):
            try:
                self._write(fewer)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT) or case not in keys.cases:
                    raise
                self._blank(case, keys.cases[case])

    def _write(self, keys: Keys) -> None:
        with descriptor_of(self.path) as old:
            try:
                with new_private(self._new) as file:
                    file.write(content_of(keys))
                    file.flush()
                    os.fsync(file.fileno())
                self._new.replace(self.path)
            except BaseException:
                overwrite(self._new)
                self._new.unlink(missing_ok=True)
                raise
            flush(self.path.parent)
            if old is not None:
                zero(old)

    def _blank(self, case: str, key: bytes) -> None:
        """Write over the line of a case; a crash in the middle may leave a damaged line."""
        line = line_of(case=case, key=key_text(key)).encode()
        with self.path.open("rb+") as file:
            at = file.read().index(line)
            file.seek(at)
            file.write(line_of(deleted=case).encode().rstrip().ljust(len(line) - 1) + b"\n")
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def _file_errors(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise KeyFileError(
            f"the key file {path} of this case book is missing, and no case can be read without "
            f"it; restore it from a backup, or give its path with --casebook-key or {VARIABLE}."
        ) from None
    except OSError as error:
        raise KeyFileError(
            f"the key file {path} cannot be {what} ({error.strerror}); check its permissions and "
            "the free space on its disk."
        ) from None


_NONCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class Binding:
    """What the parts of a case or scan belong to; they are the associated data of its ciphertexts.

    The database holds `owner` and `version` in clear. Whoever can write to it can exchange them,
    but a part then no longer opens: no login reads or changes a case by a copied code, and a part
    of an older version does not stand in for a newer one.
    """

    book: str
    """Name of the case book."""
    id: str
    """Id of the case or scan."""
    owner: str
    """Code of the login, as the row has it."""
    version: int = 1
    consents: str = ""
    """What the patient agreed to; "" for the parts that are read first and that hold it."""

    def place(self, part: str) -> tuple[str, ...]:
        """Return the place of one part, for `seal` and `unseal`."""
        return (self.book, self.id, part, self.owner, str(self.version), self.consents)

    def seal(self, key: bytes, data: bytes, part: str) -> bytes:
        return seal(key, data, *self.place(part))

    def unseal(self, key: bytes, sealed: bytes, part: str) -> bytes:
        """Decrypt one part. Raises UserError for one that was changed, or put elsewhere."""
        try:
            return unseal(key, sealed, *self.place(part))
        except UserError:
            raise damaged(f"case {self.id}") from None


def seal(key: bytes, data: bytes, *place: str) -> bytes:
    """Return nonce and ciphertext; `place` says what the data is, so that none is exchanged."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, data, _bound(place))


def unseal(key: bytes, sealed: bytes, *place: str) -> bytes:
    """Return the data. Raises UserError where key, ciphertext and place do not belong together."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _bound(place))
    except (InvalidTag, ValueError):
        raise damaged() from None


def owner_code(key: bytes, owner: str) -> str:
    """Return what stands in the database for a login name, so that its cases can be looked up."""
    return hmac.digest(key, owner.encode(), "sha256").hex()


def damaged(what: str = "a case") -> UserError:
    """Return the error for what was changed by other means than skindx."""
    return UserError(
        f"{what} cannot be decrypted, because the case book or its key file is damaged or was "
        "changed by another program; restore both from a backup."
    )


def _bound(place: tuple[str, ...]) -> bytes:
    # As JSON: no two places have the same bytes, whatever their parts hold.
    return json.dumps(place).encode()
