"""What is no image that is read has the right name."""

import pytest

from skindx.imaging.image_formats import image_suffix, unusable

UNREAD = {
    "a GIF": b"GIF87a" + bytes(20),
    "an AVIF file": b"\0\0\0\x1cftypavif" + bytes(20),
    "a HEIC file": b"\0\0\0\x18ftypheic" + bytes(20),
    "a JPEG XL file": b"\xff\x0a" + bytes(20),
    "a JPEG 2000 file": b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(20),
    "a BigTIFF file": b"II+\0\x08\0\0\0",
    "a DICOM file": bytes(128) + b"DICM",
    "an SVG drawing": b'\xef\xbb\xbf<?xml version="1.0"?>\n<!-- drawn -->\n<svg>',
}


@pytest.mark.parametrize("name", UNREAD)
def test_formats_that_are_not_read_are_named(name: str) -> None:
    assert image_suffix(UNREAD[name]) is None
    reason, why = unusable(UNREAD[name])
    assert reason == "unsupported-format"
    advice = "; a recipe's source" if "DICOM" in name else ", a format that is not read"
    assert why.startswith(f"it is {name}{advice}")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<!doctype html><p>an <svg></p>",
        b"<?xml?><html><svg>",
        b"\0\0\0\x18ftypmp42" + bytes(20),
        b"%PDF-1.7",
    ],
)
def test_anything_else_is_no_image(data: bytes) -> None:
    reason, why = unusable(data, "image/jpeg")
    assert reason == "not-a-picture"
    assert "claims to be image/jpeg" in why


def test_an_empty_file_is_called_empty() -> None:
    assert unusable(b"") == ("not-a-picture", "the file is empty; fetch or copy it again")
