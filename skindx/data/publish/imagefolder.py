"""Plain files: {split}/{class}/{sha256}.jpg, with what is known of them beside."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import write_csv
from skindx.data.publish.columns import SHARD_NAMES, shard_schema
from skindx.data.publish.row import Row

FOR_PEOPLE = "metadata.csv"
FOR_DATASETS = "metadata.parquet"
"""In each split's folder, for `datasets`: from CSV it guesses types, differently in each split."""

_COLUMNS = tuple(name for name in SHARD_NAMES if name != "image")
_CSV_COLUMNS = ("file_name", *(name for name in _COLUMNS if name not in ("file_name", "boxes")))


def write(
    folder: Path, items: Iterable[tuple[Row, bytes]], classes: Sequence[str], shard_bytes: int
) -> list[Row]:
    """Write the files; names are hashes and class keys alone, so none can lead elsewhere.

    There are no shards here, so `shard_bytes` says nothing.
    """
    done: list[Row] = []
    for split, members in groupby(items, key=lambda item: item[0].split):
        for key in classes:  # also an empty one: torchvision numbers the folders
            (folder / split / key).mkdir(parents=True)
        for row, data in members:
            path = f"{split}/{row.label}/{row.file_name}"
            (folder / path).write_bytes(data)
            done.append(dataclasses.replace(row, path=path))
        _write_metadata(folder, [row for row in done if row.split == split], classes)
    named = (dataclasses.replace(row, file_name=row.path) for row in done)
    lines = ([no_formula(getattr(row, name)) for name in _CSV_COLUMNS] for row in named)
    write_csv(folder / FOR_PEOPLE, _CSV_COLUMNS, lines)
    return done


def no_formula(value: object) -> object:
    """Keep a spreadsheet from computing untrusted text; metadata.parquet has it as it is."""
    if isinstance(value, str) and value.lstrip().startswith(("=", "+", "-", "@")):
        return f"'{value}"
    return value


def _write_metadata(folder: Path, rows: Sequence[Row], classes: Sequence[str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number_of = {key: position for position, key in enumerate(classes)}
    plain: list[dict[str, Any]] = [
        {
            **dataclasses.asdict(row),
            "label": number_of[row.label],
            "file_name": f"{row.label}/{row.file_name}",
        }
        for row in rows
    ]
    table = pa.Table.from_pylist(plain, schema=shard_schema(classes, _COLUMNS))
    pq.write_table(table, folder / rows[0].split / FOR_DATASETS)


def read(folder: Path, rows: Sequence[Row]) -> Iterator[tuple[str, bytes]]:
    """Give each image back as (SHA-256 of the original, bytes), in shard order."""
    for row in rows:
        yield row.sha256, (folder / row.path).read_bytes()
