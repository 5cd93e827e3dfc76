"""Cost of decoding an image, known before any pixel is decoded: pixels, passes and memory.

A file of a few kilobytes may name fifty million pixels, ask for hundreds of passes over them, or
need a multiple of its pixels' size while it is decoded. All three are bounded by `max_pixels`.
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skindx.imaging.image_formats import MOST_SEGMENTS, DamagedImage

if TYPE_CHECKING:
    from PIL import Image

MAX_SIDE = 65_535
"""Pixels, as in JPEG: one row of more would let a run-length code name gigabytes."""
_BYTES = 7
"""Memory that decoding may take, for each pixel of the cap and beside a band: 366 MB of the 550
that a screening process has, which needs the rest itself."""
_FREE_BYTES = 64 << 20
"""Memory that decoding may take whatever the cap."""
_PASSES = 12
"""Passes over an image of as many pixels as the cap; encoders make about ten."""
MAX_PASSES = 100
"""Most passes over an image of any size."""

# Bytes a pixel at the peak, measured at 49 million pixels with Pillow 12 and libwebp 1.6.
_RESULT_BYTES = 3
_BAND_BYTES = 16 << 20
"""Copies of a band of Pillow's pixels, while it is converted."""
_WEBP_BYTES = 16
"""Two canvases of libwebp's animation decoder, its copy and Pillow's."""
_PLAIN_WEBP_BYTES = 7
"""Bytes a pixel of one opaque image: libwebp's own pixels and the result."""
SCALED_MOST = 4
"""A JPEG that is decoded at a smaller scale may have so many times the pixels of the cap."""
_STORED_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2}
"""Bytes a pixel of Pillow's modes; every other mode takes 4."""
_ANIMATED, _TRANSPARENT = 0x02, 0x10
"""Flags of an extended WebP."""
_PNG_CHANNELS = {2: 3, 4: 2, 6: 4}
"""Channels by the header's colour type, else 1; the byte before the type is bits a channel."""
_SAMPLES = {"Gray": 1.0, "420": 1.5, "411": 1.5, "422": 2.0, "440": 2.0}
"""Samples a pixel of a JPEG by its subsampling; without: 3, or 4 of four inks."""

_JPEG_IN_TIFF = (6, 7)
# JPEG's markers that have a segment, as the pattern finds them; frames, and the progressive ones.
_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd7\xff])")
_SEGMENTS = frozenset({*range(0x02, 0xD0), *range(0xD8, 0xFF)})
_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """Cost of decoding an image."""

    width: int
    height: int
    pixel_bytes: float
    """Memory at the peak, the result included, for each pixel."""
    passes: int = 1
    more_bytes: int = 0
    """Memory that does not depend on the number of pixels."""
    scaled: bool = False
    """Whether it is decoded at a smaller scale; `more_bytes` then counts its pixels."""

    def check(self, max_pixels: int) -> None:
        """Raise DamagedImage for more than `max_pixels` allow.

        reason: too-many-pixels, decode-memory, or decode-timeout for too many passes.
        """
        whole_cap = max_pixels * (SCALED_MOST if self.scaled else 1)
        check_size(self.width, self.height, whole_cap)
        pixels = self.width * self.height
        size = f"{self.width} x {self.height} pixels"
        needed = round(pixels * self.pixel_bytes) + self.more_bytes
        most = max(_BYTES * max_pixels + _BAND_BYTES, _FREE_BYTES)
        if needed > most:
            message = (
                f"decoding {size} of this kind takes {needed / 1e6:.0f} MB, more than the cap "
                f"of {most / 1e6:.0f}; 8 bits a channel, without transparency, take the least"
            )
            raise DamagedImage(message, "decode-memory")
        most_passes = _PASSES * (2 if self.scaled else 1)  # to read on: few pixels are made
        if self.passes > MAX_PASSES or self.passes * pixels > most_passes * max_pixels:
            message = f"it is built of too many passes: {self.passes} over {size}"
            raise DamagedImage(message, "decode-timeout")


def check_size(width: int, height: int, max_pixels: int) -> None:
    """Raise DamagedImage for an image whose header names too many pixels."""
    if width * height > max_pixels or max(width, height) > MAX_SIDE:
        side = "" if width * height > max_pixels else f", or of {MAX_SIDE} on a side"
        message = f"{width} x {height} pixels are more than the cap of {max_pixels}{side}"
        raise DamagedImage(message, "too-many-pixels")


