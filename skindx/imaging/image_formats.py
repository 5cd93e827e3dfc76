"""Image formats by their first bytes, which alone are trusted, and why bytes become no image."""

from typing import Literal

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
    name = _unread_format(head)
    if name == _DICOM:
        return "unsupported-format", f"it is {name}; a recipe's source of `kind: dicom` reads it"
    if name:
        return (
            "unsupported-format",
            f"it is {name}, a format that is not read; JPEG, PNG, WebP, BMP and TIFF are: convert "
            "it to one of them",
        )
    return "not-a-picture", f"it begins with {head[:8]!r}{claim}; no image format does"


def _unread_format(head: bytes) -> str:
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
