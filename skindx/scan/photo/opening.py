"""An untrusted file becomes a pixel store, in a process that may hang, crash or be bombed."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from skindx.core.atomic_files import FolderKind, atomic_folder, sha256_file
from skindx.core.errors import UserError, full_disk, needs_room, no_room
from skindx.core.machine import how_to_install, require_extra
from skindx.imaging.decode import orientation_of
from skindx.imaging.formats import HEAD, DamagedImage, image_suffix, photo_format, unusable
from skindx.imaging.jpeg_repair import read_jpeg
from skindx.imaging.sandboxed_images import can_read_heic, decode_heic
from skindx.scan.photo.limits import (
    BASE_S,
    MAX_BYTES,
    MAX_PIXELS,
    MEMORY_MB,
    SECONDS_A_MB,
    Header,
)
from skindx.scan.photo.pixels import INDEX, PixelStore, PixelWriter, level_sizes
from skindx.scan.photo.vips import damaged, import_vips, open_image, value
from skindx.workers.sandbox import Failure, Limits, Work, for_each, run_sandboxed, sandboxed

_STRIP_BYTES, _LEAST_ROWS = 4 << 20, 16
"""Pixels that are decoded at once, in whole rows."""
_STORE = FolderKind("a photo's pixels", INDEX, ("*",))
_MOST_REPAIRED_BYTES = 200 << 20
_BITS = {"uchar": 8, "char": 8, "ushort": 16, "short": 16}
_SAID = {
    "decode-memory": "decoding it takes too much memory",
    "decode-timeout": "decoding it takes too long",
    "decode-crash": "its decoder gave up",
    "damaged": "it is damaged or cut short",
}


def photo_store(path: Path, folder: Path, most_pixels: int = MAX_PIXELS) -> PixelStore:
    """Return the pixel store of a photo, made in `folder` unless it is there already.

    Raises UserError, with what to do, for a file that is no photo to be scanned, and for one
    of more than `most_pixels`.
    """
    if not (folder / INDEX).is_file():
        require_extra("scan", "pyvips", purpose="reading large photos")
        sha256, suffix = _look(path)
        with needs_room(folder.parent), atomic_folder(folder, _STORE) as making:
            facts = {"name": path.name, "sha256": sha256}
            if suffix == ".heic":
                _from_heic(path, making, facts, most_pixels)
            else:
                _from_file(path, making, facts | {"suffix": suffix}, most_pixels)
    return PixelStore.open(folder)


def _look(path: Path) -> tuple[str, str]:
    """Return a file's SHA-256 and suffix. Raises UserError."""
    try:
        size_bytes = path.stat().st_size
        if not path.is_file() or size_bytes > MAX_BYTES:
            reason = f"has more than {MAX_BYTES >> 30} GB" if path.is_file() else "is no file"
            raise UserError(f"{path} {reason}; give a photo, or parts of it.")
        with path.open("rb") as file:
            head = file.read(HEAD)
        sha256 = sha256_file(path)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; check the path.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); give a file.") from None
    suffix = ".heic" if photo_format(head[:16]) == "HEIC" else image_suffix(head[:16])
    if suffix == ".heic" and not can_read_heic():
        raise UserError(
            f"{path} is HEIC, and pillow-heif is not installed; save it as JPEG, or run "
            f"{how_to_install('app')}."
        )
    if suffix in (None, ".bmp"):
        why = "it is a BMP" if suffix else unusable(head)[1]
        raise UserError(f"{path} cannot be scanned ({why}); give JPEG, PNG, WebP, TIFF or HEIC.")
    return sha256, suffix


def _from_heic(path: Path, making: Path, facts: dict[str, Any], most_pixels: int) -> None:
    try:
        pixels_HW3 = decode_heic(path.read_bytes())
        height, width = pixels_HW3.shape[:2]
        header = Header(".heic", path.stat().st_size, width, height, 1, 8, "srgb", False)
        header.check(most_pixels)
    except DamagedImage as error:
        raise _refused(path, error.reason, str(error)) from None
    writer = PixelWriter(making, width, height)
    writer.write(pixels_HW3)
    writer.close(facts)


def _from_file(path: Path, making: Path, facts: dict[str, Any], most_pixels: int) -> None:
    limits = Limits(BASE_S + SECONDS_A_MB * (path.stat().st_size >> 20), MEMORY_MB)
    job = {"out": str(making.absolute()), "facts": facts, "most_pixels": most_pixels}
    ((_, answer),) = run_sandboxed(photo_converting, job, [path.absolute()], limits, workers=1)
    if isinstance(answer, Failure):
        raise _refused(path, answer.reason, "")
    if answer["reason"] == "no-room":
        raise full_disk(making.parent)
    if answer["reason"]:
        raise _refused(path, answer["reason"], answer["detail"])


def _refused(path: Path, reason: str, detail: str) -> UserError:
    """Return one sentence; a decoder's own message does not help a user."""
    if ";" not in detail:
        detail = f"{_SAID.get(reason, _SAID['damaged'])}; take or export it again"
    return UserError(f"{path} cannot be scanned: {detail}.")


def _prepare() -> None:
    # libvips starts threads, which do not outlive a fork: each process imports it itself.
    import cv2

    cv2.setNumThreads(1)


@sandboxed(_prepare)
def photo_converting(job: dict[str, Any]) -> Work:
    """Return what writes a file's pixels to the job's `out`, or says what failed."""
    vips = import_vips()  # before the memory is limited

    def convert(path: Path) -> dict[str, str]:
        try:
            _convert_odd(vips, path, Path(job["out"]), job["facts"], job["most_pixels"])
        except DamagedImage as error:
            return {"reason": error.reason, "detail": str(error)}
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
        orientation = orientation_of(data, "JPEG")

        def read(jpeg: bytes) -> None:
            if jpeg is data:
                raise ValueError(warning)
            plain = out / "plain.jpg"
            plain.write_bytes(jpeg)
            try:
                _convert(vips, plain, out, facts, most_pixels, orientation=orientation)
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
    orientation: int | None = None,
) -> None:
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
    if image.bands == 1:
        image = image.bandjoin([image, image])
    if image.bands != 3:
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
            writer.write(np.frombuffer(content, np.uint8).reshape(rows, image.width, 3))
    except BaseException:
        writer.abandon()
        raise
    writer.close(facts, orientation if 1 <= orientation <= 8 else 1)


def _is_animated(path: Path, suffix: str) -> bool:
    """Tell an animated PNG, which libvips does not support: its header declares the frames."""
    if suffix != ".png":
        return False
    with path.open("rb") as file:
        head = file.read(1 << 16)
    return b"acTL" in head.partition(b"IDAT")[0]
