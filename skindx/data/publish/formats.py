"""How published images lie on the disk; each format is a function that writes and one that reads.

Both stream: no format holds more than one row group or one image in memory. `write` takes rows
in shard order with their bytes and returns the rows with `path` set; `read` gives every image
back as (SHA-256 of the original, bytes), in the same order.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from skindx.data.publish import imagefolder, parquet_shards, webdataset
from skindx.data.publish.row import Row

Format = Literal["hub", "imagefolder", "webdataset"]

Items = Iterable[tuple[Row, bytes]]


@dataclass(frozen=True, slots=True)
class PublishFormat:
    """One way to lay out images; see the module."""

    write: Callable[[Path, Items, Sequence[str], int], list[Row]]
    """Folder, images, class keys in order, shard size in bytes -> rows with their paths."""
    read: Callable[[Path, Sequence[Row]], Iterator[tuple[str, bytes]]]


FORMATS: dict[Format, PublishFormat] = {
    "hub": PublishFormat(parquet_shards.write, parquet_shards.read),
    "imagefolder": PublishFormat(imagefolder.write, imagefolder.read),
    "webdataset": PublishFormat(webdataset.write, webdataset.read),
}
