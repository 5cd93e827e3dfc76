"""Plain files: {split}/{class}/{sha256}.jpg, and a metadata.csv in each split's folder."""

import csv
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from skindx.data.publish.columns import NAMES
from skindx.data.publish.row import Row

METADATA = "metadata.csv"
_LEFT_OUT = ("boxes", "path", "file_name", "split", "withheld", "withheld_detail")
_COLUMNS = ("file_name", *(name for name in NAMES if name not in _LEFT_OUT))


def write(
    folder: Path, items: Iterable[tuple[Row, bytes]], classes: Sequence[str], shard_bytes: int
) -> list[Row]:
    """Write the files; names are hashes and class keys alone, so none can lead elsewhere.

    There are no shards here, so `shard_bytes` says nothing; boxes stand in coco.json.
    """
    done: list[Row] = []
    for split, members in groupby(items, key=lambda item: item[0].split):
        for key in classes:  # also an empty one: a class's number is its folder's place
            (folder / split / key).mkdir(parents=True)
        with (folder / split / METADATA).open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, _COLUMNS, lineterminator="\n")
            table.writeheader()
            for row, data in members:
                inside = f"{row.label}/{row.file_name}"
                (folder / split / inside).write_bytes(data)
                plain = {name: getattr(row, name) for name in _COLUMNS}
                table.writerow({**plain, "file_name": inside})
                done.append(dataclasses.replace(row, path=f"{split}/{inside}"))
    return done


def read(folder: Path, rows: Sequence[Row]) -> Iterator[tuple[str, bytes]]:
    """Give each picture back as (SHA-256 of the original, bytes), in shard order."""
    for row in rows:
        yield row.sha256, (folder / row.path).read_bytes()
