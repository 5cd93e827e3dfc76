"""Image formats by their first bytes, which alone are trusted, and why bytes become no image.

JPEGs of phones that libjpeg warns of although every pixel is sound get a plain header and tail. A
strict decoder takes each warning for damage. Here only what stands around the pixels is changed,
never the pixels themselves, so that whatever is wrong with these is still told.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

_SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\xff\xd8\xff", ".jpg"),
    (0, b"\x89PNG\r\n\x1a\n", ".png"),
    (8, b"WEBP", ".webp"),
    (0, b"BM", ".bmp"),
    (0, b"II*\x00", ".tif"),
    (0, b"MM\x00*", ".tif"),
)


HEAD = 512
"""Bytes that `unusable` wants to see: comments may stand before an SVG's first element."""

_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
"""Major brands of ISO base media files that hold images (ISO/IEC 23008-12). `mif1` and `msf1` are
HEIF of any coding; libheif decides whether it can decode it."""

_DICOM = "a DICOM file"
_UNREAD: tuple[tuple[int, bytes, str], ...] = (
    (0, b"GIF87a", "a GIF"),
    (0, b"GIF89a", "a GIF"),
    (4, b"ftypavif", "an AVIF file"),
    (4, b"ftypavis", "an AVIF file"),
    *((4, b"ftyp" + brand, "a HEIC file") for brand in _HEIF_BRANDS),
    (0, b"\xff\x0a", "a JPEG XL file"),
    (4, b"JXL \r\n\x87\n", "a JPEG XL file"),
    (4, b"jP  \r\n\x87\n", "a JPEG 2000 file"),
    (0, b"\xff\x4f\xff\x51", "a JPEG 2000 file"),
    (0, b"\0\0\x01\0", "an icon"),
    (0, b"8BPS", "a Photoshop file"),
    (0, b"II+\0", "a BigTIFF file"),
    (0, b"MM\0+", "a BigTIFF file"),
    (128, b"DICM", _DICOM),
)


def image_suffix(head: bytes) -> str | None:
    """Return the suffix of the image format that the first bytes show, None for anything else.

    `head` needs at least 12 bytes. GIF and SVG are refused: one is a film, the other a program.
    `unusable` says why there is no suffix.
    """
    if head[128:132] == b"DICM":
        return None  # its preamble may pass for a TIFF, and its header names a patient
    for offset, signature, suffix in _SIGNATURES:
        if head[offset : offset + len(signature)] == signature:
            if suffix == ".webp" and head[:4] != b"RIFF":
                continue
            return suffix
    return None


def unusable(head: bytes, claimed: str = "") -> tuple[str, str]:
    """Return (reason, why) for bytes that have no suffix: a format not read, or no image.

    `claimed` is the format that the sender claims, "" for none. `head` should have HEAD bytes.
    """
    claim = f" and claims to be {claimed}" if claimed else ""
    if not head:
        return "not-a-picture", f"the file is empty{claim}; fetch or copy it again"
    name = unread_format(head)
    if name == _DICOM:
        return "unsupported-format", f"it is {name}; a recipe's source of `kind: dicom` reads it"
    if name:
        return (
            "unsupported-format",
            f"it is {name}, a format that is not read; JPEG, PNG, WebP, BMP and TIFF are: convert "
            "it to one of them",
        )
    return "not-a-picture", f"it begins with {head[:8]!r}{claim}; no image format does"


def unread_format(head: bytes) -> str:
    """Return what a file is, such as a GIF, of a format that is not read; "" for any other."""
    for offset, signature, name in _UNREAD:
        if head[offset : offset + len(signature)] == signature:
            return name
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    page = b"<html" in start or start.startswith(b"<!doctype html")  # may hold drawings
    may_be_svg = start.startswith((b"<svg", b"<?xml", b"<!")) and not page
    return "an SVG drawing" if may_be_svg and b"<svg" in start else ""


PhotoFormat = Literal["JPEG", "PNG", "WebP", "HEIC", "DICOM"]
"""Formats of an upload: what cameras and clinics make. A dataset takes others as well."""

SHOWN_BY_NONE = ("HEIC", "DICOM")
"""Formats that most browsers cannot show."""


