"""Small copies of images, upright, without any metadata.

Made in decoding processes: a gallery also shows what was dropped, such as an image that crashes
its decoder.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import atomic_file
from skindx.core.machine import cpu_count
from skindx.core.progress import Progress
from skindx.imaging.damage import DamagedImage
from skindx.imaging.decode import decode, import_decoders
from skindx.workers.sandbox import Limits, Work, for_each, run_sandboxed, sandboxed

THUMBS = "thumbs"
LONGEST_SIDE = 192
_QUALITY = 80
_PER_PROCESS = 128
"""So few images are shrunk sooner than another process starts."""
_LIMITS = Limits(timeout_s=30, memory_mb=650)


def thumbnail_path(sha256: str) -> str:
    """Return the path of an image's thumbnail, relative to the gallery."""
    return f"{THUMBS}/{sha256[:2]}/{sha256}.jpg"


def write_thumbnails(
    folder: Path, files: Mapping[str, Path], older: Path, progress: Progress
) -> frozenset[str]:
    """Write the thumbnail of each file (by SHA-256) that decodes; return those that there are.

    What `older`, the thumbnails of an earlier gallery, holds is taken from there.
    """
    missing: list[str] = []
    shown: set[str] = set()
    for sha256 in files:
        name = Path(sha256[:2]) / f"{sha256}.jpg"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if _link(older / name, folder / name):
            shown.add(sha256)
        else:
            missing.append(sha256)
    paths = [files[sha256] for sha256 in missing]
    job = {"folder": str(folder.absolute())}
    workers = min(cpu_count(), -(-len(paths) // _PER_PROCESS))
    for done, (position, written) in enumerate(
        run_sandboxed(shrinking, job, paths, _LIMITS, workers), len(shown) + 1
    ):
        if written is True:
            shown.add(missing[position])
        progress("shrink", done, len(files))
    return frozenset(shown)


def _link(source: Path, target: Path) -> bool:
    try:
        target.hardlink_to(source)
    except OSError:
        return False
    return True


@sandboxed(import_decoders)
def shrinking(job: dict[str, Any]) -> Work:
    """Return what writes the thumbnail of each file below the job's `folder`."""
    folder = Path(job["folder"])
    return for_each(lambda path: shrink(path, folder))


def shrink(file: Path, folder: Path) -> bool:
    """Write one thumbnail below `folder`; False for what does not decode."""
    try:
        pixels_HWC = decode(file.read_bytes())
    except (OSError, DamagedImage, MemoryError):
        return False
    with atomic_file(folder / file.stem[:2] / f"{file.stem}.jpg") as temporary:
        temporary.write_bytes(small_jpeg(pixels_HWC, LONGEST_SIDE))
    return True


def small_jpeg(
    pixels_HWC: NDArray[np.uint8], longest_side: int, *, quality: int = _QUALITY
) -> bytes:
    """Return an image as JPEG without metadata, shrunk to `longest_side`, never enlarged."""
    import cv2
    import simplejpeg

    height, width = pixels_HWC.shape[:2]
    scale = longest_side / max(height, width)
    if scale < 1:
        size_wh = (max(1, round(width * scale)), max(1, round(height * scale)))
        pixels_HWC = cv2.resize(pixels_HWC, size_wh, interpolation=cv2.INTER_AREA)
    jpeg: bytes = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels_HWC), quality=quality)
    return jpeg
