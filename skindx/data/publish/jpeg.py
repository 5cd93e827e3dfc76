"""A JPEG without anything but its image: segments are copied by a list, never by what they say.

What goes: EXIF with its thumbnail and GPS, XMP, ICC, IPTC, comments, vendors' segments, bytes
between segments and everything after the end of the first image (a second image, an archive).
"""

import re
from collections.abc import Iterator

_SOI, _EOI, _SOS, _APP0, _APP14 = 0xD8, 0xD9, 0xDA, 0xE0, 0xEE
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_KEPT = {*_FRAMES, 0xC4, 0xCC, _SOS, 0xDB, 0xDC, 0xDD}
"""Frame, Huffman and arithmetic tables, scan, quantisation, lines, restart interval."""
_MARKER = re.compile(rb"\xff+[^\xff]", re.DOTALL)
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
            raise NotStrippable("it has four colours")
        elif marker in _KEPT:
            parts.append(data[start:end])
    return b"".join([*parts, b"\xff\xd9"])


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (marker, start, end) up to the end of the first image; a scan includes its data."""
    if data[:2] != b"\xff\xd8":
        raise NotStrippable("it does not begin as a JPEG")
    at = 2
    while True:
        found = _MARKER.search(data, at)
        if not found:
            raise NotStrippable("it has no end")
        at = found.end() - 2
        marker = data[at + 1]
        if marker == _EOI:
            return
        if marker in (0x00, 0x01, _SOI) or 0xD0 <= marker <= 0xD7:
            raise NotStrippable(f"marker {marker:02x} stands outside a scan")
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == _SOS:
            following = _SCAN_END.search(data, end)
            if not following:
                raise NotStrippable("its scan has no end")
            end = following.start()
        yield marker, at, end
        at = end
