"""Messages between processes: JSON for values, bytes as they are, no pickle.

A message is the length of its head (4 bytes), the head (JSON: `body`, and the `sizes` of the
blobs), and the blobs. In the body `{"#": n}` stands for the n-th blob.
"""

import json
from collections.abc import Callable, Generator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio

    from pydantic import TypeAdapter

LENGTH_BYTES = 4
LONGEST_HEAD = 1 << 28
"""More bytes than any head has, and less than four characters of text would name."""
_BLOB = "#"

T = TypeVar("T")


def pack(body: Any) -> bytes:
    """Return a message of plain values in which bytes may stand anywhere."""
    blobs: list[bytes] = []
    values = _without_bytes(body, blobs)
    sizes = [len(blob) for blob in blobs]
    head = json.dumps({"body": values, "sizes": sizes}, separators=(",", ":")).encode()
    return b"".join((len(head).to_bytes(LENGTH_BYTES, "big"), head, *blobs))


def receive(read: Callable[[int], bytes]) -> Any:
    """Return the body of the next message; `read(n)` returns the next n bytes, fewer at the end.

    Raises EOFError when the other side is gone, and ValueError for what is no message.
    """
    parts = _parse()
    size = next(parts)
    while True:
        data = read(size)
        if len(data) < size:
            raise EOFError("the other process is gone")
        try:
            size = parts.send(data)
        except StopIteration as done:
            return done.value


async def receive_async(reader: "asyncio.StreamReader") -> Any:
    """Return the body of the next message.

    Raises IncompleteReadError (an EOFError) when the other side is gone, and ValueError for what
    is no message.
    """
    parts = _parse()
    size = next(parts)
    while True:
        data = await reader.readexactly(size)
        try:
            size = parts.send(data)
        except StopIteration as done:
            return done.value


def _parse() -> Generator[int, bytes, Any]:
    """Yield how many bytes are wanted next, and return the body: how they come is the caller's."""
    size = int.from_bytes((yield LENGTH_BYTES), "big")
    if size > LONGEST_HEAD:
        raise ValueError(f"no message begins with a head of {size} bytes")
    head = json.loads((yield size))
    blobs = []
    for blob_size in head["sizes"]:
        blobs.append((yield blob_size))  # noqa: PERF401 (a comprehension cannot yield)
    return _with_bytes(head["body"], blobs)


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
        return {key: _without_bytes(part, blobs) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_bytes(part, blobs) for part in value]
    return value


def _with_bytes(value: Any, blobs: Sequence[bytes]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_BLOB}:
            return blobs[value[_BLOB]]
        return {key: _with_bytes(part, blobs) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_bytes(part, blobs) for part in value]
    return value
