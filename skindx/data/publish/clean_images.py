"""Stored images become what others get: upright, sRGB, and nothing but pixels.

A JPEG keeps only its image: segments are copied by a list, never by what they say. What goes: EXIF
with its thumbnail and GPS, XMP, ICC, IPTC, comments, vendors' segments, bytes between segments and
everything after the end of the first image (a second image, an archive).

This runs in decoding processes: an image of a dataset has been decoded strictly, but the files may
have changed since. A process writes what it made of an image to a file of its own; all else that
it says is JSON.
"""

import hashlib
import io
import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.core.machine import cpu_count
from skindx.data.screening.image_measures import ScreenSettings
from skindx.imaging.decode import MAX_PIXELS, decode, decode_noted, import_decoders
from skindx.imaging.image_formats import MOST_SEGMENTS, DamagedImage, image_suffix
from skindx.workers.sandbox import Failure, Work, for_each, run_sandboxed, sandboxed
from skindx.workers.worker_process import SandboxLimits

_SOI, _EOI, _SOS, _APP0, _APP14 = 0xD8, 0xD9, 0xDA, 0xE0, 0xEE
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_KEPT = {*_FRAMES, 0xC4, 0xCC, _SOS, 0xDB, 0xDC, 0xDD}
"""Frame, Huffman and arithmetic tables, scan, quantisation, lines, restart interval."""
_MARKER = re.compile(rb"\xff[^\xff]")
_SCAN_END = re.compile(rb"\xff(?![\x00\xd0-\xd7])")
# JFIF 1.01, no density, no thumbnail: its presence says that the colours are YCbCr.
_JFIF = b"\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00"


class NotStrippable(ValueError):  # noqa: N818
    """This file cannot be stripped without decoding it; the message says why."""


def strip_jpeg(data: bytes) -> bytes:
    """Return the same coded image with nothing around it. Raises NotStrippable.

    Four-colour images are refused: without their profile the inks have no defined colour.
    """
    parts = [b"\xff\xd8"]
    for marker, start, end in _segments(data):
        payload = data[start + 4 : end]
        if marker == _APP0 and payload.startswith(b"JFIF\0"):
            parts.append(_JFIF)
        elif marker == _APP14 and payload.startswith(b"Adobe") and len(payload) >= 12:
            # Says how colours are coded; whatever follows its 12 bytes does not.
            parts.append(b"\xff\xee\x00\x0e" + payload[:12])
        elif marker in _FRAMES and payload[5:6] == b"\x04":
            raise NotStrippable("the JPEG has four colour channels")
        elif marker in _KEPT:
            parts.append(data[start:end])
    return b"".join([*parts, b"\xff\xd9"])


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (marker, start, end) up to the end of the first image; a scan includes its data."""
    if data[:2] != b"\xff\xd8":
        raise NotStrippable("the file does not begin like a JPEG")
    at = 2
    for _ in range(MOST_SEGMENTS):
        match = _MARKER.search(data, at)
        if not match:
            raise NotStrippable("the JPEG has no end")
        at = match.end() - 2
        marker = data[at + 1]
        if marker == _EOI:
            return
        if marker in (0x00, 0x01, _SOI) or 0xD0 <= marker <= 0xD7:
            raise NotStrippable(f"the JPEG has the marker {marker:02x} at a wrong place")
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == _SOS:
            following = _SCAN_END.search(data, end)
            if not following:
                raise NotStrippable("a scan of the JPEG has no end")
            end = following.start()
        yield marker, at, end
        at = end
    raise NotStrippable("the JPEG has too many segments")


JPEG_QUALITY = 95
"""Quality of the few images that must be coded again, without chroma subsampling."""


@dataclass(frozen=True, slots=True)
class CleanImage:
    """Bytes to give away; `reencoded` if their pixels are not exactly those of the original."""

    data: bytes
    suffix: str
    width: int
    height: int
    reencoded: bool


def clean_image(data: bytes, *, max_pixels: int = MAX_PIXELS) -> CleanImage:
    """Strip an image of everything but its pixels, losing none where that is possible.

    JPEG and lossy WebP keep their coded data to the bit; whether the stripped file still decodes
    to the same upright pixels is tried, not assumed. So an image that only metadata turns (EXIF
    orientation), one of four colours and one of wide colours is coded once more. All other
    formats become PNG of exactly the decoded pixels. Raises DamagedImage.
    """
    pixels_HWC, notes = decode_noted(data, max_pixels=max_pixels)
    height, width = pixels_HWC.shape[:2]
    suffix = image_suffix(data[:16])
    stripped = _stripped(data, suffix)
    if stripped and _decodes_to(stripped, pixels_HWC, max_pixels):
        return CleanImage(stripped, suffix or "", width, height, reencoded=False)
    if suffix == ".jpg":
        coded = _encode(pixels_HWC, "JPEG", quality=JPEG_QUALITY, subsampling=0)
        return CleanImage(coded, ".jpg", width, height, reencoded=True)
    coded = _encode(pixels_HWC, "PNG", optimize=False)
    return CleanImage(coded, ".png", width, height, reencoded="colours-converted" in notes)


def _stripped(data: bytes, suffix: str | None) -> bytes | None:
    """Return the coded image alone, None for a format that is decoded instead."""
    try:
        if suffix == ".jpg":
            return strip_jpeg(data)
        if suffix == ".webp":
            return _strip_webp(data)
    except NotStrippable:
        return None
    return None


def _strip_webp(data: bytes) -> bytes:
    """Return a lossy, opaque, still WebP as its one coded chunk. Raises NotStrippable."""
    end = 8 + int.from_bytes(data[4:8], "little")
    coded, at = [], 12
    while at + 8 <= min(end, len(data)):
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        if name in (b"VP8L", b"ALPH", b"ANIM", b"ANMF"):
            raise NotStrippable("the WebP is lossless, transparent or animated")
        if name == b"VP8 ":
            coded.append(data[at : at + 8 + size] + b"\0" * (size % 2))
        at += 8 + size + size % 2
    if len(coded) != 1:
        raise NotStrippable("the WebP does not have exactly one image")
    return b"RIFF" + (4 + len(coded[0])).to_bytes(4, "little") + b"WEBP" + coded[0]


def _decodes_to(data: bytes, pixels_HWC: NDArray[np.uint8], max_pixels: int) -> bool:
    try:
        return bool(np.array_equal(decode(data, max_pixels=max_pixels), pixels_HWC))
    except DamagedImage:
        return False


def _encode(pixels_HWC: NDArray[np.uint8], kind: str, **options: int) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels_HWC).save(buffer, kind, **options)
    return buffer.getvalue()


_PER_PROCESS = 64
"""Number of images that are cleaned sooner than another process starts."""
_TIMES = 4
"""Factor on screening's memory and time: pixels are converted, coded and decoded once more."""


