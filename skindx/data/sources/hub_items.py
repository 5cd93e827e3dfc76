"""The images of a hub dataset one by one: from Parquet shards, or files that a table names."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from skindx.core.errors import UserError
from skindx.data.sources.columns import ONE_ROW, UNREADABLE, Columns, cell, read_table


class HuggingFaceColumns(Columns):
    """Columns of a Parquet shard's images; a metadata table names files in `file_name`."""

    image: str = Field("image", min_length=1)


@dataclass(frozen=True, slots=True)
class Item:
    """One image of a dataset; `problem` says why its bytes could not be had."""

    url: str
    label: str
    data: bytes
    line: dict[str, Any]
    problem: str = ""


def from_shard(shard: Path, shown: str, columns: HuggingFaceColumns) -> Iterator[Item]:
    """Yield the images of a Parquet file, one at a time; class numbers become their names."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(shard) as file:
            columns.check(shard, file.schema_arrow.names)
            names = _class_names(file.schema_arrow.metadata or {}, columns.label)
            number = 0
            for batch in file.iter_batches(batch_size=ONE_ROW, columns=list(columns.wanted)):
                for line in batch.to_pylist():
                    image = line.pop(columns.image)
                    data, name = _bytes_of(image)
                    yield Item(
                        f"{shown}/{number}/{name}".rstrip("/"),
                        _class_name(line[columns.label], names),
                        data or b"",
                        line,
                        "" if data else "the shard holds no bytes for it",
                    )
                    number += 1
    except UserError:
        raise
    except (*UNREADABLE, pa.ArrowException) as error:
        detail = " ".join(str(error).split())
        raise UserError(f"{shard} cannot be read as Parquet ({detail}); get it again.") from None


def labels_of_shard(shard: Path, columns: HuggingFaceColumns) -> Iterator[str]:
    """Yield the labels of a Parquet file without reading its images; of a broken file none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(shard) as file:
            names = _class_names(file.schema_arrow.metadata or {}, columns.label)
            for batch in file.iter_batches(columns=[columns.label]):
                yield from (_class_name(line[columns.label], names) for line in batch.to_pylist())
    except (*UNREADABLE, pa.ArrowException, KeyError):
        return  # what reads its images says what is wrong with it


def _bytes_of(image: object) -> tuple[bytes | None, str]:
    """Return bytes and file name of a cell: the hub's {bytes, path}, or bytes alone."""
    if isinstance(image, dict):
        data, path = image.get("bytes"), image.get("path")
        name = path.replace("\\", "/").rpartition("/")[2] if isinstance(path, str) else ""
        return (data if isinstance(data, bytes) else None), name
    return (image if isinstance(image, bytes) else None), ""


def _class_names(metadata: dict[bytes, bytes], column: str) -> list[str]:
    """Return the names of a ClassLabel column as `datasets` writes them into a file's schema."""
    try:
        found = json.loads(metadata[b"huggingface"])["info"]["features"][column]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return []
    return [str(name) for name in found] if isinstance(found, list) else []


def _class_name(value: object, names: list[str]) -> str:
    if names and isinstance(value, int):
        return names[value] if 0 <= value < len(names) else ""
    return cell(value)


def from_table(
    table: Path, root: Path, fence: Path, columns: HuggingFaceColumns, max_bytes: int
) -> Iterator[Item]:
    """Yield the files that a metadata table names, relative to itself.

    Of a file no more is read than shows that it is longer than `max_bytes`.
    """
    named = columns.model_copy(update={"image": "file_name"})
    for number, line in enumerate(read_table(table, named), 1):
        name = cell(line.get("file_name"))
        path = table.parent / name
        problem, data = "", b""
        if not name or not _is_inside(path, fence):
            problem = "file_name leads out of the dataset" if name else "file_name is empty"
        else:
            try:
                if path.is_file():
                    with path.open("rb") as file:
                        data = file.read(max_bytes + 1)
                else:
                    problem = "there is no such file"
            except OSError as error:
                problem = f"the file cannot be read ({error.strerror})"
        # Of an absolute path nothing is left but the path itself.
        shown = (table.parent.relative_to(root) / (name or f"row-{number}")).as_posix()
        yield Item(shown, cell(line.get(columns.label)), data, line, problem)


def _is_inside(path: Path, fence: Path) -> bool:
    """Tell whether neither `..` nor a link leads out of the dataset."""
    try:
        return path.resolve().is_relative_to(fence)
    except (OSError, ValueError, RuntimeError):  # a name too long, a NUL, links in a circle
        return False
