"""Orientation by EXIF, and images turned by it."""

import io
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from skindx.imaging.pillow import without_text
from skindx.imaging.silence import hushed

# EXIF tag 274 (Orientation): how to turn the stored pixels so that up is up.
_UPRIGHT = {
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.swapaxes(0, 1),
    6: lambda x: x[::-1].swapaxes(0, 1),
    7: lambda x: x[::-1, ::-1].swapaxes(0, 1),
    8: lambda x: x.swapaxes(0, 1)[::-1],
}


def turned(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    turn = _UPRIGHT.get(orientation)
    return np.ascontiguousarray(turn(pixels) if turn else pixels)


def orientation_of(data: bytes, kind: str) -> int:
    """Return EXIF's orientation, 1..8; 1 (upright) where nothing says otherwise."""
    if kind == "JPEG" and not has_metadata(data):
        return 1  # nine times as fast as asking Pillow
    # Broken metadata beside sound pixels says nothing about which way is up; long notes may hide
    # what does: then a PNG is asked once more without them.
    for readable in (data, without_text(data)) if kind == "PNG" else (data,):
        with suppress(Exception):
            return _read_orientation(readable, kind)
    return 1


def _read_orientation(data: bytes, kind: str) -> int:
    from PIL import Image

    with hushed(), Image.open(io.BytesIO(data), formats=(kind,)) as image:
        return int(image.getexif().get(274, 1))


def has_metadata(jpeg: bytes) -> bool:
    """Tell whether an APP1 segment, which alone holds EXIF or XMP, may stand before the pixels."""
    at = 2
    while jpeg[at : at + 1] == b"\xff":
        marker = jpeg[at + 1 : at + 2]
        if marker == b"\xda":  # the pixels begin
            return False
        if marker == b"\xe1":
            return True
        at += 2 + int.from_bytes(jpeg[at + 2 : at + 4])
    return True  # unusual, so let Pillow look