def photo_format(head: bytes) -> PhotoFormat | None:
    """Return the format that the first HEAD bytes of an upload show; None for any other."""
    if head[128:132] == b"DICM":  # whatever its preamble passes for
        return "DICOM"
    if head[:3] == b"\xff\xd8\xff":
        return "JPEG"
    if head[:8] == b"\x89PNG\r\n\x1a\n":
        return "PNG"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    if head[4:8] == b"ftyp" and head[8:12] in _HEIF_BRANDS:
        return "HEIC"
    return None


class DamagedImage(ValueError):  # noqa: N818
    """These bytes do not become an image; the message says why, `reason` is a fixed short word.

    not-a-picture, unsupported-format, too-many-pixels, decode-memory (it takes too much memory),
    decode-timeout (it takes too long), damaged.
    """

    def __init__(self, message: str, reason: str = "damaged") -> None:
        super().__init__(message)
        self.reason = reason


def refusal(error: Exception) -> DamagedImage:
    """Return what an exception from a decoder means.

    Hostile bytes raise every kind (SyntaxError, struct.error, zlib.error …); all of them mean the
    same to a dataset, but for a lack of memory.
    """
    if isinstance(error, DamagedImage):
        return error
    message = " ".join(str(error).split()) or type(error).__name__
    short = isinstance(error, MemoryError) or "memory" in message.lower()
    return DamagedImage(message, "decode-memory" if short else "damaged")


T = TypeVar("T")

_END = b"\xff\xd9"
_SCAN, _JFIF, _ADOBE, _COMMENT = 0xDA, 0xE0, 0xEE, 0xFE
_SEQUENTIAL = (0xC0, 0xC1)
_NO_FRAMES = (0xC4, 0xC8, 0xCC)
_JFIF_REVISION = b"\x01\x02"
_WHOLE_SPECTRUM = b"\x00\x3f\x00"
"""First and last coefficient, and bits of each, as a sequential scan has them."""
# No repetition before a class: a long run of FF would be read anew from each of its bytes.
_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd8\xff])")
"""Marker with a segment; that of the end has none, and nothing behind it is read."""
_MARKER_IN_SCAN = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])")
_FILL = b"\xff"
"""Byte that may be repeated before a marker."""
MOST_SEGMENTS = 10_000
"""Most segments of a JPEG; cameras write dozens. One takes 4 bytes and a step in Python."""
_BEHIND_PIXELS = (_END[1], 0xD8, None)
"""Markers behind the last scan: the end, the start of another image, or none."""

_LEFT_OVER = re.compile(r"(\d+) extraneous bytes before marker 0xd9")
_TRAILER = re.compile(rb"\x00\x00.{0,6}[ -~]{4}", re.DOTALL)
"""What cameras append: Samsung's records (two zeros, a kind, a length, a name), films (a length, a
kind)."""
_TRAILER_BYTES = 12
_LEAST_PADDING = 3
"""Fewest equal bytes that count as padding: two may be the last ones of a plain image."""
_HELD = 8
"""Most bytes that libjpeg reads ahead of the bits that it needs."""


@dataclass
class _Jpeg:
    """A JPEG taken apart."""

    head: bytes
    """All bytes up to the pixels of the last scan."""
    pixels: bytes
    """Data of the last scan and all bytes up to the next marker."""
    ended: bool
    """Whether the next marker is that of the end."""


def read_jpeg(jpeg: bytes, read: Callable[[bytes], T]) -> T:
    """Return what `read`, a strict decoder, makes of a JPEG; if it refuses, of it made plain.

    Raises what `read` raises for the file as it is where the pixels are not sound.
    """
    try:
        return read(jpeg)
    except DamagedImage:
        raise  # too large, say: no decoder has seen it yet
    except ValueError as error:
        try:
            return _read_plain(_taken_apart(jpeg), read)
        except ValueError:
            raise error from None


