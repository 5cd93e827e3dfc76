"""The secret of a run: its ranks know each other by it, at a store that asks nobody who he is.

Torch's TCPStore answers whoever reaches it. What ranks write there bears a code of name and text
under the secret (HMAC-SHA256), and what bears none is nobody's. Whoever reaches the store can still
remove and overwrite: that stops a training, and does no more.
"""

import hmac
import os
import re
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from secrets import token_bytes, token_hex
from typing import Any

import torch.distributed as dist

from skindx.core.errors import JobError, UserError

FILE = "secret"
_BYTES = 32
_FORM = re.compile(rf"[0-9a-f]{{{2 * _BYTES}}}\n")
_WRITTEN_S = 10.0
"""Seconds that the rank which makes the file has to fill it."""
_STRANGER = "a process in the group does not know the secret of the run"


class ForeignError(Exception):
    """Something in the store is of no rank of this run."""

    def __str__(self) -> str:
        return "somebody who does not know the secret of the run has written into the store"


class RunSecret:
    """Signs what ranks write, and tells what none of them wrote."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()

    @classmethod
    def within(cls, folder: Path) -> "RunSecret":
        """Return the secret that lies in a folder, 0600; the first rank that asks makes it.

        Raises UserError for one that others can read.
        """
        file = folder / FILE
        folder.mkdir(parents=True, exist_ok=True)
        make = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        try:
            with os.fdopen(os.open(file, make, 0o600), "w", encoding="ascii") as stream:
                stream.write(f"{token_hex(_BYTES)}\n")
        except FileExistsError:
            pass
        deadline = time.monotonic() + _WRITTEN_S
        while not _FORM.fullmatch(text := file.read_text(encoding="ascii", errors="replace")):
            if time.monotonic() > deadline:
                raise UserError(
                    f"{file} is not a secret of a run; delete this file, and start all ranks again."
                )
            time.sleep(0.05)
        if file.stat().st_mode & 0o077:
            raise UserError(
                f"other users of this machine may read or change {file}, the secret of this run; "
                "delete this file and start all ranks again."
            )
        return cls(text.strip())

    def seal(self, name: str, text: str) -> str:
        """Return the value in the store under a name."""
        return f"{self._code(name, text.encode())} {text}"

    def opened(self, name: str, sealed: str | bytes) -> str:
        """Return what a rank wrote under a name. Raises ForeignError for what none of them did."""
        data = sealed.encode() if isinstance(sealed, str) else sealed
        code, _, text = data.partition(b" ")
        if not hmac.compare_digest(code, self._code(name, text).encode()):
            raise ForeignError
        return text.decode()

    def prove(self, gather: Callable[[Any], list[Any]], rank: int, group: int) -> None:
        """Raise DistError unless every rank of a group knows the secret; every rank calls this."""
        try:
            every = b"".join(gather(token_bytes(_BYTES)))  # new ones: no answer of before is right
            proofs = gather(self._code(f"rank {rank} of group {group}", every))
        except (JobError, TypeError):
            raise dist.DistError(_STRANGER) from None
        for other, proof in enumerate(proofs):
            right = self._code(f"rank {other} of group {group}", every)
            if not hmac.compare_digest(str(proof).encode(), right.encode()):
                raise dist.DistError(_STRANGER)

    def _code(self, name: str, text: bytes) -> str:
        return hmac.new(self._key, name.encode() + b"\0" + text, sha256).hexdigest()
