"""Small copies of pictures: made by our decoder, upright, without any metadata."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.data.decode import DamagedPicture, decode
from skindx.data.progress import Progress
from skindx.files import atomic_file

THUMBS = "thumbs"
LONGEST_SIDE = 192
_QUALITY = 80
_BATCH = 64
_INLINE_BATCHES = 4
"""So few pictures are shrunk sooner than another process starts."""

Job = tuple[str, Path, Path]
"""SHA-256, picture, thumbnail."""


def thumbnail_path(sha256: str) -> str:
    """Return the path of a picture's thumbnail, relative to the gallery."""
    return f"{THUMBS}/{sha256[:2]}/{sha256}.jpg"


def write_thumbnails(
    folder: Path, files: Mapping[str, Path], older: Path, progress: Progress
) -> frozenset[str]:
    """Write the thumbnail of each file (by SHA-256) that decodes; return those that there are.

    What `older`, the thumbnails of an earlier gallery, holds is taken from there.
    """
    jobs: list[Job] = []
    shown: set[str] = set()
    for sha256, file in files.items():
        name = Path(sha256[:2]) / f"{sha256}.jpg"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if _link(older / name, folder / name):
            shown.add(sha256)
        else:
            jobs.append((sha256, file, folder / name))
    batches = [jobs[start : start + _BATCH] for start in range(0, len(jobs), _BATCH)]
    done = len(shown)
    for written in _map(batches):
        shown |= set(written)
        done += _BATCH
        progress("shrink", min(done, len(files)), len(files))
    return frozenset(shown)


def _link(source: Path, target: Path) -> bool:
    try:
        target.hardlink_to(source)
    except OSError:
        return False
    return True


def _map(batches: Sequence[Sequence[Job]]) -> "list[list[str]] | map[list[str]]":
    if len(batches) <= _INLINE_BATCHES:
        return map(_shrink_all, batches)
    # A fresh interpreter, not a fork: the caller's progress bar and libraries run threads.
    with ProcessPoolExecutor(os.cpu_count() or 1, get_context("spawn")) as pool:
        return list(pool.map(_shrink_all, batches))


def _shrink_all(jobs: Sequence[Job]) -> list[str]:
    return [sha256 for sha256, file, target in jobs if _shrink(file, target)]


def _shrink(file: Path, target: Path) -> bool:
    """Write one thumbnail; False for what does not decode."""
    try:
        pixels_HWC = decode(file.read_bytes())
    except (OSError, DamagedPicture):
        return False
    with atomic_file(target) as temporary:
        temporary.write_bytes(small_jpeg(pixels_HWC, LONGEST_SIDE))
    return True


def small_jpeg(pixels_HWC: NDArray[np.uint8], longest_side: int) -> bytes:
    """Return a picture as JPEG, shrunk to `longest_side`, never enlarged."""
    import cv2
    import simplejpeg

    height, width = pixels_HWC.shape[:2]
    scale = longest_side / max(height, width)
    if scale < 1:
        size_wh = (max(1, round(width * scale)), max(1, round(height * scale)))
        pixels_HWC = cv2.resize(pixels_HWC, size_wh, interpolation=cv2.INTER_AREA)
    jpeg: bytes = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels_HWC), quality=_QUALITY)
    return jpeg
