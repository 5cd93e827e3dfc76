"""An untrusted photo of any size becomes a pixel store, in a process that may hang or crash.

What is too large or no photo is refused before a pixel is decoded. libvips has four decoders here
and no other, one thread, and remembers nothing.
"""

import os
import shutil
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np

from skindx.core.atomic_files import FolderKind, sha256_file
from skindx.core.errors import UserError, full_disk, needs_room, no_room
from skindx.core.machine import how_to_install, require_extra
from skindx.core.private_files import private_output, write_private
from skindx.diagnosis.scope import unjudged
from skindx.imaging.decode import FORMATS, orientation_of
from skindx.imaging.dicom import read_dicom
from skindx.imaging.image_formats import (
    HEAD,
    DamagedImage,
    PhotoFormat,
    image_suffix,
    photo_format,
    read_jpeg,
    unread_format,
)
from skindx.imaging.sandboxed_images import can_read_heic, decode_heic
from skindx.imaging.srgb import FileColours, convert_kernel
from skindx.imaging.stored_colours import PLAIN, SRGB, Decoding, StoredColours, stored_colours
from skindx.scan.pixel_store import INDEX, PixelStore, PixelWriter, level_sizes
from skindx.texts.catalogue import joined, speaking, spoken, text
from skindx.workers.sandbox import Failure, Work, for_each, run_sandboxed, sandboxed
from skindx.workers.worker_process import SandboxLimits

MAX_PIXELS = 2_000_000_000
MAX_BYTES = 4 << 30
MAX_SIDE = 150_000
"""Most pixels of a side: rows are decoded whole, some of them at a time."""
MIN_SIDE = 256
"""Least pixels of the shorter side; a smaller photo needs no search."""
MAX_RATIO = 20
MOST_PIXELS_A_BYTE, FREE_PIXELS = 80, 12_000_000
"""Photos have 2 to 30 pixels a byte of file; an empty JPEG has 64. Larger images with more
are bombs."""
MAX_WHOLE_PIXELS = 120_000_000
"""Most pixels of a file whose decoder needs all pixels or coefficients in memory at once."""
MEMORY_MB, BASE_S, SECONDS_A_MB = 1500, 600, 2
"""Limits of the decoding process: private memory, base time, and more time by file size."""


class NotScannedError(DamagedImage):
    """A photo that is not scanned; its message says why, and what to do, to a person."""


@dataclass(frozen=True)
class Header:
    """What a file says of itself before its pixels are decoded."""

    suffix: str
    """.jpg, .png, .webp or .tif, by the first bytes."""
    size_bytes: int
    width: int
    height: int
    """Pixels as stored, before EXIF's orientation."""
    pages: int
    bits: int
    """Bits of one channel."""
    colours: str
    """libvips' interpretation, such as srgb, b-w or cmyk."""
    interlaced: bool

    def check(self, most_pixels: int = MAX_PIXELS) -> None:
        """Raise NotScannedError for what is not scanned."""
        for problem, reason in (
            (self._size(most_pixels), "too-many-pixels"),
            (self._kind(), "unsupported-format"),
            (self._whole(), "decode-memory"),
        ):
            if problem:
                raise NotScannedError(problem, reason)

    def _size(self, most_pixels: int) -> str:
        pixels, size = self.width * self.height, {"width": self.width, "height": self.height}
        if pixels > most_pixels or max(self.width, self.height) > MAX_SIDE:
            large = text("unscanned_large", **size, most=most_pixels, side=MAX_SIDE)
            return joined(large, text("unscanned_large_do"))
        if pixels > FREE_PIXELS and pixels > MOST_PIXELS_A_BYTE * self.size_bytes:
            return text("unscanned_bomb", **size, bytes=self.size_bytes)
        if min(self.width, self.height) < MIN_SIDE:
            return joined(text("unscanned_small", **size, least=MIN_SIDE), text("unscanned_one"))
        if max(self.width, self.height) > MAX_RATIO * min(self.width, self.height):
            return text("unscanned_ratio", **size, ratio=MAX_RATIO)
        return ""

    def _kind(self) -> str:
        if self.pages > 1:
            return text("unscanned_pages", pages=self.pages)
        if self.colours == "cmyk":
            return text("unscanned_cmyk")
        if self.bits != 8:
            return text("unscanned_bits", bits=self.bits)
        if self.colours not in ("srgb", "rgb", "b-w"):
            return text("unscanned_colours", colours=self.colours)
        return ""

    def _whole(self) -> str:
        """Say which files cannot be read in pieces, where that would take too much memory."""
        if self.width * self.height <= MAX_WHOLE_PIXELS:
            return ""
        if self.suffix == ".jpg" and self.interlaced:
            return joined(text("unscanned_progressive"), text("unscanned_progressive_do"))
        if self.suffix == ".webp" or self.interlaced:
            name = "WebP" if self.suffix == ".webp" else "interlaced PNG"
            return joined(text("unscanned_pieces", format=name), text("unscanned_pieces_do"))
        return ""


