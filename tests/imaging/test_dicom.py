"""DICOM files in their sandbox: what is refused and in which words, facts, codes for ids."""

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg

pytest.importorskip("pydicom")
from dicom_files import DERMOSCOPY, deflated, dicom, pixels, written
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate
from pydicom.sequence import Sequence
from pydicom.uid import UID

from skindx.core.errors import UserError
from skindx.imaging import dicom as dicom_module
from skindx.imaging.decode import decode, ignore_warnings
from skindx.imaging.dicom import import_photos, is_dicom, read_dicom, read_facts
from skindx.imaging.dicom_facts import DicomFacts, pseudonym, read_key
from skindx.imaging.image_formats import DamagedImage, image_suffix
from skindx.taxonomy.lexicon import SITES, snomed_sites
from skindx.workers.worker_process import SandboxLimits

RGB = pixels()
HEIGHT, WIDTH = RGB.shape[:2]
JPEG, RLE, DEFLATED = "1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.5", "1.2.840.10008.1.2.1.99"


def photo(**elements: Any) -> bytes:
    return dicom(RGB.tobytes(), HEIGHT, WIDTH, **elements)


def test_pixels_and_facts_come_out_of_the_sandbox() -> None:
    data = photo(PatientAge="045Y")
    assert is_dicom(data[:132])
    read = read_dicom(data)
    assert np.array_equal(read.pixels_HWC, RGB)
    assert read.facts == read_facts(data)
    assert (read.facts.kind, read.facts.age) == ("photograph", 45)
    assert read.facts.identity.patient_id == "4711"
    assert "Doe" not in repr(read.facts)
    assert "4711" not in repr(read.facts)


def test_a_file_that_is_tiff_and_dicom_at_once_is_no_tiff() -> None:
    assert image_suffix(b"II*\0" + photo()[4:]) is None


def sequence_bomb(depth: int) -> bytes:
    data = photo(PixelData=b"")
    at = data.index(b"\xe0\x7f\x10\x00")
    item = b"\x08\x00\x18\x22SQ\0\0\xff\xff\xff\xff\xfe\xff\x00\xe0\xff\xff\xff\xff"
    return data[:at] + item * depth


def run_length_bomb() -> bytes:
    """Return 600 kB of run lengths that would become 38 MB, for a frame of 9 kB."""
    segment = bytes([129, 7]) * 200_000
    offsets = [64, 64 + len(segment), 64 + 2 * len(segment)]
    head = b"".join(n.to_bytes(4, "little") for n in (3, *offsets)).ljust(64, b"\0")
    return dicom(head + 3 * segment, HEIGHT, WIDTH, syntax=RLE)


def deflate_bomb() -> bytes:
    data = photo(syntax=DEFLATED)
    at = 144 + int.from_bytes(data[140:144], "little")  # behind the group of the syntax
    return data[:at] + deflated(bytes(20 << 20))


def with_length(data: bytes, length: int) -> bytes:
    """Return a file whose pixels claim to be so long."""
    at = data.index(b"\xe0\x7f\x10\x00OB\0\0") + 8
    return data[:at] + length.to_bytes(4, "little") + data[at + 4 :]


def two_frames() -> bytes:
    jpeg = simplejpeg.encode_jpeg(RGB)
    data = dicom(jpeg, HEIGHT, WIDTH, syntax=JPEG, colours="YBR_FULL_422")
    return data.replace(encapsulate([jpeg]), encapsulate([jpeg, jpeg]))


def no_syntax() -> bytes:
    return photo().replace(b"\x02\x00\x10\x00UI", b"\x02\x00\x99\x00UI")


def encrypted() -> bytes:
    dataset = Dataset()
    dataset.SOPClassUID, dataset.EncryptedAttributesSequence = DERMOSCOPY, Sequence([Dataset()])
    dataset.Rows = dataset.Columns = 8
    return written(dataset, UID("1.2.840.10008.1.2.1"))


