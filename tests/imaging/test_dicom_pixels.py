"""DICOM frames, right to the pixel: every transfer syntax and kind of colours against plain RGB."""

import io

import numpy as np
import pytest
import simplejpeg
from PIL import Image

pytest.importorskip("pydicom")
from dicom_files import dicom, pixels, rgb, ybr
from paint_images import encode
from pydicom.dataset import Dataset
from stored_colours import ADOBE, P3

from skindx.imaging.decode import decode
from skindx.imaging.dicom import _header
from skindx.imaging.dicom_pixels import FrameLayout
from skindx.imaging.srgb import FileColours

IMPLICIT, EXPLICIT = "1.2.840.10008.1.2", "1.2.840.10008.1.2.1"
DEFLATED, BIG = "1.2.840.10008.1.2.1.99", "1.2.840.10008.1.2.2"
JPEG, RLE = "1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.5"
LOSSLESS, SELECTION_1 = "1.2.840.10008.1.2.4.57", "1.2.840.10008.1.2.4.70"
J2K_LOSSLESS, J2K = "1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.4.91"
RGB = pixels()
HEIGHT, WIDTH = RGB.shape[:2]


def decoded(data: bytes) -> np.ndarray:
    header, syntax = _header(data, 10**6)
    return FrameLayout.from_header(header, syntax, 10**6).decoded(header, 10**6)


def file(
    pixel_data: bytes, syntax: str, colours: str = "RGB", planar: int = 0, **elements: object
) -> bytes:
    where = {"syntax": syntax, "colours": colours, "planar": planar}
    return dicom(pixel_data, HEIGHT, WIDTH, **where, **elements)


def planes(pixels_HWC: np.ndarray) -> bytes:
    return pixels_HWC.transpose(2, 0, 1).tobytes()


@pytest.mark.parametrize("syntax", [IMPLICIT, EXPLICIT, DEFLATED, BIG])
def test_uncompressed_colours_are_right_by_pixel_and_by_plane(syntax: str) -> None:
    assert np.array_equal(decoded(file(RGB.tobytes(), syntax)), RGB)
    assert np.array_equal(decoded(file(planes(RGB), syntax, planar=1)), RGB)
    full = ybr(RGB)
    assert np.array_equal(decoded(file(full.tobytes(), syntax, "YBR_FULL")), rgb(full))
    assert np.array_equal(decoded(file(planes(full), syntax, "YBR_FULL", 1)), rgb(full))
    # Of each pair of pixels: two of brightness, then one of each colour.
    shared = np.concatenate([full[:, 0::2, :1], full[:, 1::2, :1], full[:, 0::2, 1:]], axis=2)
    full[:, 1::2, 1:] = full[:, 0::2, 1:]
    assert np.array_equal(decoded(file(shared.tobytes(), syntax, "YBR_FULL_422")), rgb(full))


def test_words_of_the_other_byte_order_are_swapped() -> None:
    data = file(np.frombuffer(RGB.tobytes(), "<u2").byteswap().tobytes(), BIG)
    at = data.index(b"\x7f\xe0\x00\x10OB")
    assert np.array_equal(decoded(data[: at + 4] + b"OW" + data[at + 6 :]), RGB)


@pytest.mark.parametrize("colours", ["YBR_FULL_422", "YBR_FULL", "RGB"])
@pytest.mark.parametrize("subsampling", ["444", "422", "420"])
def test_a_jfif_frame_is_what_our_decoder_makes_of_it(colours: str, subsampling: str) -> None:
    """Also where the header says RGB: JFIF is always YCbCr."""
    jpeg = simplejpeg.encode_jpeg(RGB, 95, colorsubsampling=subsampling)
    assert b"JFIF" in jpeg[:20]
    assert np.array_equal(decoded(file(jpeg, JPEG, colours)), decode(jpeg))


@pytest.mark.parametrize("colours", ["YBR_FULL_422", "RGB"])
def test_a_frame_that_adobe_marks_as_rgb_is_rgb_whatever_the_header_says(colours: str) -> None:
    jpeg = rgb_jpeg(b"\x01\x02\x03", adobe=True)
    assert np.abs(decoded(file(jpeg, JPEG, colours)).astype(int) - RGB).max() < 12