LOADERS = {".jpg": "jpegload", ".png": "pngload", ".webp": "webpload", ".tif": "tiffload"}
"""libvips' loader by the file's first bytes: libvips never guesses the format."""

_CLASSES = ("JpegFile", "PngFile", "WebpFile", "TiffFile")
_STRICTNESS = {".jpg": "warning"}
"""libjpeg only warns of damage in mid-stream; the others' warnings are of harmless metadata."""


def import_vips() -> Any:
    """Return the module pyvips with every loader blocked but those of LOADERS.

    Raises UserError without the extra `scan`.
    """
    require_extra("scan", "pyvips", purpose="reading large photos")
    os.environ.setdefault("VIPS_CONCURRENCY", "1")  # read at import
    import pyvips

    pyvips.cache_set_max(0)
    pyvips.block_untrusted_set(True)
    pyvips.operation_block_set("VipsForeignLoad", True)
    for name in _CLASSES:
        pyvips.operation_block_set(f"VipsForeignLoad{name}", False)
    return pyvips


def open_image(vips: Any, path: str, suffix: str) -> Any:
    """Return a lazy image whose rows come from top to bottom. Raises DamagedImage."""
    load = getattr(vips.Image, LOADERS[suffix])
    try:
        return load(path, access="sequential", fail_on=_STRICTNESS.get(suffix, "error"))
    except vips.Error as error:
        raise damaged(error) from error


def value(image: Any, name: str, default: int) -> int:
    """Return a whole number of an image's metadata."""
    return int(image.get(name)) if image.get_typeof(name) else default


def damaged(error: Exception) -> DamagedImage:
    """Return what an error of libvips means."""
    message = " ".join(str(error).split())[:200]
    memory = "memory" in message.lower()
    return DamagedImage(message, "decode-memory" if memory else "damaged")


_STRIP_BYTES, _LEAST_ROWS = 4 << 20, 16
"""Pixels that are decoded at once, in whole rows."""
_STORE = FolderKind("a photo's pixels", INDEX, ("*",))
_WHOLE: dict[PhotoFormat | None, str] = {"HEIC": ".heic", "DICOM": ".dcm"}
_MOST_REPAIRED_BYTES = 200 << 20
_PROFILE = "icc-profile-data"
_BITS = {"uchar": 8, "char": 8, "ushort": 16, "short": 16}
_REASONS = {
    "decode-memory": "unscanned_memory",
    "decode-timeout": "unscanned_time",
    "decode-crash": "unscanned_decoder",
    "damaged": "unscanned_damaged",
}


def photo_store(
    path: Path, folder: Path, most_pixels: int = MAX_PIXELS, decoding: Decoding = SRGB
) -> PixelStore:
    """Return the pixel store of a photo, made in `folder` unless it is there already.

    Raises UserError, with what to do, for a file that is no photo to be scanned, and for one
    of more than `most_pixels`.
    """
    if not (folder / INDEX).is_file():
        require_extra("scan", "pyvips", purpose="reading large photos")
        sha256, suffix = _look(path)
        with needs_room(folder.parent), private_output(folder, _STORE) as making:
            facts: dict[str, Any] = {"name": path.name, "sha256": sha256, "decoding": decoding}
            if suffix in _WHOLE.values():
                _from_pixels(path, suffix, making, facts, most_pixels)
            else:
                _from_file(path, making, facts | {"suffix": suffix}, most_pixels)
    return PixelStore.open(folder)