JPEG_OF_RGB = simplejpeg.encode_jpeg(RGB)
REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "no pixels": (lambda: photo(PixelData=None), "no pixels"),
    "200 frames": (lambda: photo(NumberOfFrames=200), "has 200 frames; export one"),
    "two frames behind one": (two_frames, "has 2 frames"),
    "encrypted": (encrypted, "attributes are encrypted"),
    "on another server": (
        lambda: photo(PixelData=None, PixelDataProviderURL="http://a"),
        "on another server",
    ),
    "16 bits of grey": (
        lambda: photo(
            PhotometricInterpretation="MONOCHROME2",
            SamplesPerPixel=1,
            BitsAllocated=16,
            BitsStored=12,
            PlanarConfiguration=None,
        ),
        "shades of grey of 16 bits",
    ),
    "a palette": (
        lambda: photo(colours="PALETTE COLOR", SamplesPerPixel=1),
        "colours by a palette",
    ),
    "16 bits a channel": (lambda: photo(BitsAllocated=16, BitsStored=16), "16 of 16 bits"),
    "a private syntax": (lambda: photo(syntax="1.2.3.4.5"), r"1\.2\.3\.4\.5 \(private\)"),
    "JPEG-LS": (
        lambda: dicom(b"\xff\xd8", HEIGHT, WIDTH, syntax="1.2.840.10008.1.2.4.80"),
        "JPEG-LS Lossless",
    ),
    "no syntax": (no_syntax, "no transfer syntax"),
    "partial range": (lambda: photo(colours="YBR_PARTIAL_420"), "YBR_PARTIAL_420"),
    "too many pixels": (lambda: photo(Rows=65000, Columns=65000), "more than the cap"),
    "no rows": (lambda: photo(Rows=None), "no usable Rows"),
    "shorter than its header": (lambda: photo(Rows=HEIGHT + 1), "pixels of this kind need"),
    "longer than its header": (lambda: photo(Rows=HEIGHT - 1), "pixels of this kind need"),
    "a length beyond the end": (lambda: with_length(photo(), 2**31), "length"),
    "an unknown length": (lambda: with_length(photo(), 2**32 - 1), "cut short"),
    "cut short": (lambda: photo()[:-100], "cut short"),
    "cut short in fragments": (
        lambda: dicom(JPEG_OF_RGB, HEIGHT, WIDTH, syntax=JPEG, colours="YBR_FULL")[:-100],
        "cut short",
    ),
    "another size within": (
        lambda: dicom(JPEG_OF_RGB, 2 * HEIGHT, WIDTH, syntax=JPEG, colours="YBR_FULL"),
        "frame has 64 x 48 pixels of 3 channels, but the header says 64 x 96",
    ),
    "a damaged JPEG": (
        lambda: dicom(JPEG_OF_RGB[:-400], HEIGHT, WIDTH, syntax=JPEG, colours="YBR_FULL"),
        "",
    ),
    "nested sequences": (lambda: sequence_bomb(5000), "nested too deeply"),
    "a deflate bomb": (deflate_bomb, "inflates to more than"),
    "a run-length bomb": (run_length_bomb, ""),
    "no DICOM": (lambda: JPEG_OF_RGB, "not a DICOM file"),
    "nothing behind the preamble": (lambda: bytes(128) + b"DICM", "no transfer syntax"),
    "microscopy": (
        lambda: photo(SOPClassUID="1.2.840.10008.5.1.4.1.1.77.1.6", Modality="SM"),
        "VL Whole Slide Microscopy",
    ),
    "microscopy as a photograph": (lambda: photo(Modality="GM"), r"microscopy \(GM\)"),
    "radiology": (lambda: photo(SOPClassUID="1.2.840.10008.5.1.4.1.1.2"), "CT Image Storage"),
    "a screen of radiology": (
        lambda: photo(SOPClassUID="1.2.840.10008.5.1.4.1.1.7", Modality="CT"),
        "modality CT",
    ),
    "a name where the modality stands": (
        lambda: photo().replace(b"CS\x02\x00XC", b"CS\x12\x00XC"),
        "modality that is not known",
    ),
    "no class": (lambda: photo(SOPClassUID=None), "has no SOP class"),
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DamagedImage]:
    """Read all bad files by one process, since each takes a while to start."""
    folder = tmp_path_factory.mktemp("refused")
    paths = [folder / str(number) for number in range(len(REFUSED))]
    for path, (make, _) in zip(paths, REFUSED.values(), strict=True):
        path.write_bytes(make())
    (out := folder / "out").mkdir()
    answers = dict(import_photos(paths, out, max_pixels=10**6))
    assert not list(out.iterdir())
    return {name: answers[number] for number, name in enumerate(REFUSED)}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_photo_is_refused_in_one_sentence(
    name: str, refusals: dict[str, DamagedImage]
) -> None:
    refused = refusals[name]
    assert isinstance(refused, DamagedImage)
    message = str(refused)
    assert re.search(REFUSED[name][1], message)
    assert "\n" not in message
    assert not re.search(r"doe|4711|Traceback", message, re.IGNORECASE)
    assert refused.reason != "decode-crash" or name == "a run-length bomb"


def test_memory_and_time_end_a_hostile_file() -> None:
    items = b"\xfe\xff\x00\xe0\x00\x00\x00\x00" * 500_000
    data = photo(PixelData=b"")
    at = data.index(b"\xe0\x7f\x10\x00")
    head = b"\x08\x00\x18\x22SQ\0\0\xff\xff\xff\xff"
    with pytest.raises(DamagedImage) as refused:
        read_facts(data[:at] + head + items, limits=SandboxLimits(timeout_s=1, memory_mb=250))
    assert refused.value.reason in ("decode-memory", "decode-timeout", "decode-crash")


