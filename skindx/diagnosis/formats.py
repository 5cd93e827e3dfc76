"""What a photo is by its first bytes: JPEG, PNG, WebP or HEIC; names are never believed."""

from typing import Literal

Format = Literal["JPEG", "PNG", "WebP", "HEIC"]

_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
"""Brands of HEIF files; `mif1` and `msf1` are of any coding, which libheif then looks at."""


def photo_format(head: bytes) -> Format | None:
    """Return the format that the first 12 bytes show; None for everything that is not taken.

    A dataset takes more (`skindx.imaging.formats`); cameras and browsers make these.
    """
    if head[:3] == b"\xff\xd8\xff":
        return "JPEG"
    if head[:8] == b"\x89PNG\r\n\x1a\n":
        return "PNG"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    if head[4:8] == b"ftyp" and head[8:12] in _BRANDS:
        return "HEIC"
    return None