def _read_plain(jpeg: _Jpeg, read: Callable[[bytes], T]) -> T:
    """Read a JPEG that was taken apart, without what is appended. Raises ValueError for damage."""
    pixels, tries = jpeg.pixels, 0
    while True:
        tries += 1
        try:
            return read(jpeg.head + pixels + _END)
        except ValueError as error:
            left_over = _LEFT_OVER.search(str(error))
            count = int(left_over[1]) if left_over else 0
            if tries > _HELD or not 0 < count <= len(pixels):
                raise
            # Once it is known that something is appended, a byte of it may be left.
            first = pixels is jpeg.pixels
            if not (_only_appended(jpeg, count) if first else count < _LEAST_PADDING):
                raise
        pixels = pixels[:-count]


def _taken_apart(jpeg: bytes) -> _Jpeg:
    """Return a JPEG whose header holds what its pixels need, in the form that the standard names.

    Profiles, comments, applications' notes and bytes between segments are left out; the revision
    of JFIF, Adobe's code of the colours and a sequential scan's range of coefficients are set
    right. Raises ValueError for a header that cannot be followed.
    """
    parts, sequential, colours, at = [b"\xff\xd8"], False, 0, 2
    scans = 0
    for _ in range(MOST_SEGMENTS):
        match = _MARKER.search(jpeg, at)
        if not match:
            break
        if scans and jpeg[at : match.start()].strip(_FILL):
            break  # a scan whose marker is damaged would be lost
        marker, at = match[1][0], match.end()
        size = int.from_bytes(jpeg[at : at + 2])
        body, at = jpeg[at + 2 : at + size], at + size
        if size < 2 or at > len(jpeg):
            break
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAMES:
            sequential, colours = marker in _SEQUENTIAL, int.from_bytes(body[5:6])
        elif marker == _JFIF and body[:5] == b"JFIF\0":
            body = body[:5] + _JFIF_REVISION + body[7:]
        elif marker == _ADOBE and body[:5] == b"Adobe":
            if len(body) < 12 or body[11] > 2:  # for which libjpeg takes the usual one
                body = b"Adobe\0\x64" + bytes(4) + (b"\2" if colours == 4 else b"\1")
        elif marker in range(0xE0, 0xF0) or marker == _COMMENT:
            continue
        if marker == _SCAN and sequential:
            body = body[:-3] + _WHOLE_SPECTRUM
        parts.append(bytes((0xFF, marker)) + (len(body) + 2).to_bytes(2) + body)
        if marker != _SCAN:
            continue
        following = _MARKER_IN_SCAN.search(jpeg, at)
        pixels = jpeg[at : following.start()].rstrip(_FILL) if following else jpeg[at:]
        next_marker = following[1][0] if following else None
        last = sequential and body[:1] == colours.to_bytes(1)
        if last or next_marker in _BEHIND_PIXELS:
            ended = next_marker == _END[1]
            return _Jpeg(b"".join(parts), pixels, ended)
        parts.append(pixels)
        at, scans = at + len(pixels), scans + 1
    raise ValueError("the header of this JPEG cannot be read")


def _only_appended(jpeg: _Jpeg, count: int) -> bool:
    """Tell whether the last `count` bytes before the end are none of the pixels.

    A wrong bit in mid-stream can make a decoder end early, and the bytes that it leaves over are
    the only sign of it. They are none of the pixels if they are all the same, as padding is, or,
    where no end is marked, begin as what cameras append.
    """
    end = len(jpeg.pixels) - count
    run = len(jpeg.pixels) - len(jpeg.pixels.rstrip(jpeg.pixels[-1:]))
    if run >= max(count, _LEAST_PADDING):
        return True
    # The decoder holds the first ones already when it sees that it is done.
    first = jpeg.pixels[max(0, end - _HELD) : end + _TRAILER_BYTES]
    return not jpeg.ended and _TRAILER.search(first) is not None


_PNG_NOTES = (b"tEXt", b"zTXt", b"iTXt", b"iCCP")


def without_text(png: bytes) -> bytes:
    """Return a PNG without its notes and its colour profile, of which Pillow unpacks 1 MB at most.

    What cannot be followed stays as it is.
    """
    parts, at = [png[:8]], 8
    while at + 8 <= len(png):
        end = at + 12 + int.from_bytes(png[at : at + 4])
        if png[at + 4 : at + 8] not in _PNG_NOTES:
            parts.append(png[at:end])
        at = end
    return b"".join(parts)
