"""Smooth images that survive JPEG, for the loader's tests."""

from pathlib import Path

import numpy as np

from skindx.data.layout import store_bytes
from skindx.data.loader.source import Files
from skindx.data.manifest import Record


def photo(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Paint something smooth with edges and a little noise, as photos have."""
    import cv2

    rng = np.random.default_rng(seed)
    coarse = rng.integers(40, 220, (6, 8, 3), dtype=np.uint8)
    image = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    cv2.circle(image, (width // 3, height // 2), min(height, width) // 5, (80, 40, 30), -1)
    noisy = image + rng.normal(0, 3, image.shape)
    return np.clip(noisy, 0, 255).astype(np.uint8)


def jpeg(image: np.ndarray, quality: int = 92) -> bytes:
    import simplejpeg

    return simplejpeg.encode_jpeg(np.ascontiguousarray(image), quality, "RGB", "420")


def dataset(folder: Path, count: int = 6, height: int = 60, width: int = 90) -> Files:
    records = []
    for index in range(count):
        sha256, path = store_bytes(folder, jpeg(photo(height, width, index)), ".jpg")
        records.append(Record(path, sha256, "", width, height, "x", sha256, "train"))
    return Files(folder, records)