@dataclass(frozen=True, slots=True)
class CleanFile:
    """Outcome of one image: a file at `path`, or a `problem` with the reason."""

    path: Path
    problem: str = ""
    sha256: str = ""
    """SHA-256 of the bytes that were read."""
    suffix: str = ""
    width: int = 0
    height: int = 0
    reencoded: bool = False


def clean_files(
    paths: Sequence[Path], folder: Path, settings: ScreenSettings
) -> Generator[CleanFile]:
    """Yield the clean image of each file, in order; `folder` takes those not yet fetched."""
    limits = SandboxLimits(_TIMES * settings.timeout_s, _TIMES * settings.memory_mb)
    workers = min(cpu_count(), -(-len(paths) // _PER_PROCESS))
    job = {"folder": str(folder.absolute()), "max_pixels": settings.max_pixels}
    waiting: dict[int, CleanFile] = {}
    following = 0
    for position, answer in run_sandboxed(cleaning_work, job, paths, limits, workers):
        waiting[position] = (
            CleanFile(Path(), answer.detail)
            if isinstance(answer, Failure)
            else CleanFile(**{**answer, "path": Path(answer["path"])})
        )
        while following in waiting:
            yield waiting.pop(following)
            following += 1


@sandboxed(import_decoders)
def cleaning_work(job: dict[str, Any]) -> Work:
    """Return what cleans each file into the job's `folder`."""
    folder = Path(job["folder"])
    return for_each(lambda path: clean_file(path, folder, max_pixels=job["max_pixels"]))


def clean_file(path: Path, folder: Path, *, max_pixels: int) -> dict[str, Any]:
    """Clean one image into `folder`, in a decoding process; return a `CleanFile` as JSON."""
    try:
        data = path.read_bytes()
    except OSError as error:
        return {"path": "", "problem": f"cannot be read ({error.strerror})"}
    sha256 = hashlib.sha256(data).hexdigest()
    target = folder / sha256
    try:
        clean = clean_image(data, max_pixels=max_pixels)
        target.write_bytes(clean.data)
    except (DamagedImage, MemoryError) as error:
        problem = f"does not decode ({error or 'not enough memory'})"
        return {"path": "", "problem": problem, "sha256": sha256}
    facts = {name: value for name, value in asdict(clean).items() if name != "data"}
    return {"path": str(target), "sha256": sha256, **facts}
