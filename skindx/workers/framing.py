"""How cases and answers cross between processes: JSON for values, bytes as they are, no pickle.

A message is the length of its head (4 bytes), the head (JSON: `body`, and the `sizes` of the
blobs), and the blobs. In the body `{"#": n}` stands for the n-th blob.
"""

import json
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pydantic import TypeAdapter

LENGTH_BYTES = 4
_BLOB = "#"

T = TypeVar("T")


def pack(body: Any) -> bytes:
    """Return a message of plain values in which bytes may stand anywhere."""
    blobs: list[bytes] = []
    plain = _without_bytes(body, blobs)
    sizes = [len(blob) for blob in blobs]
    head = json.dumps({"body": plain, "sizes": sizes}, separators=(",", ":")).encode()
    return b"".join((len(head).to_bytes(LENGTH_BYTES, "big"), head, *blobs))


def blob_sizes(head: bytes) -> list[int]:
    """Return how many bytes each blob after this head has."""
    sizes: list[int] = json.loads(head)["sizes"]
    return sizes


def unpack(head: bytes, blobs: Sequence[bytes]) -> Any:
    """Return the body of a message, bytes back in their places."""
    return _with_bytes(json.loads(head)["body"], blobs)


def plain(value: Any) -> Any:
    """Return a dataclass as plain values and bytes, for `pack`."""
    kind: Any = type(value)
    return _adapter(kind).dump_python(value)


def rebuilt(kind: type[T], values: Any) -> T:
    """Return the dataclass whose `plain` values these are. Raises ValueError for others."""
    wanted: Any = kind
    made: T = _adapter(wanted).validate_python(values)
    return made


@cache
def _adapter(kind: Any) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _without_bytes(value: Any, blobs: list[bytes]) -> Any:
    if isinstance(value, bytes):
        blobs.append(value)
        return {_BLOB: len(blobs) - 1}
    if isinstance(value, dict):
        return {key: _without_bytes(each, blobs) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_bytes(each, blobs) for each in value]
    return value


def _with_bytes(value: Any, blobs: Sequence[bytes]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_BLOB}:
            return blobs[value[_BLOB]]
        return {key: _with_bytes(each, blobs) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_bytes(each, blobs) for each in value]
    return value
