"""A dataset folder of 3 classes x 30 images with boxes, in four splits."""

from pathlib import Path

import numpy as np

from skindx.data.box import Box
from skindx.data.layout import store_bytes
from skindx.data.manifest import SPLITS, Record, write_manifest
from skindx.taxonomy import SkinClass, Taxonomy

CLASSES = ("Disc", "Stripes", "Plain")


def _paint(label: str, seed: int) -> tuple[np.ndarray, tuple[Box, ...]]:
    import cv2

    rng = np.random.default_rng(seed)
    image = np.clip(rng.normal((190, 150, 130), 12, (72, 96, 3)), 0, 255).astype(np.uint8)
    if label == "Plain":
        return image, ()
    x, y = (int(v) for v in rng.integers(20, 52, 2))
    if label == "Disc":
        cv2.circle(image, (x, y), 14, (90, 50, 40), -1)
    else:
        for offset in range(-12, 13, 6):
            cv2.line(image, (x - 14, y + offset), (x + 14, y + offset), (90, 50, 40), 2)
    return image, (Box(x - 15, y - 15, x + 15, y + 15, "lesion", "painter"),)


def write_shapes(folder: Path) -> Path:
    """Write the dataset and return its folder."""
    import cv2

    records = []
    for number, label in enumerate(CLASSES):
        for index in range(30):
            image, boxes = _paint(label, 100 * number + index)
            coded = cv2.imencode(".png", image[..., ::-1])[1].tobytes()
            sha256, path = store_bytes(folder, coded, ".png")
            split = SPLITS[0] if index < 18 else SPLITS[1 + index % 3]
            records.append(
                Record(path, sha256, "0" * 16, 96, 72, label, sha256, split, boxes=boxes)
            )
    taxonomy = Taxonomy(
        name="shapes",
        title="Shapes",
        classes=tuple(SkinClass(key=key, name=key) for key in CLASSES),
    )
    taxonomy.save(folder / "taxonomy.yaml")
    write_manifest(folder, records)
    return folder
