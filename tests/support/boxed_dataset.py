"""A small dataset folder whose images lie in a store, with or without boxes."""

from pathlib import Path

from paint_images import encode, paint

from skindx.data.box import Box
from skindx.data.layout import store_bytes
from skindx.data.manifest import SPLITS, Record, write_manifest


def boxed_dataset(folder: Path, boxes: dict[int, tuple[Box, ...]], count: int = 8) -> list[Record]:
    """Write `count` images of 120 x 96 named n.jpg; return their records, in order."""
    records = []
    for n in range(count):
        sha256, path = store_bytes(folder, encode(paint(n)), ".jpg")
        records.append(
            Record(
                path,
                sha256,
                "0" * 16,
                120,
                96,
                "Nevus",
                f"group{n // 2}",
                SPLITS[n % 2],
                boxes=boxes.get(n),
                source_url=f"folder/{n}.jpg",
            )
        )
    write_manifest(folder, records)
    return records
