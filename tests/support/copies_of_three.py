"""A dataset of three images with an uncertain pair and a verified one."""

from pathlib import Path

from copy_pairs import pair_of
from paint_images import encode, paint

from skindx.data.copies.verified import CopyRecord, Pair, write_copies
from skindx.data.layout import COPIES, store_bytes
from skindx.data.manifest import Record, write_manifest

_EVEN = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)


def three_images(folder: Path) -> list[Pair]:
    """Write the dataset; return the uncertain pair and the verified one."""
    records = []
    for number, label in enumerate(("acne", "wart", "<b>wart")):
        sha256, path = store_bytes(folder, encode(paint(number)), ".jpg")
        records.append(Record(path, sha256, "0" * 16, 120, 96, label, sha256, "train"))
    write_manifest(folder, records)
    shas = [record.sha256 for record in records]
    found = [pair_of(shas[0], shas[1]), pair_of(shas[1], shas[2])]
    rows = [
        CopyRecord(*pair, probability, 12, 0.8, 1.0, False, _EVEN)
        for pair, probability in zip(found, (0.7, 0.95), strict=True)
    ]
    write_copies(folder / COPIES, rows)
    return found
