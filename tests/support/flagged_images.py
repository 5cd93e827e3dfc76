"""A dataset of images some of which are flagged as no skin, or were taken out as such."""

from pathlib import Path

from paint_images import encode, paint

from skindx.data.decisions import Flag, write_flags
from skindx.data.layout import store_bytes
from skindx.data.manifest import Issue, Record, write_issues, write_manifest

DETAIL = "hardly any colour of skin"


def flagged_images(folder: Path) -> list[str]:
    """Write the dataset; return the SHA-256 of two flagged images and of one taken out."""
    shas, records = [], []
    for number, label in enumerate(("acne", "<b>wart", "wart", "acne")):
        sha256, path = store_bytes(folder, encode(paint(number)), ".jpg")
        shas.append(sha256)
        if number < 3:
            records.append(Record(path, sha256, "0" * 16, 120, 96, label, sha256, "train"))
    write_manifest(folder, records)
    write_issues(folder, [Issue("u", shas[3], "acne", "not-skin", "flat colours")])
    flags = [
        Flag(shas[0], "not-skin", 0.9, DETAIL),
        Flag(shas[1], "off-topic", 0.6, "unusual: 7.5 by a net"),
        Flag(shas[2], "face", 0.9),
    ]
    write_flags(folder, flags, ["not-skin", "off-topic", "face"])
    return [shas[1], shas[0], shas[3]]
