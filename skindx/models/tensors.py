"""Safetensors files: written, and read only after their header is within limits."""

import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from skindx.core.errors import UserError
from skindx.core.untrusted import MEGABYTE, open_plain

_LONGEST_HEADER = 32 * MEGABYTE
MOST_BYTES = 2**36
"""Of one file of weights: more than any network that this package serves."""


@dataclass(frozen=True)
class Declared:
    """A file's header entry of one tensor."""

    shape: tuple[int, ...]
    dtype: str
    """As safetensors writes it, such as F32."""


def declared(path: Path) -> dict[str, Declared]:
    """Return shapes and types by name, from the header alone.

    Raises UserError for what is no plain file or no whole safetensors file.
    """
    _check_length(path)
    try:
        with safe_open(path, framework="pt") as file:
            found = {}
            for name in file.keys():  # noqa: SIM118 (no mapping)
                part = file.get_slice(name)
                found[name] = Declared(tuple(part.get_shape()), part.get_dtype())
            return found
    except (SafetensorError, OSError, ValueError, RuntimeError, TypeError) as error:
        raise _damaged(path, error) from None


def save_tensors(
    tensors: dict[str, Tensor], file: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write a safetensors file. Raises OSError, also where safetensors wraps it."""
    try:
        save_file(tensors, file, metadata)
    except SafetensorError as error:
        if found := re.search(r"\(os error (\d+)\)", str(error)):
            number = int(found[1])
            raise OSError(number, os.strerror(number), str(file)) from None
        raise


def load_tensors(
    path: Path, wanted: Mapping[str, tuple[str, int]] | None = None
) -> dict[str, Tensor]:
    """Return the tensors of a file, their memory mapped.

    `wanted`: exactly these names, each with its type and number of dimensions. Raises UserError
    for any other file.
    """
    found = declared(path)
    if wanted is not None:
        kinds = {name: (tensor.dtype, len(tensor.shape)) for name, tensor in found.items()}
        if kinds != wanted:
            raise UserError(
                f"{path} must hold {', '.join(sorted(wanted))}, each of its type and dimensions; "
                "copy or pack the bundle again."
            )
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError, RuntimeError, TypeError, KeyError) as error:
        raise _damaged(path, error) from None


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the tensors of a file as arrays. Raises UserError, also for types NumPy lacks."""
    tensors = load_tensors(path)
    try:
        return {name: tensor.numpy() for name, tensor in tensors.items()}
    except (RuntimeError, TypeError) as error:
        raise _damaged(path, error) from None


def _check_length(path: Path) -> None:
    descriptor = open_plain(path, MOST_BYTES)
    try:
        start, size = os.read(descriptor, 8), os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
    if length > min(size - 8, _LONGEST_HEADER):
        raise _damaged(path, "its header is longer than the file or than any header may be")


def _damaged(path: Path, reason: object) -> UserError:
    detail = " ".join(str(reason).split())[:120]
    return UserError(f"{path} is no whole safetensors file ({detail}); copy or pack it again.")
