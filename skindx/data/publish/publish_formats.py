"""How published images lie on the disk: Parquet shards or plain files.

Each format is a function that writes and one that reads. Both stream: no format holds more than
one row group or one image in memory. `write` takes rows in shard order with their bytes and returns
the rows with `path` set; `read` gives every image back as (SHA-256 of the original, bytes), in the
same order. Shards of one split are numbered while they are written, and named when their number is
known.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from skindx.core.atomic_files import write_csv
from skindx.data.box import BoxedImage
from skindx.data.boxes.fiftyone import LABELS, box_list, write_labels
from skindx.data.publish.published_rows import SHARD_NAMES, PublishedRow, shard_schema
from skindx.data.tables.cells import no_formula

DATA, DETECTIONS, _SUFFIX = "data", "detections.json", ".parquet"


def cut(
    items: Iterable[tuple[PublishedRow, bytes]], shard_bytes: int
) -> Iterator[tuple[str, int, Iterator[tuple[PublishedRow, bytes]]]]:
    """Cut images into shards: yield (split, shard's number in it, its images).

    A shard ends with the image that fills it, or with its split.
    """
    for (split, number), members in groupby(_numbered(items, shard_bytes), key=itemgetter(0)):
        yield split, number, (item for _, item in members)


def _numbered(
    items: "Items", shard_bytes: int
) -> Iterator[tuple[tuple[str, int], tuple[PublishedRow, bytes]]]:
    split, number, left = "", 0, 0
    for row, data in items:
        if row.split != split:
            split, number, left = row.split, 0, shard_bytes
        elif left <= 0:
            number, left = number + 1, shard_bytes
        left -= len(data)
        yield (split, number), (row, data)


def name_shards(folder: Path, rows: Iterable[PublishedRow]) -> list[PublishedRow]:
    """Rename shards to split-00000-of-0000N, and so the paths of their rows."""
    rows = list(rows)
    paths = sorted({row.path for row in rows})
    total = {split: len(list(same)) for split, same in groupby(paths, key=_split)}
    final = {
        path: f"{path.removesuffix(_SUFFIX)}-of-{total[_split(path)]:05d}{_SUFFIX}"
        for path in paths
    }
    for path, name in final.items():
        (folder / path).rename(folder / name)
    return [dataclasses.replace(row, path=final[row.path]) for row in rows]


def _split(path: str) -> str:
    return Path(path).name.partition("-")[0]


def shards(rows: Iterable[PublishedRow]) -> list[str]:
    return list(dict.fromkeys(row.path for row in rows if row.path))


ROW_GROUP_BYTES = 32_000_000
ROW_GROUP_ROWS = 500
"""The hub's viewer fetches whole row groups: small ones let it show a page at once."""
_FLAT = [name for name in SHARD_NAMES if name not in ("image", "boxes")]


def write_parquet(
    folder: Path,
    items: Iterable[tuple[PublishedRow, bytes]],
    classes: Sequence[str],
    shard_bytes: int,
) -> list[PublishedRow]:
    """Write data/{split}-00000-of-0000N.parquet; images are not compressed a second time."""
    import pyarrow.parquet as pq

    schema, number_of = shard_schema(classes), {key: i for i, key in enumerate(classes)}
    (folder / DATA).mkdir()
    done: list[PublishedRow] = []
    for split, number, members in cut(items, shard_bytes):
        path = f"{DATA}/{split}-{number:05d}{_SUFFIX}"  # while the number of shards is not known
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
    return name_shards(folder, done)


def read_parquet_images(folder: Path, rows: Sequence[PublishedRow]) -> Iterator[tuple[str, bytes]]:
    """Give each image back as (SHA-256 of the original, bytes), in shard order."""
    import pyarrow.parquet as pq

    for path in shards(rows):
        with pq.ParquetFile(folder / path) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, columns=["sha256", "image"])
                for row in table.to_pylist():
                    yield row["sha256"], row["image"]["bytes"]


def _plain(row: PublishedRow, data: bytes, number_of: dict[str, int]) -> dict[str, Any]:
    plain = dataclasses.asdict(row)
    plain["image"] = {"bytes": data, "path": row.file_name}
    plain["label"] = number_of[row.label]
    return {name: plain[name] for name in SHARD_NAMES}


