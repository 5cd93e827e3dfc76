"""Images, a dataset of them, and a bundle with both exports, for tests of exports."""

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from skindx.data.layout import store_bytes
from skindx.data.manifest import Record, write_manifest


def export_image(seed: int) -> NDArray[np.uint8]:
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return cv2.resize(coarse, (90, 72), interpolation=cv2.INTER_CUBIC)


def export_dataset(
    folder: Path, splits: tuple[str, ...] = ("train", "val"), label: str = "nv"
) -> Path:
    records = []
    for n in range(24):
        data = cv2.imencode(".png", export_image(n))[1].tobytes()
        sha256, path = store_bytes(folder, data, ".png")
        split = splits[n % len(splits)]
        records.append(Record(path, sha256, "0" * 16, 90, 72, label, f"g{n}", split))
    write_manifest(folder, records)
    return folder