def _look(path: Path) -> tuple[str, str]:
    """Return a file's SHA-256 and suffix. Raises UserError."""
    try:
        size_bytes = path.stat().st_size
        if not path.is_file() or size_bytes > MAX_BYTES:
            reason = f"has more than {MAX_BYTES >> 30} GB" if path.is_file() else "is no file"
            raise UserError(f"{path} {reason}; give a smaller photo file.")
        with path.open("rb") as file:
            head = file.read(HEAD)
        sha256 = sha256_file(path)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; check the path.") from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); give a photo file that you may read."
        ) from None
    suffix = _WHOLE.get(photo_format(head), image_suffix(head[:16]))
    if suffix == ".heic" and not can_read_heic():
        raise UserError(
            f"{path} is a HEIC photo, which needs pillow-heif; save the photo as JPEG, or run "
            f"{how_to_install('serve')}."
        )
    if suffix in (None, ".bmp"):
        name = "a BMP" if suffix else unread_format(head)
        why = text("unscanned_no_image") if head else text("unscanned_empty")
        why = text("unscanned_unread", format=name) if name else why
        raise UserError(unjudged(joined(text("unscanned", name=str(path)), why)))
    return sha256, suffix


def _from_pixels(
    path: Path, suffix: str, making: Path, facts: dict[str, Any], most_pixels: int
) -> None:
    try:
        data = path.read_bytes()
        decoding: Decoding = facts["decoding"]
        if suffix == ".heic":
            pixels_HW3, notes = decode_heic(data, decoding=decoding)
        else:
            photo = read_dicom(data, decoding)
            pixels_HW3, notes = photo.pixels_HWC, set(photo.notes)
        height, width = pixels_HW3.shape[:2]
        header = Header(suffix, path.stat().st_size, width, height, 1, 8, "srgb", False)
        header.check(most_pixels)
    except DamagedImage as error:
        raise _refused(path, error.reason, _advice(error)) from None
    writer = PixelWriter(making, width, height)
    writer.write(pixels_HW3)
    writer.close(facts | {"colours": sorted(notes)})


def _from_file(path: Path, making: Path, facts: dict[str, Any], most_pixels: int) -> None:
    limits = SandboxLimits(BASE_S + SECONDS_A_MB * (path.stat().st_size >> 20), MEMORY_MB)
    job = {"out": str(making.absolute()), "facts": facts, "most_pixels": most_pixels}
    job["language"] = spoken()
    ((_, answer),) = run_sandboxed(photo_converting, job, [path.absolute()], limits, workers=1)
    if isinstance(answer, Failure):
        raise _refused(path, answer.reason, "")
    if answer["reason"] == "no-room":
        raise full_disk(making.parent)
    if answer["reason"]:
        raise _refused(path, answer["reason"], answer["detail"])


def _refused(path: Path, reason: str, detail: str) -> UserError:
    """Return why a photo is not scanned, in sentences, of which `detail` are some or none."""
    why = detail or text(_REASONS.get(reason, _REASONS["damaged"]))
    return UserError(unjudged(joined(text("unscanned", name=str(path)), why)))


def _advice(error: DamagedImage) -> str:
    """Return what an error says to a person; a decoder's own message says nothing to one."""
    if ";" in str(error):
        return text("refused_dicom_reason", reason=str(error))
    return str(error) if isinstance(error, NotScannedError) else ""


def _prepare() -> None:
    # libvips starts threads, which do not outlive a fork: each process imports it itself.
    import cv2
    from PIL import ImageCms  # noqa: F401

    convert_kernel()
    cv2.setNumThreads(1)


@sandboxed(_prepare)
def photo_converting(job: dict[str, Any]) -> Work:
    """Return what writes a file's pixels to the job's `out`, or says what failed."""
    vips = import_vips()  # before the memory is limited

    def convert(path: Path) -> dict[str, str]:
        try:
            with speaking(job["language"]):
                _convert_odd(vips, path, Path(job["out"]), job["facts"], job["most_pixels"])
        except DamagedImage as error:
            return {"reason": error.reason, "detail": _advice(error)}
        except vips.Error as error:
            return {"reason": damaged(error).reason, "detail": ""}
        except MemoryError:
            return {"reason": "decode-memory", "detail": ""}
        except OSError as error:
            return {"reason": "no-room" if no_room(error) else "damaged", "detail": ""}
        return {"reason": "", "detail": ""}

    return for_each(convert)


