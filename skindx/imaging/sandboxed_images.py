"""Photos, which anybody may send, decoded in processes of their own; small JPEGs."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.imaging.decode import MAX_PIXELS, decode_with_pillow, import_decoders
from skindx.imaging.image_formats import DamagedImage, refusal
from skindx.imaging.stored_colours import SRGB, ColourNote, Decoding
from skindx.workers.sandbox import Failure, MakeWork, Work, for_each, run_sandboxed, sandboxed
from skindx.workers.worker_process import SandboxLimits

LIMITS = SandboxLimits(timeout_s=15, memory_mb=800)
"""50 million pixels of 8 bits take 500 MB, of 10 bits without subsampling 1,000 and are refused."""


def can_read_heic() -> bool:
    """Tell whether pillow-heif is installed (the extra `app` has it)."""
    return importlib.util.find_spec("pillow_heif") is not None


def decode_heic(
    data: bytes,
    *,
    max_pixels: int = MAX_PIXELS,
    limits: SandboxLimits = LIMITS,
    decoding: Decoding = SRGB,
) -> tuple[NDArray[np.uint8], set[ColourNote]]:
    """Return pixels_HWC, uint8 sRGB, upright, and what came of colours and further images.

    Raises DamagedImage, whatever the bytes do.
    """
    job = {"max_pixels": max_pixels, "decoding": decoding}
    pixels_HWC, answer = decode_apart(heic_decoding, data, job, limits)
    return pixels_HWC, set(answer["notes"])


def decode_apart(
    make_work: MakeWork, data: bytes, job: dict[str, Any], limits: SandboxLimits
) -> tuple[NDArray[np.uint8], dict[str, Any]]:
    """Return pixels_HWC that marked work writes to the job's `out`, and what it answers.

    Photo and pixels pass between the processes in memory: no disk ever holds them, and they are
    gone with this process, however it ends. Raises DamagedImage.
    """
    with (
        os.fdopen(os.memfd_create("skindx-photo"), "w+b") as photo,
        os.fdopen(os.memfd_create("skindx-pixels"), "w+b") as pixels,
    ):
        photo.write(data)
        photo.flush()
        there = Path(f"/proc/{os.getpid()}/fd")
        job = job | {"out": str(there / str(pixels.fileno()))}
        ((_, answer),) = run_sandboxed(
            make_work, job, [there / str(photo.fileno())], limits, workers=1
        )
        if isinstance(answer, Failure):
            raise DamagedImage(answer.detail, answer.reason)
        if answer["reason"]:
            raise DamagedImage(answer["detail"], answer["reason"])
        pixels_HWC: NDArray[np.uint8] = np.load(pixels, allow_pickle=False)
        return pixels_HWC, answer


def _prepare() -> None:
    import pillow_heif  # noqa: F401

    import_decoders()


@sandboxed(_prepare)
def heic_decoding(job: dict[str, Any]) -> Work:
    """Return what writes a photo's pixels to the job's `out` and says what failed."""
    import pillow_heif

    # Here and not before the fork: only these processes are to know the format.
    pillow_heif.options.DECODE_THREADS = 1  # each would take memory of its own
    pillow_heif.register_heif_opener(thumbnails=False)
    out = Path(job["out"])
    return for_each(lambda path: write_pixels(path, out, job["max_pixels"], job["decoding"]))


def write_pixels(path: Path, out: Path, max_pixels: int, decoding: Decoding) -> dict[str, Any]:
    """Write a HEIC photo's pixels_HWC, uint8 sRGB, upright, to `out` as npy; say what failed.

    libheif turns the image as the file says, and leaves metadata out. Never raises for a file.
    """
    try:
        pixels_HWC, notes = decode_with_pillow(path.read_bytes(), "HEIF", max_pixels, decoding)
    except Exception as error:
        damage = refusal(error)
        return {"reason": damage.reason, "detail": str(damage)}
    with out.open("wb") as file:  # as a name it would get a suffix
        np.save(file, pixels_HWC, allow_pickle=False)
    return {"reason": "", "detail": "", "notes": sorted(notes)}


def small_jpeg(pixels_HWC: NDArray[np.uint8], longest_side: int, *, quality: int = 80) -> bytes:
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
