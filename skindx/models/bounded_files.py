"""Weights and tables from files within limits: safetensors, checkpoints without pickle, Parquet."""

import argparse
import os
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from skindx.core.errors import UserError
from skindx.core.untrusted import MEGABYTE, open_plain

_LONGEST_HEADER = 32 * MEGABYTE
MOST_BYTES = 2**36
"""Most bytes of one weight file: more than any network that this package serves."""
AGAIN = (
    "copy the whole bundle again from its source, or repeat the `skindx train` command that made "
    "it, which packs it again"
)


@dataclass(frozen=True)
class Declared:
    """A file's header entry of one tensor."""

    shape: tuple[int, ...]
    dtype: str
    """The type in safetensors' notation, such as F32."""


def declared(path: Path) -> dict[str, Declared]:
    """Return shapes and types by name, from the header alone.

    Raises UserError for what is no plain file or no whole safetensors file.
    """
    _check_length(path)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {}
            for name in file.keys():  # noqa: SIM118 (no mapping)
                part = file.get_slice(name)
                tensors[name] = Declared(tuple(part.get_shape()), part.get_dtype())
            return tensors
    except (SafetensorError, OSError, ValueError, RuntimeError, TypeError) as error:
        raise _damaged(path, error) from None


def save_tensors(tensors: dict[str, Tensor], file: Path) -> None:
    """Write a safetensors file. Raises OSError, also where safetensors wraps it.

    It may be read by whom the user's umask allows: safetensors leaves it to its owner alone, and a
    bundle is mounted into containers with a user of their own.
    """
    file.touch()
    mode = file.stat().st_mode & 0o777
    try:
        save_file(tensors, file)
        file.chmod(mode)
    except SafetensorError as error:
        if code := re.search(r"\(os error (\d+)\)", str(error)):
            number = int(code[1])
            raise OSError(number, os.strerror(number), str(file)) from None
        raise