def facts(**elements: Any) -> DicomFacts:
    with ignore_warnings():  # pydicom warns of values that the standard does not allow
        header, _ = dicom_module._header(photo(**elements), 10**6)
        return dicom_module.facts_of(header, dicom_module.kind_of(header))


@pytest.mark.parametrize(
    ("text", "years"),
    [("045Y", 45), ("018M", 1), ("003W", 0), ("100D", 0), ("121Y", None), ("45", None), ("", None)],
)
def test_ages(text: str, years: int | None) -> None:
    assert facts(PatientAge=text).age == years


@pytest.mark.parametrize(
    ("born", "taken", "years"),
    [
        ("19800610", "20200609", 39),
        ("19800610", "20200610", 40),
        ("20200610", "20190101", None),
        ("18000101", "20200101", None),
    ],
)
def test_an_age_by_the_date_of_birth(born: str, taken: str, years: int | None) -> None:
    assert facts(PatientBirthDate=born, StudyDate=taken).age == years


def region(code: str, meaning: str, scheme: str = "SCT") -> Sequence:
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = code, scheme, meaning
    return Sequence([item])


def test_the_place_comes_of_a_code_its_words_or_the_body_part() -> None:
    coded = facts(AnatomicRegionSequence=region("113182001", "Skin of lower back"))
    assert (coded.site, coded.region_code) == ("back", "SCT:113182001")
    assert facts(AnatomicRegionSequence=region("T-D4000", "Abdomen", "SRT")).site == "abdomen"
    assert facts(BodyPartExamined="PALMS/SOLES").site == "palm or sole"
    unknown = facts(AnatomicRegionSequence=region("39937001", "Skin"), BodyPartExamined="BACK")
    assert (unknown.site, unknown.region) == ("", "Skin")
    assert set(snomed_sites().values()) == set(SITES) - {"palm or sole"}
    assert facts(ImageLaterality="L").patient["laterality"] == "left"
    assert "laterality" not in facts(Laterality="B").patient  # a lesion is on one side


def test_other_facts() -> None:
    read = facts(
        PatientSex="F",
        ImageLaterality="L",
        PixelSpacing=[0.05, 0.0501],
        BurnedInAnnotation="YES",
        SOPClassUID=DERMOSCOPY,
        Modality="DMS",
    )
    assert (read.sex, read.laterality, read.kind) == ("female", "left", "dermoscopy")
    assert read.mm_per_pixel == pytest.approx(0.05005)
    assert (read.burned_in, facts().burned_in) == (True, None)
    assert read.patient == {"sex": "female", "laterality": "left"}
    for spacing in ([0.05, 0.1], [0, 0], [-1, -1], [50, 50]):
        assert facts(PixelSpacing=spacing).mm_per_pixel is None
    assert facts(SOPClassUID="1.2.840.10008.5.1.4.1.1.7", Modality="OT").kind == "secondary capture"


def test_imports_leave_files_of_good_photos_alone(tmp_path: Path) -> None:
    jpeg = simplejpeg.encode_jpeg(RGB)
    files = {
        "a.dcm": dicom(jpeg, HEIGHT, WIDTH, syntax=JPEG, colours="YBR_FULL_422"),
        "b.dcm": photo(NumberOfFrames=7),
        "c": photo(),
    }
    paths = []
    for name, data in files.items():
        paths.append(tmp_path / name)
        paths[-1].write_bytes(data)
    out = tmp_path / "out"
    out.mkdir()
    results = dict(import_photos(paths, out))
    assert isinstance(results[1], DamagedImage)
    written_files = sorted(path.name for path in out.iterdir())
    assert written_files == sorted(results[place].file.name for place in (0, 2))
    assert np.array_equal(decode(results[0].file.read_bytes()), decode(jpeg))
    assert np.array_equal(decode(results[2].file.read_bytes()), RGB)
    assert results[0].file.suffix == ".jpg"


def test_codes_in_place_of_ids_need_the_key(tmp_path: Path) -> None:
    path = tmp_path / "key"
    key = read_key(path, create=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_key(path, create=True) == key
    code = pseudonym(key, "patient", "4711")
    assert re.fullmatch(r"patient-[0-9a-f]{16}", code)
    assert code == pseudonym(key, "patient", "4711")
    assert pseudonym(key, "study", "4711")[6:] != code[8:]
    assert pseudonym(os.urandom(32), "patient", "4711") != code
    assert pseudonym(key, "patient", "") == ""
    path.chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        read_key(path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(UserError, match="openssl rand"):
        read_key(path)


def test_without_the_extra_a_sentence_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skindx.core.machine.missing_modules", lambda *names: names[:1])
    with pytest.raises(UserError, match=r"\[clinic\]'`"):
        read_facts(photo())
