"""A file of users: names and scrypt hashes, readable by its owner alone."""

import base64
import hashlib
import hmac
import json
import os
import re
import secrets
from pathlib import Path

from skindx.core.atomic_files import only_writer
from skindx.core.errors import UserError
from skindx.core.private_files import make_private, write_private

LEAST_LENGTH = 10
_NAME = r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}"
_HASH = r"scrypt(\$[0-9]{1,7}){3}(\$[A-Za-z0-9+/]+={0,2}){2}"
# RFC 7914's parameters for a login: 32 MB and about 0.1 s for each try.
_COST, _BLOCK, _PARALLEL = 1 << 15, 8, 1
_MEMORY_BYTES = 64 << 20
_MOST = 1024
"""Bytes of a password; hashing a longer one would only cost time."""


class Users:
    """The users of a file, read again whenever the file has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int] | None = None
        self._hashes: dict[str, str] = {}
        self._nobody = _hash(secrets.token_hex(16))
        if not self.known():
            raise UserError(
                f"the file of users {path} has no user; run `skindx user add {path} NAME` first."
            )

    def known(self) -> dict[str, str]:
        """Return name -> hash as the file says now.

        Raises UserError for a file that is missing, damaged, or open to others than its owner.
        """
        try:
            stat = self.path.stat()
        except OSError as error:
            raise UserError(
                f"the file of users {self.path} cannot be read ({error.strerror}); restore it "
                "from a backup, or create a new file with `skindx user add`."
            ) from None
        stamp = (stat.st_mtime_ns, stat.st_ino)
        if stamp != self._stamp:
            self._hashes, self._stamp = read_users(self.path), stamp
        return self._hashes

    def check(self, name: str, password: str) -> bool:
        """Tell whether a password is right; a name that is not there takes as long as one that is.

        It costs a tenth of a second of arithmetic: call it in a thread.
        """
        return self.matches(self.known().get(name), password)

    def matches(self, hashed: str | None, password: str) -> bool:
        """Tell whether a password has this hash; None takes as long as a hash does."""
        right = _matches(password, hashed or self._nobody)
        return right and hashed is not None


def add_user(path: Path, name: str, password: str) -> None:
    """Write a user into the file, in place of an older one of the name. Raises UserError."""
    if not re.fullmatch(_NAME, name):
        raise UserError(
            f"the user name {name!r} is not valid; use up to 64 letters, digits and . _ @ -."
        )
    if len(password) < LEAST_LENGTH or len(password.encode()) > _MOST:
        raise UserError(
            f"the password must have {LEAST_LENGTH} to 256 characters; choose another password."
        )
    _change(path, name, _hash(password))


def remove_user(path: Path, name: str) -> None:
    """Take a user out of the file. Raises UserError for one who is not in it."""
    if name not in read_users(path):
        raise UserError(f"{path} has no user {name!r}; check the spelling of the name.")
    _change(path, name, None)


def read_users(path: Path) -> dict[str, str]:
    """Return name -> hash. Raises UserError for a file of another kind, or that others can read."""
    try:
        if path.stat().st_mode & 0o077:
            raise UserError(f"other users of this machine can read {path}; run `chmod 600 {path}`.")
        known = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise _damaged(path) from None
    if not isinstance(known, dict) or not all(
        isinstance(value, str) and re.fullmatch(_HASH, value) for value in known.values()
    ):
        raise _damaged(path)
    return known


def _damaged(path: Path) -> UserError:
    return UserError(
        f"{path} is not a valid file of users; restore it from a backup, or create a new file "
        "with `skindx user add`."
    )


def _change(path: Path, name: str, hashed: str | None) -> None:
    make_private(path.parent)
    with only_writer(path.parent):
        known = read_users(path)
        known.pop(name, None)
        if hashed is not None:
            known[name] = hashed
        write_private(path, json.dumps(known, indent=2) + "\n")


def _hash(password: str) -> str:
    salt, costs = os.urandom(16), (_COST, _BLOCK, _PARALLEL)
    made = _scrypt(password, salt, *costs)
    return "$".join(("scrypt", *map(str, costs), _text(salt), _text(made)))


def _matches(password: str, hashed: str) -> bool:
    try:
        kind, cost, block, parallel, salt, expected = hashed.split("$")
        if kind != "scrypt" or len(password.encode()) > _MOST:
            return False
        made = _scrypt(password, base64.b64decode(salt), int(cost), int(block), int(parallel))
    except ValueError:
        return False
    return hmac.compare_digest(made, base64.b64decode(expected))


def _scrypt(password: str, salt: bytes, cost: int, block: int, parallel: int) -> bytes:
    return hashlib.scrypt(
        password.encode(), salt=salt, n=cost, r=block, p=parallel, maxmem=_MEMORY_BYTES
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
