"""A small dataset for tests of studies: painted images, two classes, groups of two."""

import io
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from skindx.data.embedding_files import EMBEDDINGS, Embeddings, write_embeddings
from skindx.data.layout import store_bytes
from skindx.data.manifest import SPLITS, Record, write_issues, write_manifest


def skin(seed: int, width: int = 120, height: int = 96) -> NDArray[np.uint8]:
    """Return pixels_HWC of smooth skin with a spot."""
    random = np.random.default_rng(seed)
    coarse = random.uniform(150, 220, (4, 5, 3)).astype(np.float32)
    pixels = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    centre = (int(random.integers(30, width - 30)), int(random.integers(30, height - 30)))
    cv2.ellipse(pixels, centre, (14, 10), float(random.integers(180)), 0, 360, (90, 60, 50), -1)
    noisy = cv2.GaussianBlur(pixels, (0, 0), 2) + random.normal(0, 3, (height, width, 1))
    return np.clip(noisy, 0, 255).astype(np.uint8)


def jpeg(pixels: NDArray[np.uint8], quality: int = 92) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def tiny_dataset(folder: Path, count: int = 40) -> list[Record]:
    """Write `count` images of classes a and b; two neighbours are one group; no issues."""
    records = []
    for n in range(count):
        sha256, path = store_bytes(folder, jpeg(skin(n)), ".jpg")
        group = n // 2
        split = SPLITS[0] if group % 4 else SPLITS[3]
        label = "ab"[group % 2 ^ (group // 4) % 2]
        records.append(
            Record(path, sha256, "0" * 16, 120, 96, label, f"g{group}", split, source_url=f"{n}")
        )
    records.sort(key=lambda record: (record.label, record.sha256))
    write_manifest(folder, records)
    write_issues(folder, [])
    return records


def class_vectors(records: list[Record], noise: float = 0.2, seed: int = 0) -> Embeddings:
    """Return embeddings that tell the classes apart, more or less."""
    random = np.random.default_rng(seed)
    axis = {label: i for i, label in enumerate(sorted({record.label for record in records}))}
    centres = np.eye(8)[[axis[record.label] for record in records]]
    vectors = centres + random.normal(0, noise, centres.shape)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    shas = tuple(record.sha256 for record in records)
    return Embeddings(shas, vectors.astype(np.float32), "made up")


def with_embeddings(folder: Path, count: int = 40) -> list[Record]:
    records = tiny_dataset(folder, count)
    write_embeddings(folder / EMBEDDINGS, class_vectors(records))
    return records
