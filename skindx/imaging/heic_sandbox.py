"""HEIC photos, decoded in a process of their own with limits of memory and time."""

import importlib.util
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.imaging.decode import MAX_PIXELS, DamagedPicture
from skindx.workers.sandbox.pool import Failure, Limits, run_apart

LIMITS = Limits(timeout_s=15, memory_mb=800)
"""50 million pixels of 8 bits take 500 MB, of 10 bits without subsampling 1,000 and are refused."""


def can_read_heic() -> bool:
    """Tell whether pillow-heif is installed (the extra `app` has it)."""
    return importlib.util.find_spec("pillow_heif") is not None


def decode_apart(
    data: bytes, *, max_pixels: int = MAX_PIXELS, limits: Limits = LIMITS
) -> NDArray[np.uint8]:
    """Return pixels_HWC, uint8 RGB, upright. Raises DamagedPicture, whatever the bytes do.

    Photo and pixels pass between the processes in memory: no disk ever holds them, and they are
    gone with this process, however it ends.
    """
    with (
        os.fdopen(os.memfd_create("skindx-photo"), "w+b") as photo,
        os.fdopen(os.memfd_create("skindx-pixels"), "w+b") as pixels,
    ):
        photo.write(data)
        photo.flush()
        there = Path(f"/proc/{os.getpid()}/fd")
        job = {"out": str(there / str(pixels.fileno())), "max_pixels": max_pixels}
        ((_, answer),) = run_apart("heic", job, [there / str(photo.fileno())], limits, workers=1)
        if isinstance(answer, Failure):
            raise DamagedPicture(answer.detail, answer.reason)
        if answer["reason"]:
            raise DamagedPicture(answer["detail"], answer["reason"])
        pixels_HWC: NDArray[np.uint8] = np.load(pixels, allow_pickle=False)
        return pixels_HWC
