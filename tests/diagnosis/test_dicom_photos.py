"""DICOM photos of a case: judged as the same pixels of other formats, with their file's facts."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from skin_photo import skin_photo, skin_pixels

pytest.importorskip("pydicom")
from dicom_files import dicom

import skindx
from skindx.core.errors import UserError
from skindx.diagnosis.case import Case, Patient, use_of_facts
from skindx.diagnosis.diagnose import answer
from skindx.diagnosis.photo_checks import Refused, open_photo, small_view
from skindx.diagnosis.predictor import Predictor
from skindx.diagnosis.scope import not_judged
from skindx.imaging.dicom import spacing_of
from skindx.imaging.image_formats import photo_format
from skindx.scan.photo_store import photo_store

JPEG = "1.2.840.10008.1.2.4.50"
FACTS = {"PatientAge": "054Y", "PatientSex": "F", "BodyPartExamined": "BACK"}


@pytest.fixture(scope="module")
def predictor(tiny_bundle: Path) -> Predictor:
    return Predictor.load(tiny_bundle)


def wrapped(jpeg: bytes | None = None, **elements: Any) -> bytes:
    frame = jpeg or skin_photo()
    return dicom(frame, 180, 240, syntax=JPEG, colours="YBR_FULL_422", **elements)


def test_the_answer_is_that_of_the_photo_within(predictor: Predictor) -> None:
    plain = answer(predictor, Case((skin_photo(),)))
    answered = answer(predictor, Case((wrapped(**FACTS, PixelSpacing=[0.05, 0.05]),)))
    assert answered.diagnosis.candidates == plain.diagnosis.candidates
    assert answered.views[0].jpeg == plain.views[0].jpeg
    patient = answered.diagnosis.patient
    assert patient == Patient(age=54, sex="female", site="back", from_file=("age", "sex", "site"))
    sentence = "The photo's file gave age 54 years, sex female and place back."
    assert sentence in answered.diagnosis.use_of_facts
    assert answered.diagnosis.photos[0].width_mm == pytest.approx(12)
    assert plain.diagnosis.photos[0].width_mm is None
    assert "Doe" not in answered.diagnosis.model_dump_json()
    assert "4711" not in answered.diagnosis.model_dump_json()


def test_what_a_person_says_counts_for_more(predictor: Predictor) -> None:
    patient = Patient(age=30, duration="weeks")
    photos = (wrapped(PatientAge="054Y"), wrapped(PatientAge="055Y", PatientSex="M"))
    read = answer(predictor, Case(photos, patient)).diagnosis.patient
    assert read == Patient(age=30, duration="weeks", sex="male", from_file=("sex",))
    assert use_of_facts(read).endswith("The photo's file gave sex male.")


def test_photos_of_two_patients_are_no_case(predictor: Predictor) -> None:
    with pytest.raises(Refused, match="different patients") as refused:
        answer(predictor, Case((wrapped(), wrapped(PatientID="4712"))))
    assert "4712" not in str(refused.value)
    assert answer(predictor, Case((wrapped(), wrapped(PatientID=None)))).diagnosis.candidates


def test_refusals_say_what_to_do() -> None:
    for data, words in (
        (wrapped(NumberOfFrames=200), "the file has 200 frames; export one of them as an image."),
        (wrapped()[:-1000], "cut short.*, so export it again."),
        (wrapped(Rows=60000, Columns=60000), "cap of .*, so export it again with fewer pixels."),
        (wrapped(Modality="SM"), "microscopy.*; give a photograph or a dermoscopic image of skin."),
    ):
        with pytest.raises(
            Refused, match=f"^The DICOM file cannot be read.*{words} {not_judged()}$"
        ):
            open_photo(data)


def test_most_browsers_are_helped_to_show_it() -> None:
    data = wrapped()
    assert photo_format(data[:512]) == "DICOM"
    assert small_view(data, skin_pixels()).startswith(b"\xff\xd8")


def test_without_the_extra_the_sentence_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pydicom" else real(name)
    )
    with pytest.raises(Refused, match=r"the extra `clinic`"):
        open_photo(wrapped())


def test_the_library_takes_it_in_a_table_of_many(tiny_bundle: Path, tmp_path: Path) -> None:
    files = {"a.jpg": skin_photo(), "b.dcm": wrapped(), "c.dcm": wrapped(NumberOfFrames=2)}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    rows = skindx.load(tiny_bundle).predict([tmp_path / name for name in files]).to_pylist()
    assert rows[1]["first"] == rows[0]["first"]
    assert rows[1]["probability"] == pytest.approx(rows[0]["probability"], abs=1e-5)
    assert "2 frames" in rows[2]["reason"]


def test_a_scan_reads_pixels_and_their_size_from_it(tmp_path: Path) -> None:
    pytest.importorskip("pyvips")
    pixels = skin_pixels(400, 300)
    path = tmp_path / "back.dcm"
    path.write_bytes(dicom(pixels.tobytes(), 300, 400, PixelSpacing=[0.2, 0.2]))
    store = photo_store(path, tmp_path / "store")
    assert np.array_equal(store.read(0, 0, 0, 400, 300), pixels)
    assert spacing_of(path) == 0.2
    path.write_bytes(skin_photo())
    assert spacing_of(path) is None
    path.write_bytes(dicom(pixels.tobytes(), 300, 400, NumberOfFrames=2))
    with pytest.raises(UserError, match="2 frames"):
        photo_store(path, tmp_path / "other")
    assert not (tmp_path / "other").exists()
