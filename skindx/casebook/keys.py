"""Contents of a key file: the secrets of a case book and one key a case, as lines of JSON.

The first line names the case book and holds its two lasting secrets; each further line is a case
and its key, or the id of a deleted case.
"""

import base64
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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


def new_key() -> bytes:
    """Return a random AES-256 key."""
    return secrets.token_bytes(_KEY_BYTES)


def content_of(keys: Keys) -> bytes:
    """Return the bytes of a key file."""
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
    except (ValueError, KeyError, TypeError):
        return None


def line_of(**values: Any) -> str:
    """Return one line of a key file."""
    return json.dumps(values) + "\n"


def key_text(key: bytes) -> str:
    """Return a key as a line holds it."""
    return base64.b64encode(key).decode()


def _key(text: str) -> bytes:
    key = base64.b64decode(text, validate=True)
    if len(key) != _KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes")
    return key