def _flush(writer: Any, group: list[dict[str, Any]]) -> None:
    import pyarrow as pa

    if group:
        writer.write_table(pa.Table.from_pylist(group, schema=writer.schema))


FOR_PEOPLE = "metadata.csv"
FOR_DATASETS = "metadata.parquet"
"""Table in each split's folder for `datasets`, which guesses differing types from CSV."""

_COLUMNS = tuple(name for name in SHARD_NAMES if name != "image")
_CSV_COLUMNS = ("file_name", *(name for name in _COLUMNS if name not in ("file_name", "boxes")))


def write_image_folder(
    folder: Path,
    items: Iterable[tuple[PublishedRow, bytes]],
    classes: Sequence[str],
    shard_bytes: int,
) -> list[PublishedRow]:
    """Write the files; names are hashes and class keys alone, so none can lead elsewhere.

    There are no shards here, so `shard_bytes` says nothing.
    """
    done: list[PublishedRow] = []
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


def _write_metadata(folder: Path, rows: Sequence[PublishedRow], classes: Sequence[str]) -> None:
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


def read_image_folder(folder: Path, rows: Sequence[PublishedRow]) -> Iterator[tuple[str, bytes]]:
    """Give each image back as (SHA-256 of the original, bytes), in shard order."""
    for row in rows:
        yield row.sha256, (folder / row.path).read_bytes()


def write_fiftyone_folders(
    folder: Path,
    items: Iterable[tuple[PublishedRow, bytes]],
    classes: Sequence[str],
    shard_bytes: int,
) -> list[PublishedRow]:
    """Write a FiftyOneImageClassificationDataset for each split, with detections.json beside it.

    There are no shards here, so `shard_bytes` says nothing.
    """
    done: list[PublishedRow] = []
    for split, members in groupby(items, key=lambda item: item[0].split):
        (folder / split / DATA).mkdir(parents=True)
        targets: dict[str, object] = {}
        boxed: dict[str, BoxedImage] = {}
        for row, data in members:
            path = f"{split}/{DATA}/{row.file_name}"
            (folder / path).write_bytes(data)
            done.append(dataclasses.replace(row, path=path))
            targets[row.file_name] = classes.index(row.label)
            if row.boxes is not None:
                boxed[row.file_name] = BoxedImage(row.width, row.height, row.boxes)
        write_labels(folder / split / LABELS, classes, targets)
        labels = sorted({box.label for image in boxed.values() for box in image.boxes})
        boxes = {name: box_list(image, labels) for name, image in boxed.items()}
        if boxes:
            write_labels(folder / split / DETECTIONS, labels, boxes)
    return done


Format = Literal["hub", "imagefolder", "fiftyone"]

Items = Iterable[tuple[PublishedRow, bytes]]


@dataclass(frozen=True, slots=True)
class PublishFormat:
    """One way to lay out images; see the module."""

    write: Callable[[Path, Items, Sequence[str], int], list[PublishedRow]]
    """Folder, images, class keys in order, shard size in bytes -> rows with their paths."""
    read: Callable[[Path, Sequence[PublishedRow]], Iterator[tuple[str, bytes]]]
    split_paths: str
    """Pattern of the files of a {split}."""
    image_files: str
    """Pattern of all files that hold images."""
    encoding: str
    """MIME type of these files."""
    sharded: bool = True
    """Whether the files are tables with a row an image."""


FORMATS: dict[Format, PublishFormat] = {
    "hub": PublishFormat(
        *(write_parquet, read_parquet_images),
        *("data/{split}-*.parquet", "data/*.parquet", "application/x-parquet"),
    ),
    "imagefolder": PublishFormat(
        *(write_image_folder, read_image_folder),
        *("{split}/**", "*/*/*.*", "image/*"),
        sharded=False,
    ),
    "fiftyone": PublishFormat(
        *(write_fiftyone_folders, read_image_folder),
        *("{split}/data/**", "*/data/*", "image/*"),
        sharded=False,
    ),
}
