"""What libjpeg warns of around sound pixels does not refuse a photo; damage inside of them does."""

import io
import random
import struct
from collections.abc import Callable

import numpy as np
import pytest
from paint_images import encode, paint
from PIL import Image

from skindx.diagnosis.photo_checks import open_photo
from skindx.imaging.decode import decode, decode_small, upright_jpeg_size
from skindx.imaging.image_formats import DamagedImage

PIXELS = paint(1)
PLAIN = encode(PIXELS, "JPEG")
END = b"\xff\xd9"
SAMSUNG = b"\0\0\x01\x0a\x0e\0\0\0Image_UTC_Data1467" + b"SEFH\x6b\0\0\0" + bytes(20) + b"SEFT"
FILM = b"\0\0\0\x18ftypmp42" + bytes(range(256)) * 4


def _segment(marker: int, body: bytes) -> bytes:
    return bytes((0xFF, marker)) + struct.pack(">H", len(body) + 2) + body


def _spectrum(jpeg: bytes) -> bytes:
    scan = jpeg.index(b"\xff\xda")
    return jpeg[: scan + 11] + b"\0" + jpeg[scan + 12 :]


ODD: dict[str, Callable[[bytes], bytes]] = {
    "scan of other coefficients": _spectrum,
    "no end": lambda jpeg: jpeg[:-2],
    "no end, Samsung's records": lambda jpeg: jpeg[:-2] + SAMSUNG,
    "no end, a film": lambda jpeg: jpeg[:-2] + FILM,
    "records behind the end": lambda jpeg: jpeg + SAMSUNG + FILM,
    "zeros before the end": lambda jpeg: jpeg[:-2] + bytes(38) + END,
    "few zeros before the end": lambda jpeg: jpeg[:-2] + bytes(4) + END,
    "other padding before the end": lambda jpeg: jpeg[:-2] + b"\x55" * 300 + END,
    "JFIF 2.1": lambda jpeg: jpeg.replace(b"JFIF\0\1\1", b"JFIF\0\2\1"),
    "a broken profile": lambda jpeg: (
        jpeg[:2] + _segment(0xE2, b"ICC_PROFILE\0\5\2" + bytes(20)) + jpeg[2:]
    ),
    "Adobe's transform 5": lambda jpeg: (
        jpeg[:2] + _segment(0xEE, b"Adobe\0d" + bytes(4) + b"\5") + jpeg[2:]
    ),
    "bytes between segments": lambda jpeg: jpeg[:20] + bytes(7) + jpeg[20:],
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}])
def test_a_photo_with_sound_pixels_is_read(odd: str, options: dict[str, object]) -> None:
    plain = encode(PIXELS, "JPEG", **options)
    if odd == "scan of other coefficients" and options.get("progressive"):
        return  # of which each scan has coefficients of its own
    jpeg = ODD[odd](plain)
    np.testing.assert_array_equal(decode(jpeg), decode(plain))
    np.testing.assert_array_equal(decode_small(jpeg, 72), decode_small(plain, 72))
    assert upright_jpeg_size(jpeg) == PIXELS.shape[:2]


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_so_are_grey_ones_and_those_of_four_inks(mode: str) -> None:
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).convert(mode).save(buffer, "JPEG")
    plain = buffer.getvalue()
    np.testing.assert_array_equal(decode(plain[:-2]), decode(plain))
    odd = ODD["zeros before the end"](plain)
    np.testing.assert_array_equal(decode(odd), decode(plain))


def test_the_page_takes_them() -> None:
    assert open_photo(ODD["no end, Samsung's records"](PLAIN)).width == PIXELS.shape[1]


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "cut in the middle": lambda jpeg: jpeg[: len(jpeg) * 2 // 3],
    "cut, and the end put there": lambda jpeg: jpeg[: len(jpeg) * 2 // 3] + END,
    "cut, and padded": lambda jpeg: jpeg[: len(jpeg) * 2 // 3] + bytes(len(jpeg) // 3) + END,
    "cut by three bytes": lambda jpeg: jpeg[:-5],
    "cut, records appended": lambda jpeg: jpeg[: len(jpeg) * 2 // 3] + SAMSUNG,
    "odd bytes before the end": lambda jpeg: jpeg[:-2] + bytes(range(1, 60)) + END,
    "a scan's marker lost": lambda jpeg: (
        jpeg[: jpeg.rindex(b"\xff\xda")] + b"\xff\x84" + jpeg[jpeg.rindex(b"\xff\xda") + 2 :]
    ),
}


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("progressive", [False, True])
def test_damage_among_the_pixels_is_told(damage: str, *, progressive: bool) -> None:
    plain = encode(PIXELS, "JPEG", progressive=progressive)
    with pytest.raises(DamagedImage):
        decode(DAMAGED[damage](plain))


def test_no_wrong_bit_that_the_decoder_notices_is_let_through() -> None:
    import simplejpeg

    noticed = 0
    start = PLAIN.index(b"\xff\xda") + 14
    for seed in range(400):
        draw = random.Random(seed)
        damaged = bytearray(PLAIN)
        damaged[draw.randrange(start, len(PLAIN) - 2)] ^= 1 << draw.randrange(8)
        try:
            simplejpeg.decode_jpeg(bytes(damaged))
            continue
        except ValueError:
            noticed += 1
        for odd in ("no end", "JFIF 2.1"):
            with pytest.raises(DamagedImage):
                decode(ODD[odd](bytes(damaged)))
    assert noticed > 30