def load_tensors(
    path: Path, wanted: Mapping[str, tuple[str, int]] | None = None
) -> dict[str, Tensor]:
    """Return the tensors of a file, their memory mapped.

    `wanted`: exactly these names, each with its type and number of dimensions. Raises UserError
    for any other file.
    """
    header = declared(path)
    if wanted is not None:
        kinds = {name: (tensor.dtype, len(tensor.shape)) for name, tensor in header.items()}
        if kinds != wanted:
            raise UserError(
                f"{path} must have the tensors {', '.join(sorted(wanted))}, each with its own "
                f"type and dimensions; {AGAIN}."
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
        raise UserError(
            f"{path} has numbers of a type that is not read here ({error}); copy it again "
            "from its source, or save them as float32."
        ) from None


def _check_length(path: Path) -> None:
    descriptor = open_plain(path, MOST_BYTES)
    try:
        start, size = os.read(descriptor, 8), os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
    if length > min(size - 8, _LONGEST_HEADER):
        raise _damaged(path, "the header of the file is longer than allowed or than the file")


def _damaged(path: Path, reason: object) -> UserError:
    detail = " ".join(str(reason).split())[:120]
    return UserError(
        f"{path} is not a complete safetensors file ({detail}); copy it again from its source."
    )


_MOST_BYTES, _MOST_ROWS, _LONGEST_TEXT = 256 * MEGABYTE, 10_000_000, 8_192
_PACKINGS = {"UNCOMPRESSED", "SNAPPY"}
"""Snappy shrinks by a factor of 21 at most; others by any."""


def read_rows(path: Path, schema: Any, optional: Sequence[str] = ()) -> Any:
    """Return the Arrow table of a Parquet file with exactly the columns of `schema`.

    Columns of `optional` may be missing together, as in bundles of older versions.

    Text columns come as dictionaries, so that a value which stands in each row is held once.
    Raises UserError for any other file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if optional and not set(optional) & _names(path):
            schema = pa.schema([field for field in schema if field.name not in optional])
        text = [field.name for field in schema if pa.types.is_string(field.type)]
        with (
            open(open_plain(path, _MOST_BYTES), "rb") as opened,  # noqa: PTH123 (a descriptor)
            pq.ParquetFile(opened, read_dictionary=text) as file,
        ):
            if problem := _problem(file, schema):
                raise UserError(f"{path} {problem}; {AGAIN}.")
            table = file.read(use_threads=False)
            longest = max((_longest(table[name]) for name in text), default=0)
            table.validate(full=True)
    except UserError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, MemoryError) as error:
        detail = " ".join(str(error).split())[:120]
        raise UserError(f"{path} is not a complete table ({detail}); {AGAIN}.") from None
    if longest > _LONGEST_TEXT:
        raise UserError(f"{path} has a text of {longest} bytes, which is too long; {AGAIN}.")
    return table


def _names(path: Path) -> set[str]:
    """Return the columns that a file declares."""
    import pyarrow.parquet as pq

    with open(open_plain(path, _MOST_BYTES), "rb") as opened:  # noqa: PTH123 (a descriptor)
        return set(pq.read_schema(opened).names)


def _problem(file: Any, schema: Any) -> str:
    """Say what is wrong with what a file declares; empty when nothing is."""
    facts = file.metadata
    if facts.num_rows > _MOST_ROWS:
        return f"declares {facts.num_rows} rows, at most {_MOST_ROWS} are read"
    parts = [facts.row_group(number) for number in range(facts.num_row_groups)]
    columns = [part.column(place) for part in parts for place in range(part.num_columns)]
    if any(column.compression not in _PACKINGS for column in columns):
        return f"is packed by another method than {' or '.join(sorted(_PACKINGS))}"
    if sum(column.total_uncompressed_size for column in columns) > _MOST_BYTES:
        return f"unpacks to more than {_MOST_BYTES} bytes"
    existing = {field.name: str(_plain(field.type)) for field in file.schema_arrow}
    wanted = {field.name: str(field.type) for field in schema}
    if existing != wanted or len(file.schema_arrow) != len(schema):
        return f"must have the columns {', '.join(wanted)}"
    return ""


def _plain(kind: Any) -> Any:
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _longest(column: Any) -> int:
    import pyarrow.compute as pc

    lengths = [pc.binary_length(chunk.dictionary) for chunk in column.chunks]
    return max((pc.max(part).as_py() or 0 for part in lengths), default=0)


_WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model")
"""Where timm's and torchvision's checkpoints keep the weights; averaged ones first."""

_PREFIXES = ("module.", "_orig_mod.", "model.")
"""What data-parallel wrappers, torch.compile and Lightning put before every name."""


def read_state(path: Path) -> dict[str, Tensor]:
    """Return the named tensors of a safetensors file, a state dict or a training checkpoint.

    A pickle is read for its tensors and plain values alone. Raises UserError for what is no such
    file.
    """
    if not path.is_file():
        raise UserError(f"the weights file {path} does not exist; correct the path.")
    try:
        read = _read(path)
    except Exception as error:
        raise UserError(
            f"the weights {path} are neither safetensors nor a plain state dict "
            f"({type(error).__name__}); give a file that has only named tensors."
        ) from None
    if not isinstance(read, dict):
        raise UserError(
            f"{path} has no named tensors, so it is not a weights file; give another file."
        )
    return _bare({str(name): tensor for name, tensor in _unwrap(read).items()})


def _read(path: Path) -> Any:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    # timm's checkpoints hold the command line beside the weights: a namespace of plain values.
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(path, map_location="cpu", weights_only=True)


def _unwrap(read: dict[Any, Any]) -> Mapping[Any, Any]:
    for wrapper in _WRAPPERS:
        inner = read.get(wrapper)
        if isinstance(inner, Mapping):
            return inner
    return read


def _bare(read: dict[str, Any]) -> dict[str, Tensor]:
    """Keep the tensors, under names without the prefixes that all of them share."""
    state = {name: value for name, value in read.items() if isinstance(value, Tensor)}
    while prefix := next((p for p in _PREFIXES if _all_start(state, p)), None):
        state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def _all_start(state: dict[str, Tensor], prefix: str) -> bool:
    return bool(state) and all(name.startswith(prefix) for name in state)
