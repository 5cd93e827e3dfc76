"""Photos, which anybody may send, decoded in processes of their own; small JPEGs."""

import atexit
import hashlib
import importlib.util
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.imaging.decode import MAX_PIXELS, decode, decode_with_pillow, import_decoders
from skindx.imaging.image_formats import DamagedImage, refusal
from skindx.imaging.stored_colours import SRGB, ColourNote, Decoding
from skindx.workers.sandbox import (
    Failure,
    LastingProcess,
    MakeWork,
    Work,
    for_each,
    run_sandboxed,
    sandboxed,
)
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


def decode_limited(
    data: bytes,
    *,
    at_least: tuple[int, int] | None = None,
    rough: bool = True,
    decoding: Decoding = SRGB,
) -> NDArray[np.uint8]:
    """Return what `decode` returns, from a process with limits of time and memory.

    For images that are in a dataset, which may be anybody's: a process lasts for many images, and
    threads that decode side by side have one each. What ended a process is not tried again. Raises
    DamagedImage.
    """
    if len(data) in _fatal.values() and _digest(data) in _fatal:
        raise DamagedImage("the file has already crashed its decoder", "decode-crash")
    options = {"at_least": at_least, "rough": rough, "decoding": decoding}
    decoder = _idle_decoder() or _LastingDecoder(LIMITS)
    try:
        answer = decoder.decode(data, options)
    finally:
        _idle.append(decoder)
    if isinstance(answer, Failure):
        if len(_fatal) < _MOST_REMEMBERED:
            _fatal[_digest(data)] = len(data)
        raise DamagedImage(answer.detail, answer.reason)
    return answer


class _LastingDecoder:
    """A process that decodes, and the memory by which photos and pixels pass."""

    def __init__(self, limits: SandboxLimits) -> None:
        self.limits, self.pid = limits, os.getpid()
        self._photo = os.fdopen(os.memfd_create("skindx-photo"), "w+b")
        self._pixels = os.fdopen(os.memfd_create("skindx-pixels"), "r+b", buffering=0)
        there = Path(f"/proc/{self.pid}/fd")
        self._path = there / str(self._photo.fileno())
        job = {"out": str(there / str(self._pixels.fileno()))}
        self._process = LastingProcess(lasting_decoding, job, limits)

    def end(self) -> None:
        """End the process, unless it is of a process that this one was forked from."""
        self._photo.close()
        self._pixels.close()
        if self.pid == os.getpid():
            self._process.end()

    def decode(self, data: bytes, options: dict[str, Any]) -> NDArray[np.uint8] | Failure:
        """Return pixels_HWC. Raises DamagedImage for what the decoder refused."""
        self._photo.seek(0)
        self._photo.truncate()
        self._photo.write(json.dumps(options).encode() + b"\n")
        self._photo.write(data)
        self._photo.flush()
        answer = self._process.ask(self._path)
        if isinstance(answer, Failure):
            return answer
        if answer["reason"]:
            if answer["reason"] == "decode-memory":
                self._process.end()  # what its allocator keeps would starve the next image
            raise DamagedImage(answer["detail"], answer["reason"])
        height, width = answer["size"]
        pixels_HWC = np.empty((height, width, 3), np.uint8)
        self._pixels.seek(0)
        left = pixels_HWC.data.cast("B")
        while left and (count := self._pixels.readinto(left)):
            left = left[count:]
        if left:
            raise DamagedImage("the decoder of the file sent too few pixels", "decode-crash")
        if pixels_HWC.nbytes > _KEPT_BYTES:
            self._pixels.truncate(0)
        return pixels_HWC


_KEPT_BYTES = 32 << 20
"""Memory that a decoder without work keeps for pixels."""
_MOST_REMEMBERED = 10_000
_fatal: dict[bytes, int] = {}
_idle: list[_LastingDecoder] = []


def _idle_decoder() -> _LastingDecoder | None:
    """Return a decoder that no thread uses, and that is no other process's."""
    for decoder in tuple(_idle):
        if decoder.pid == os.getpid() and decoder.limits == LIMITS:
            with suppress(ValueError):  # another thread took it meanwhile
                _idle.remove(decoder)
                return decoder
    return None


@atexit.register
def _end() -> None:
    for decoder in _idle:
        decoder.end()


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


@sandboxed(import_decoders)
def lasting_decoding(job: dict[str, Any]) -> Work:
    """Return what writes an image's pixels over the job's `out`; its options are its first line."""

    def answer(path: Path) -> dict[str, Any]:
        options, _, data = path.read_bytes().partition(b"\n")
        try:
            pixels_HWC = decode(data, **json.loads(options))
        except Exception as error:
            damage = refusal(error)
            return {"reason": damage.reason, "detail": str(damage)}
        with Path(job["out"]).open("r+b") as file:
            file.write(np.ascontiguousarray(pixels_HWC).data)
        return {"reason": "", "detail": "", "size": pixels_HWC.shape[:2]}

    return for_each(answer)


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
