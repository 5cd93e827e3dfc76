"""Tables of a bundle (Parquet): what the file declares is bounded before it is unpacked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skindx.core.errors import UserError
from skindx.core.untrusted import MEGABYTE, open_plain

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
                raise UserError(f"{path} {problem}; copy or pack the bundle again.")
            table = file.read(use_threads=False)
            longest = max((_longest(table[name]) for name in text), default=0)
            table.validate(full=True)
    except UserError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, MemoryError) as error:
        detail = " ".join(str(error).split())[:120]
        raise UserError(f"{path} is no whole table ({detail}); copy or pack it again.") from None
    if longest > _LONGEST_TEXT:
        raise UserError(f"{path} has a text of {longest} bytes; copy or pack the bundle again.")
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
    found = {field.name: str(_plain(field.type)) for field in file.schema_arrow}
    wanted = {field.name: str(field.type) for field in schema}
    if found != wanted or len(file.schema_arrow) != len(schema):
        return f"must have the columns {', '.join(wanted)}"
    return ""


def _plain(kind: Any) -> Any:
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _longest(column: Any) -> int:
    import pyarrow.compute as pc

    lengths = [pc.binary_length(chunk.dictionary) for chunk in column.chunks]
    return max((pc.max(part).as_py() or 0 for part in lengths), default=0)
