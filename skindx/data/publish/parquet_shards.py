"""Parquet shards with embedded images, as the Hugging Face hub shows and loads them."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from skindx.data.publish.columns import SHARD_NAMES, shard_schema
from skindx.data.publish.row import Row
from skindx.data.publish.shard_names import DATA, cut, name_shards, shards, temporary_name

ROW_GROUP_BYTES = 32_000_000
ROW_GROUP_ROWS = 500
"""The hub's viewer fetches whole row groups: small ones let it show a page at once."""
_FLAT = [name for name in SHARD_NAMES if name not in ("image", "boxes")]


def write(
    folder: Path, items: Iterable[tuple[Row, bytes]], classes: Sequence[str], shard_bytes: int
) -> list[Row]:
    """Write data/{split}-00000-of-0000N.parquet; images are not compressed a second time."""
    import pyarrow.parquet as pq

    schema, number_of = shard_schema(classes), {key: i for i, key in enumerate(classes)}
    (folder / DATA).mkdir()
    done: list[Row] = []
    for split, number, members in cut(items, shard_bytes):
        path = temporary_name(split, number, ".parquet")
        with pq.ParquetWriter(
            folder / path,
            schema,
            # Images are compressed already, and their bytes make no useful statistics.
            compression=dict.fromkeys(_FLAT, "zstd"),
            use_dictionary=["split", "label", "licence", "licence_url", "source", "creator"],
            write_statistics=_FLAT,
        ) as writer:
            group: list[dict[str, Any]] = []
            size = 0
            for row, data in members:
                done.append(dataclasses.replace(row, path=path))
                group.append(_plain(row, data, number_of))
                size += len(data)
                if size >= ROW_GROUP_BYTES or len(group) >= ROW_GROUP_ROWS:
                    _flush(writer, group)
                    group, size = [], 0
            _flush(writer, group)
    return name_shards(folder, done, ".parquet")


def read(folder: Path, rows: Sequence[Row]) -> Iterator[tuple[str, bytes]]:
    """Give each image back as (SHA-256 of the original, bytes), in shard order."""
    import pyarrow.parquet as pq

    for path in shards(rows):
        with pq.ParquetFile(folder / path) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, columns=["sha256", "image"])
                for row in table.to_pylist():
                    yield row["sha256"], row["image"]["bytes"]


def _plain(row: Row, data: bytes, number_of: dict[str, int]) -> dict[str, Any]:
    plain = dataclasses.asdict(row)
    plain["image"] = {"bytes": data, "path": row.file_name}
    plain["label"] = number_of[row.label]
    return {name: plain[name] for name in SHARD_NAMES}


def _flush(writer: Any, group: list[dict[str, Any]]) -> None:
    import pyarrow as pa

    if group:
        writer.write_table(pa.Table.from_pylist(group, schema=writer.schema))
