"""The date of a photo: read from EXIF and DICOM headers, believed only where it can be."""

import io
import struct
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from skindx.core.errors import UserError
from skindx.diagnosis.case import Case
from skindx.diagnosis.photo_checks import check_photos
from skindx.imaging.dicom_facts import DicomFacts, DicomIdentity
from skindx.imaging.photo_date import checked_day, exif_date, file_date

TAKEN = "2024:05:12 10:20:30"


def photo(form: str = "JPEG", taken: str = TAKEN, offset: str = "") -> bytes:
    exif, file = Image.Exif(), io.BytesIO()
    exif[271] = "a camera"
    folder = exif.get_ifd(0x8769)
    folder[0x9003] = taken
    if offset:
        folder[0x9011] = offset
    image = Image.effect_noise((320, 240), 80).convert("RGB")
    tinted = Image.blend(image, Image.new("RGB", (320, 240), (205, 160, 135)), 0.6)
    tinted.save(file, form, exif=exif)
    return file.getvalue()


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_exif_gives_the_day_and_with_an_offset_the_time(form: str) -> None:
    assert exif_date(photo(form)) == "2024-05-12"
    assert exif_date(photo(form, offset="+02:00")) == "2024-05-12T10:20:30+02:00"
    assert exif_date(photo(form, offset="+99:00")) == "2024-05-12"
    assert exif_date(photo(form, taken="0000:00:00 00:00:00")) == ""
    assert exif_date(photo(form)[:40]) == ""


@given(st.binary(max_size=300))
def test_any_bytes_give_a_date_or_none(tail: bytes) -> None:
    for order in (b"II*\0", b"MM\0*"):
        assert isinstance(exif_date(b"Exif\0\0" + order + tail), str)
    many = struct.pack("<IH", 8, 65_535) + tail * 200
    assert exif_date(b"Exif\0\0II*\0" + many) == ""


def test_a_dicom_header_gives_the_day_of_the_photo_before_that_of_the_study() -> None:
    def facts(**dates: str) -> DicomFacts:
        return DicomFacts("photograph", "XC", 9, 9, identity=DicomIdentity(**dates))

    assert file_date(b"", facts(acquisition_date="20240511", study_date="20240512")) == "2024-05-11"
    assert file_date(b"", facts(acquisition_date="2024", study_date="20240512")) == "2024-05-12"
    assert file_date(b"", facts()) == ""


def test_a_date_that_cannot_be_is_not_believed_and_said() -> None:
    future = date.today() + timedelta(days=40)
    for taken, said in ((f"{future:%Y:%m:%d} 10:00:00", "lies in the future and is not used."),
                        ("1980:01:01 00:00:00", "is before 1990")):  # fmt: skip
        seen, _ = check_photos(Case((photo(taken=taken),)))
        assert seen[0].decoded.taken == ""
        assert any(said in remark for remark in seen[0].remarks)
    seen, _ = check_photos(Case((photo(),)))
    assert seen[0].decoded.taken == "2024-05-12"
    assert "2024" not in repr(seen[0].decoded)  # what is logged or printed has no date


def test_a_day_that_a_person_gives_is_checked() -> None:
    assert checked_day(" 2024-05-12 ") == "2024-05-12"
    assert checked_day("") == ""
    for wrong, said in (("12 May", "is not a date"), ("1980-01-01", "before 1990"),
                        ("2199-01-01", "in the"), ("2024-13-01", "is not a date")):  # fmt: skip
        with pytest.raises(UserError, match=said):
            checked_day(wrong)