def jpeg_cost(
    jpeg: bytes,
    width: int,
    height: int,
    colours: str,
    subsampling: str,
    *,
    scaled: tuple[int, int] | None = None,
) -> DecodeCost:
    """Return the cost of a JPEG; the four in the middle are as `simplejpeg` reads them.

    `scaled`: the (height, width) at which it is decoded, if that is not its own.
    """
    inks = colours in ("CMYK", "YCCK")
    passes = jpeg_passes(jpeg)
    # With several passes the decoder keeps all coefficients, 2 bytes each, until the last.
    samples = _SAMPLES.get(subsampling, 4.0 if inks else 3.0)
    result = 4 + _RESULT_BYTES if inks else _RESULT_BYTES
    kept = 2 * samples if passes > 1 else 0
    if inks or not scaled or scaled == (height, width):
        return DecodeCost(width, height, result + kept, passes)
    result_bytes = result * scaled[0] * scaled[1]
    return DecodeCost(width, height, kept, passes, result_bytes, scaled=True)


def jpeg_passes(jpeg: bytes) -> int:
    """Return how many scans of a JPEG a decoder reads; a baseline one of all colours is the last.

    Counted as libjpeg reads: scans inside of other segments, such as thumbnails, and behind the
    end of the image are none. Raises DamagedImage for more segments than any camera writes.
    """
    passes, progressive, colours, at, length = 0, False, b"", 2, len(jpeg) - 1
    for _ in range(MOST_SEGMENTS):
        if at < length and jpeg[at] == 0xFF and jpeg[at + 1] in _SEGMENTS:
            marker, at = jpeg[at + 1], at + 2
        elif match := _MARKER.search(jpeg, at):  # bytes that belong to no segment come first
            marker, at = match[1][0], match.end()
        else:
            break
        if marker == 0xD9:
            break
        if marker in _FRAMES:
            progressive, colours = marker in _PROGRESSIVE, jpeg[at + 7 : at + 8]
        elif marker == 0xDA:
            passes += 1
            if passes == 1 and not progressive and jpeg[at + 2 : at + 3] == colours:
                break
        at += max(2, int.from_bytes(jpeg[at : at + 2]))
    else:
        raise DamagedImage(f"the file has more than {MOST_SEGMENTS} segments", "decode-timeout")
    return max(1, passes)


def webp_cost(webp: bytes) -> DecodeCost:
    """Return the cost of a WebP, by its first 30 bytes: Pillow takes memory as it opens one."""
    kind, head = webp[12:16], webp[20:30]
    if len(head) < 10 or kind not in (b"VP8X", b"VP8L", b"VP8 "):
        raise DamagedImage("the header of the file is cut short")
    if kind == b"VP8X":
        width, height = (int.from_bytes(head[at : at + 3], "little") + 1 for at in (4, 7))
    elif kind == b"VP8L":
        bits = int.from_bytes(head[1:5], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    else:
        width, height = (int.from_bytes(head[at : at + 2], "little") & 0x3FFF for at in (6, 8))
    return DecodeCost(width, height, _PLAIN_WEBP_BYTES if is_plain_webp(webp) else _WEBP_BYTES)


def is_plain_webp(webp: bytes) -> bool:
    """Tell a WebP of one opaque image from animations and from what lets something shine through.

    By its first 30 bytes.
    """
    kind, head = webp[12:16], webp[20:30]
    if kind == b"VP8L":
        return len(head) > 4 and not head[4] & 0x10
    return kind == b"VP8 " or (kind == b"VP8X" and not head[0] & (_ANIMATED | _TRANSPARENT))


def opened_cost(image: "Image.Image", data: bytes) -> DecodeCost:
    """Return the cost of an image that Pillow has opened, not yet loaded: PNG, BMP, TIFF, HEIF."""
    width, height = image.size
    stored: float = _STORED_BYTES.get(image.mode, 4)
    if image.format == "PNG":
        if getattr(image, "is_animated", False):
            stored *= 2  # a copy, on which the next frame would be laid
        # A PNG of 16 bits unpacks to more than is stored, which takes time but no memory.
        stored = max(stored, _PNG_CHANNELS.get(data[25], 1) * data[24] / 8)
    # What lets something shine through is laid on white: one more band, and the white one.
    bands = _BAND_BYTES * (2 if image.has_transparency_data else 1)
    if image.format != "TIFF":
        return DecodeCost(width, height, stored + _RESULT_BYTES, 1, bands)
    tags = image.tag_v2  # type: ignore[attr-defined]
    across, down = tags.get(322, width), tags.get(323, min(tags.get(278, height), height))
    bits = tags.get(258, (1,))
    part_bytes = across * down * tags.get(277, 1) * -(-max(bits) // 8)
    if tags.get(259, 1) == 1 and 322 not in tags:
        part_bytes = 0  # rows that are not compressed are read one by one
    passes = 1
    if tags.get(259) in _JPEG_IN_TIFF:  # each part may hide as many passes as a file of its own
        passes = -(-data.count(b"\xff\xda") * across * down // max(1, width * height))
    return DecodeCost(width, height, stored + _RESULT_BYTES, max(1, passes), part_bytes + bands)
