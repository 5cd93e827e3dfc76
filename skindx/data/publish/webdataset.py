"""WebDataset: tar shards in which {sha256}.jpg, .json and .cls are one sample."""

import dataclasses
import io
import json
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from skindx.data.publish.columns import SHARD_NAMES
from skindx.data.publish.row import Row
from skindx.data.publish.shard_names import DATA, cut, name_shards, shards, temporary_name


def write(
    folder: Path, items: Iterable[tuple[Row, bytes]], classes: Sequence[str], shard_bytes: int
) -> list[Row]:
    """Write data/{split}-00000-of-0000N.tar; `.cls` holds the class's number in taxonomy.yaml."""
    number_of = {key: position for position, key in enumerate(classes)}
    (folder / DATA).mkdir()
    done: list[Row] = []
    for split, number, members in cut(items, shard_bytes):
        path = temporary_name(split, number, ".tar")
        with tarfile.open(folder / path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for row, data in members:
                plain = dataclasses.asdict(row)
                about = {name: plain[name] for name in SHARD_NAMES if name != "image"}
                _add(tar, row.file_name, data)
                text = json.dumps(about, ensure_ascii=False)
                _add(tar, f"{row.sha256}.json", text.encode("utf-8", "replace"))
                _add(tar, f"{row.sha256}.cls", str(number_of[row.label]).encode())
                done.append(dataclasses.replace(row, path=path))
    return name_shards(folder, done, ".tar")


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add a member whose header says nothing of this machine, its users or its clock."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    member.mode = 0o644
    tar.addfile(member, io.BytesIO(data))


def read(folder: Path, rows: Sequence[Row]) -> Iterator[tuple[str, bytes]]:
    """Give each image back as (SHA-256 of the original, bytes), in shard order."""
    for path in shards(rows):
        with tarfile.open(folder / path) as tar:
            for member in tar:
                sha256, _, suffix = member.name.partition(".")
                file = tar.extractfile(member)
                if suffix not in ("json", "cls") and file:
                    yield sha256, file.read()
