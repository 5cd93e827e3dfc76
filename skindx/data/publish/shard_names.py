"""Shards of one split: numbered while they are written, named when their number is known."""

import dataclasses
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from skindx.data.publish.row import Row

DATA = "data"


def cut(
    items: Iterable[tuple[Row, bytes]], shard_bytes: int
) -> Iterator[tuple[str, int, Iterator[tuple[Row, bytes]]]]:
    """Cut images into shards: yield (split, shard's number in it, its images).

    A shard ends with the image that fills it, or with its split.
    """
    for split, members in groupby(items, key=lambda item: item[0].split):
        stream = iter(members)
        number, pending = 0, next(stream, None)
        while pending is not None:
            shard = _Shard(stream, pending, shard_bytes)
            yield split, number, iter(shard)
            number, pending = number + 1, shard.next


class _Shard:
    """Some images from a stream; afterwards `next` is the first that did not fit."""

    def __init__(
        self, stream: Iterator[tuple[Row, bytes]], first: tuple[Row, bytes], most_bytes: int
    ) -> None:
        self.next: tuple[Row, bytes] | None = first
        self._stream = stream
        self._left = most_bytes

    def __iter__(self) -> Iterator[tuple[Row, bytes]]:
        while self.next is not None and self._left > 0:
            self._left -= len(self.next[1])
            yield self.next
            self.next = next(self._stream, None)


def temporary_name(split: str, number: int, suffix: str) -> str:
    """Return where a shard lies while the number of its siblings is not known."""
    return f"{DATA}/{split}-{number:05d}{suffix}"


def name_shards(folder: Path, rows: Iterable[Row], suffix: str) -> list[Row]:
    """Rename shards to split-00000-of-0000N, and so the paths of their rows."""
    rows = list(rows)
    paths = sorted({row.path for row in rows})
    total = {split: len(list(same)) for split, same in groupby(paths, key=_split)}
    final = {
        path: f"{path.removesuffix(suffix)}-of-{total[_split(path)]:05d}{suffix}" for path in paths
    }
    for path, name in final.items():
        (folder / path).rename(folder / name)
    return [dataclasses.replace(row, path=final[row.path]) for row in rows]


def _split(path: str) -> str:
    return Path(path).name.partition("-")[0]


def shards(rows: Iterable[Row]) -> list[str]:
    """Return the shards that the rows name, in shard order."""
    return list(dict.fromkeys(row.path for row in rows if row.path))
