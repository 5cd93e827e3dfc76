"""Small images with a lesion-like structure, all different, for the tests of this folder."""

import io
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image


def paint(seed: int, width: int = 120, height: int = 96) -> NDArray[np.uint8]:
    """Return pixels_HWC of soft blobs with fine grain; every seed looks different."""
    rng = np.random.default_rng(seed)
    coarse = rng.uniform(40, 220, (6, 7, 3)).astype(np.float32)
    smooth = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    grain = rng.normal(0, 6, (height, width, 1))
    return np.clip(smooth + grain, 0, 255).astype(np.uint8)


def encode(pixels: NDArray[np.uint8], kind: str = "JPEG", **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def save(path: Path, pixels: NDArray[np.uint8], **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(pixels, **options))
    return path