@pytest.mark.parametrize(
    ("ids", "colours", "is_rgb"),
    [(b"\1\2\3", "RGB", True), (b"\1\2\3", "YBR_FULL", False), (b"RGB", "YBR_FULL", True)],
)
def test_without_a_mark_the_channels_names_decide_then_the_header(
    ids: bytes, colours: str, *, is_rgb: bool
) -> None:
    stored = decoded(file(rgb_jpeg(ids, adobe=False), JPEG, colours)).astype(int)
    expected = RGB if is_rgb else rgb(RGB)
    assert np.abs(stored - expected).max() < (12 if is_rgb else 24)


def test_subsampled_channels_without_a_mark_are_never_rgb() -> None:
    jpeg = simplejpeg.encode_jpeg(RGB, 95, colorsubsampling="420")
    bare = jpeg[:2] + jpeg[20:]
    assert b"JFIF" not in bare
    assert np.array_equal(decoded(file(bare, JPEG, "RGB")), decode(jpeg))


def rgb_jpeg(ids: bytes, *, adobe: bool) -> bytes:
    """Return a JPEG whose channels are red, green and blue."""
    buffer = io.BytesIO()
    Image.fromarray(RGB).save(buffer, "JPEG", quality=99, subsampling=0, keep_rgb=True)
    jpeg = buffer.getvalue()
    mark = jpeg.find(b"\xff\xee\x00\x0eAdobe")
    if mark >= 0:
        jpeg = jpeg[:mark] + jpeg[mark + 16 :]
    frame, scan = jpeg.index(b"\xff\xc0"), jpeg.index(b"\xff\xda")
    changed = bytearray(jpeg)
    changed[frame + 10 : frame + 19 : 3] = ids
    changed[scan + 5 : scan + 11 : 2] = ids
    note = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00" if adobe else b""
    return bytes(changed[:2]) + note + bytes(changed[2:])


def test_exif_of_a_frame_turns_nothing() -> None:
    buffer = io.BytesIO()
    exif = Image.Exif()
    exif[274] = 6
    Image.fromarray(RGB).save(buffer, "JPEG", quality=95, exif=exif)
    turned = decode(buffer.getvalue())
    stored = decoded(file(buffer.getvalue(), JPEG, "YBR_FULL_422"))
    assert turned.shape[:2] == (WIDTH, HEIGHT)
    assert np.array_equal(np.rot90(stored, -1), turned)


@pytest.mark.parametrize(("colours", "coded"), [("RGB", RGB), ("YBR_FULL", ybr(RGB))])
def test_run_lengths_are_right(colours: str, coded: np.ndarray) -> None:
    from rle.utils import encode_frame

    frame = encode_frame(coded.tobytes(), HEIGHT, WIDTH, 3, 8, "<")
    expected = RGB if colours == "RGB" else rgb(coded)
    assert np.array_equal(decoded(file(bytes(frame), RLE, colours)), expected)


@pytest.mark.parametrize(
    ("colours", "coded", "transform"),
    [
        ("YBR_RCT", RGB, True),
        ("RGB", RGB, False),
        ("RGB", RGB, True),
        ("YBR_FULL", RGB, True),
        ("YBR_FULL", ybr(RGB), False),
    ],
)
def test_lossless_jpeg_2000_is_right(colours: str, coded: np.ndarray, *, transform: bool) -> None:
    """The codestream's transform counts, whatever the header says of colours."""
    from openjpeg.utils import encode_array

    frame = encode_array(coded, photometric_interpretation=1, use_mct=transform)
    expected = rgb(coded) if (colours, transform) == ("YBR_FULL", False) else RGB
    assert np.array_equal(decoded(file(frame, J2K_LOSSLESS, colours)), expected)


def test_lossy_jpeg_2000_is_near() -> None:
    from openjpeg.utils import encode_array

    frame = encode_array(
        RGB, photometric_interpretation=1, use_mct=True, signal_noise_ratios=[50.0]
    )
    off = decoded(file(frame, J2K, "YBR_ICT")).astype(int) - RGB
    assert np.abs(off).mean() < 2


@pytest.mark.parametrize("syntax", [LOSSLESS, SELECTION_1])
@pytest.mark.parametrize(("colours", "coded"), [("RGB", RGB), ("YBR_FULL", ybr(RGB))])
def test_lossless_jpeg_is_right(syntax: str, colours: str, coded: np.ndarray) -> None:
    expected = RGB if colours == "RGB" else rgb(coded)
    assert np.array_equal(decoded(file(lossless_jpeg(coded, colours), syntax, colours)), expected)


