"""A CIFAR-sized dataset of painted skin: small square images, ten classes."""

from pathlib import Path

import cv2

from skindx.data.layout import store_bytes
from skindx.data.manifest import Record, write_manifest
from skindx.data.synthetic.painter import CLASSES, paint
from skindx.taxonomy import SkinClass, Taxonomy


def write_painted(folder: Path, images: int, side: int) -> None:
    """Paint `images` images of `side` pixels, as many of each class; the same at every call."""
    records = []
    for number in range(images):
        label = CLASSES[number % len(CLASSES)]
        pixels = paint(label, number // len(CLASSES)).pixels
        edge = min(pixels.shape[:2])
        top, left = (pixels.shape[0] - edge) // 2, (pixels.shape[1] - edge) // 2
        square = pixels[top : top + edge, left : left + edge]
        small = cv2.resize(square, (side, side), interpolation=cv2.INTER_AREA)
        coded = cv2.imencode(".png", small[..., ::-1])[1].tobytes()
        sha256, path = store_bytes(folder, coded, ".png")
        records.append(Record(path, sha256, "0" * 16, side, side, label, sha256, "train"))
    classes = tuple(SkinClass(key=key, name=key) for key in CLASSES)
    Taxonomy(name="painted", title="Painted", classes=classes).save(folder / "taxonomy.yaml")
    write_manifest(folder, records)
