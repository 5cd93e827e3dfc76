"""Encryption of what a case holds: AES-256-GCM (NIST SP 800-38D) under the case's own key."""

import hmac
import os

from skindx.errors import UserError

_NONCE_BYTES = 12


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
        raise UserError(
            "a case cannot be decrypted: the case book or its key file is damaged; bring back "
            "whole copies of both."
        ) from None


def owner_code(key: bytes, owner: str) -> str:
    """Return what stands in the database for a login name, so that its cases can be looked up."""
    return hmac.digest(key, owner.encode(), "sha256").hex()


def _bound(place: tuple[str, ...]) -> bytes:
    return "/".join(place).encode()