def test_a_lossless_frame_that_names_its_channels_rgb_is_rgb() -> None:
    frame = lossless_jpeg(RGB, "RGB")
    assert np.array_equal(decoded(file(frame, SELECTION_1, "YBR_FULL")), RGB)


def lossless_jpeg(coded_HWC: np.ndarray, colours: str) -> bytes:
    """Return a lossless JPEG (process 14, selection value 1) of the values as they are."""
    import gdcm

    image = gdcm.Image()
    image.SetNumberOfDimensions(2)
    image.SetDimensions((WIDTH, HEIGHT, 1))
    image.SetPixelFormat(gdcm.PixelFormat(3, 8, 8, 7, 0))
    image.SetPhotometricInterpretation(
        gdcm.PhotometricInterpretation(getattr(gdcm.PhotometricInterpretation, colours))
    )
    image.SetTransferSyntax(gdcm.TransferSyntax(gdcm.TransferSyntax.ExplicitVRLittleEndian))
    element = gdcm.DataElement(gdcm.Tag(0x7FE0, 0x0010))
    element.SetByteStringValue(coded_HWC.tobytes())
    image.SetDataElement(element)
    change = gdcm.ImageChangeTransferSyntax()
    change.SetTransferSyntax(gdcm.TransferSyntax(gdcm.TransferSyntax.JPEGLosslessProcess14_1))
    image.this.disown()  # it counts references itself; both sides would free it
    change.SetInput(image)
    image.thisown = False  # `change` deletes its input, and so would Python
    assert change.Change()
    fragments = change.GetOutput().GetDataElement().GetSequenceOfFragments()
    text = fragments.GetFragment(0).GetByteValue().GetBuffer()
    return text.encode("utf-8", "surrogateescape")


def test_the_result_is_an_image_without_notes_of_the_same_pixels() -> None:
    buffer = io.BytesIO()
    exif = Image.Exif()
    exif[0x010E] = "Doe, Jane"
    Image.fromarray(RGB).save(
        buffer, "JPEG", quality=90, exif=exif, comment=b"Doe", icc_profile=b"Doe" * 40
    )
    for frame, syntax, suffix in (
        (buffer.getvalue() + b"Doe, Jane", JPEG, ".jpg"),
        (RGB.tobytes(), EXPLICIT, ".png"),
    ):
        header, _ = _header(
            file(frame, syntax, "YBR_FULL_422" if suffix == ".jpg" else "RGB"), 10**6
        )
        layout = FrameLayout.from_header(header, syntax, 10**6)
        colours = FileColours(layout.stored_colours(header))
        image, made = layout.image(header, 10**6, colours)
        assert made == suffix
        assert b"Doe" not in image
        assert np.array_equal(decode(image), layout.decoded(header, 10**6))
        assert colours.notes == ({"profile-ignored"} if suffix == ".jpg" else set())


@pytest.mark.parametrize("syntax", [JPEG, EXPLICIT])
def test_a_profile_of_the_header_counts_for_more_than_that_of_the_frame(syntax: str) -> None:
    inside = encode(RGB, quality=90, subsampling=0, icc_profile=ADOBE)
    frame = inside if syntax == JPEG else RGB.tobytes()
    data = file(frame, syntax, "YBR_FULL" if syntax == JPEG else "RGB", ICCProfile=P3)
    header, _ = _header(data, 10**6)
    layout = FrameLayout.from_header(header, syntax, 10**6)
    colours = FileColours(layout.stored_colours(header))
    image, suffix = layout.image(header, 10**6, colours)
    expected = decode(encode(layout.decoded(header, 10**6), "PNG", icc_profile=P3))
    assert suffix == ".png", "sRGB without a profile"
    assert np.array_equal(decode(image), expected)
    assert colours.notes == {"colours-converted"}


def test_a_header_without_dataset_is_refused() -> None:
    from skindx.imaging.image_formats import DamagedImage

    with pytest.raises(DamagedImage, match="no pixels"):
        FrameLayout.from_header(Dataset(), EXPLICIT, 10**6)
