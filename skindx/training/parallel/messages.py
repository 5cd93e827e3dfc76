"""What ranks tell each other beside tensors: JSON, and the bytes of arrays; nothing is unpickled.

A message is the length of its head (8 bytes), the head, and the bytes of its arrays one after the
other. In the head a list of a tag and more stands for what JSON has not: a tuple, a dict with keys
of any kind, an array. Whoever sends something else ends the training, and no more.
"""

import json
import math
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from skindx.core.errors import JobError

_LENGTH_BYTES = 8
_KINDS = "biuf"
"""Codes of NumPy's types for truth values and numbers."""
_TYPES = {
    str(kind).removeprefix("torch."): kind
    for kind in (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    )
}
_LIST, _TUPLE, _DICT, _BYTES, _ARRAY, _TENSOR = "list", "tuple", "dict", "bytes", "array", "tensor"


def packed(value: Any) -> bytes:
    """Return a message of plain values, bytes, arrays and tensors, in lists, tuples and dicts."""
    blobs: list[bytes] = []

    def walk(one: Any) -> Any:
        one = one.item() if isinstance(one, np.generic) else one
        if one is None or isinstance(one, bool | int | float | str):
            return one
        if isinstance(one, list | tuple):
            return [_LIST if isinstance(one, list) else _TUPLE, *map(walk, one)]
        if isinstance(one, dict):
            return [_DICT, *([walk(key), walk(item)] for key, item in one.items())]
        tag, data = _blob(one)
        blobs.append(data)
        return tag

    head = json.dumps(walk(value)).encode()
    return b"".join((len(head).to_bytes(_LENGTH_BYTES, "little"), head, *blobs))


def _blob(one: Any) -> tuple[list[Any], bytes]:
    if isinstance(one, bytes):
        return [_BYTES, len(one)], one
    if isinstance(one, np.ndarray) and one.dtype.kind in _KINDS:
        return [_ARRAY, one.dtype.str, list(one.shape)], one.tobytes()
    name = str(one.dtype).removeprefix("torch.") if isinstance(one, Tensor) else ""
    if name not in _TYPES:
        raise TypeError(f"ranks can send only plain values and arrays, not {type(one).__name__}")
    flat = one.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return [_TENSOR, name, list(one.shape)], flat.numpy().tobytes()


def unpacked(message: bytes) -> Any:
    """Return the value of a message. Raises JobError for what `packed` does not make."""
    try:
        return _Reader(message).value()
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise JobError(
            f"a rank received data that skindx did not send ({type(error).__name__}); check that "
            "all ranks have the same version of skindx, and that no other program connects to "
            "the address of the ranks (SECURITY.md)"
        ) from None


class _Reader:
    """Reads one message."""

    def __init__(self, message: bytes) -> None:
        self._at = _LENGTH_BYTES + int.from_bytes(message[:_LENGTH_BYTES], "little")
        self._message = memoryview(message)

    def value(self) -> Any:
        """Return what it holds."""
        head = bytes(self._message[_LENGTH_BYTES : self._at])
        value = self._of(json.loads(head))
        if self._at != len(self._message):
            raise ValueError("more bytes than its arrays have")
        return value

    def _of(self, raw: Any) -> Any:
        if not isinstance(raw, list):
            return raw
        tag, *rest = raw
        if tag == _LIST:
            return [self._of(one) for one in rest]
        if tag == _TUPLE:
            return tuple(self._of(one) for one in rest)
        if tag == _DICT:
            return {self._of(key): self._of(one) for key, one in rest}
        return self._blob(tag, *rest)

    def _blob(self, tag: str, name: Any, shape: Any = ()) -> Any:
        if tag == _BYTES:
            return bytes(self._take(name))
        if not all(isinstance(side, int) and side >= 0 for side in shape):
            raise ValueError("a shape of other than sizes")
        if tag == _ARRAY:
            kind = np.dtype(name)
            if kind.kind not in _KINDS:
                raise TypeError("an array of other than numbers")
            data = self._take(math.prod(shape) * kind.itemsize)
            return np.frombuffer(data, kind).reshape(shape).copy()
        if tag != _TENSOR:
            raise ValueError("an unknown tag")
        data = self._take(math.prod(shape) * _TYPES[name].itemsize)
        raw_bytes = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
        return raw_bytes.view(_TYPES[name]).view(shape)

    def _take(self, size: int) -> memoryview:
        data = self._message[self._at : self._at + size]
        if not 0 <= size == len(data):
            raise ValueError("fewer bytes than its arrays have")
        self._at += size
        return data


# Messages of all ranks, sent in pieces that gloo copies without OpenMP.
#
# gloo copies what arrives on threads of its own, and torch copies many numbers with OpenMP, which
# keeps a team of threads for each of gloo's from then on. Once there are more of them than
# processors, OpenMP puts threads to sleep between parallel loops: on two cores, a step of a small
# network takes twice as long.

PIECE = 2**14
"""Numbers in one piece: half of the number from which torch copies with OpenMP."""

# P = ranks, N = numbers


def gather_objects(value: Any, ranks: int, device: torch.device) -> list[Any]:
    """Return the value of each of all ranks, in their order; every rank calls this."""
    if ranks == 1:
        return [value]
    message = packed(value)
    sizes_P = gathered(torch.tensor([len(message)], device=device), ranks)[:, 0].tolist()
    words_N = _words(message, max(sizes_P)).to(device)
    whole_PN = torch.cat([gathered(piece_N, ranks) for piece_N in _pieces(words_N)], dim=1).cpu()
    rows = zip(whole_PN, sizes_P, strict=True)
    return [unpacked(row_N.numpy().tobytes()[:size]) for row_N, size in rows]


def broadcast_object(value: Any, source: int, device: torch.device) -> Any:
    """Return on every rank the value that the rank `source` brings; every rank calls this."""
    message = packed(value) if dist.get_rank() == source else b""
    size = torch.tensor([len(message)], device=device)
    dist.broadcast(size, source)
    words_N = _words(message, int(size)).to(device)
    for piece_N in _pieces(words_N):
        dist.broadcast(piece_N, source)
    return unpacked(words_N.cpu().numpy().tobytes()[: int(size)])


def gathered(local_N: Tensor, ranks: int) -> Tensor:
    """Return all ranks' numbers, in rank order; every rank calls this."""
    if ranks == 1:
        return local_N[None]
    all_PN = local_N.new_empty(ranks, len(local_N))
    dist.all_gather(list(all_PN.unbind()), local_N)
    return all_PN


def _words(message: bytes, size: int) -> Tensor:
    """Return a message of at most `size` bytes as words of eight, for there are fewer of them."""
    padded = message.ljust(-(-size // 8) * 8, b"\0")
    return torch.from_numpy(np.frombuffer(padded, np.int64).copy())


def _pieces(words_N: Tensor) -> tuple[Tensor, ...]:
    return torch.split(words_N, PIECE if words_N.device.type == "cpu" else len(words_N))