def _convert_odd(vips: Any, path: Path, out: Path, facts: dict[str, Any], most_pixels: int) -> None:
    """Convert a file; a JPEG that libjpeg warns of, although its pixels are sound, made plain."""
    try:
        _convert(vips, path, out, facts, most_pixels)
    except vips.Error as error:
        if facts["suffix"] != ".jpg" or path.stat().st_size > _MOST_REPAIRED_BYTES:
            raise
        data, warning = path.read_bytes(), str(error)
        stored = stored_colours(data, "JPEG")
        orientation = orientation_of(data, "JPEG")

        def read(jpeg: bytes) -> None:
            if jpeg is data:
                raise ValueError(warning)
            plain = out / "plain.jpg"
            write_private(plain, jpeg)
            try:
                _convert(
                    vips, plain, out, facts, most_pixels, stored=stored, orientation=orientation
                )
            except vips.Error as again:
                raise ValueError(str(again)) from None
            finally:
                plain.unlink()

        try:
            read_jpeg(data, read)
        except DamagedImage:
            raise
        except ValueError:
            raise error from None


def _convert(
    vips: Any,
    path: Path,
    out: Path,
    facts: dict[str, Any],
    most_pixels: int,
    *,
    stored: StoredColours | None = None,
    orientation: int | None = None,
) -> None:
    """Write a file's pixels; `stored` and `orientation` are its own unless they are given."""
    suffix = facts["suffix"]
    image = open_image(vips, str(path), suffix)
    Header(
        suffix=suffix,
        size_bytes=path.stat().st_size,
        width=image.width,
        height=image.height,
        pages=2 if _is_animated(path, suffix) else value(image, "n-pages", 1),
        bits=_BITS.get(image.format, 32),
        colours=image.interpretation,
        interlaced=bool(value(image, "interlaced", 0)),
    ).check(most_pixels)
    room = sum(3 * width * height for width, height in level_sizes(image.width, image.height))
    if shutil.disk_usage(out).free < room:
        raise OSError(28, "No space left on device")
    orientation = orientation or value(image, "orientation", 1)
    if image.hasalpha():
        image = image.flatten(background=[255] * (image.bands - 1))
    if facts["decoding"] != SRGB:
        stored = PLAIN
    colours = FileColours(stored or _stored_colours(image, path, suffix))
    if image.bands not in (1, 3):
        raise DamagedImage(
            f"it has {image.bands} channels; save it as RGB, for example as JPEG",
            "unsupported-format",
        )
    writer = PixelWriter(out, image.width, image.height)
    try:
        region = vips.Region.new(image)
        strip = max(_LEAST_ROWS, _STRIP_BYTES // (3 * image.width))
        for top in range(0, image.height, strip):
            rows = min(strip, image.height - top)
            content = region.fetch(0, top, image.width, rows)
            pixels_HWC = np.frombuffer(content, np.uint8).reshape(rows, image.width, image.bands)
            grey = image.bands == 1
            writer.write(colours.grey(pixels_HWC[..., 0]) if grey else colours.rgb(pixels_HWC))
    except BaseException:
        writer.abandon()
        raise
    facts = facts | {"colours": sorted(colours.notes)}
    writer.close(facts, orientation if 1 <= orientation <= 8 else 1)


def _stored_colours(image: Any, path: Path, suffix: str) -> StoredColours:
    if suffix == ".tif":
        there = image.get_typeof(_PROFILE) != 0
        return StoredColours(bytes(image.get(_PROFILE))) if there else PLAIN
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        return stored_colours(data, FORMATS[suffix])


def _is_animated(path: Path, suffix: str) -> bool:
    """Tell an animated PNG, which libvips does not support: its header declares the frames."""
    if suffix != ".png":
        return False
    with path.open("rb") as file:
        head = file.read(1 << 16)
    return b"acTL" in head.partition(b"IDAT")[0]
