"""Encryption of what a case holds: AES-256-GCM (NIST SP 800-38D) under the case's own key."""

import hmac
import json
import os
from dataclasses import dataclass

from skindx.core.errors import UserError

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
    """Of the case or scan."""
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
        f"{what} cannot be decrypted: the case book or its key file is damaged, or was changed by "
        "another program; bring back whole copies of both."
    )


def _bound(place: tuple[str, ...]) -> bytes:
    # As JSON: no two places have the same bytes, whatever their parts hold.
    return json.dumps(place).encode()
