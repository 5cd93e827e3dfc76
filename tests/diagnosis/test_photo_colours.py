"""A photo is judged and shown in the colours that its bundle learned from."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from paint_images import encode
from PIL import Image
from skin_photo import skin_pixels
from stored_colours import P3

from skindx.diagnosis.case import Case
from skindx.diagnosis.diagnose import answer
from skindx.diagnosis.photo_checks import check_photos, open_photo
from skindx.diagnosis.predictor import Predictor
from skindx.diagnosis.record import CaseAnswer
from skindx.imaging.decode import decode
from skindx.models.bundle.bundle import open_bundle

WIDE = encode(skin_pixels(), "PNG", icc_profile=P3)
SHOWN = encode(decode(WIDE), "PNG")
STORED = encode(skin_pixels(), "PNG")


@pytest.fixture(scope="module")
def predictor(tiny_bundle: Path) -> Predictor:
    return Predictor.load(tiny_bundle)


def probabilities(answered: CaseAnswer) -> list[float]:
    return [candidate.probability for candidate in answered.diagnosis.candidates]


def test_a_wide_photo_gets_the_answer_of_its_colours(predictor: Predictor) -> None:
    wide, shown, stored = (answer(predictor, Case((data,))) for data in (WIDE, SHOWN, STORED))
    assert probabilities(wide) == probabilities(shown) != probabilities(stored)
    assert wide.views[0].jpeg == shown.views[0].jpeg
    assert wide.diagnosis.photos[0].colours == ("colours-converted",)
    assert shown.diagnosis.photos[0].colours == ()


def test_an_older_bundle_sees_what_it_learned_from(tiny_bundle: Path, tmp_path: Path) -> None:
    assert open_bundle(tiny_bundle).spec.decoding == "srgb-1"
    older = Path(shutil.copytree(tiny_bundle, tmp_path / "older"))
    index = json.loads((older / "bundle.json").read_text(encoding="utf-8"))
    assert index.pop("decoding") == "srgb-1"
    (older / "bundle.json").write_text(json.dumps(index), encoding="utf-8")
    predictor = Predictor.load(older)
    assert predictor.decoding == "as-stored"
    wide, stored = (answer(predictor, Case((data,))) for data in (WIDE, STORED))
    assert probabilities(wide) == probabilities(stored)
    assert wide.diagnosis.photos[0].colours == ()


def test_a_broken_profile_is_a_remark() -> None:
    data = encode(skin_pixels(800, 600), "PNG", icc_profile=P3[:200])
    seen, refusals = check_photos(Case((data,)))
    assert not refusals
    assert seen[0].remarks == (
        "The photo's colour profile cannot be read, so its colours may be off.",
    )


@pytest.mark.parametrize("kind", ["heic", "dicom", "dicom, in its JPEG"])
def test_photos_of_phones_and_clinics_have_their_colours(kind: str) -> None:
    jpeg = encode(skin_pixels(), quality=95, subsampling=0)
    if kind == "heic":
        pillow_heif = pytest.importorskip("pillow_heif")
        file = io.BytesIO()
        heif = pillow_heif.from_pillow(Image.fromarray(skin_pixels()))
        heif.save(file, quality=95, chroma=444, icc_profile=P3)
        data = file.getvalue()
    else:
        pytest.importorskip("pydicom")
        from dicom_files import dicom

        height, width = skin_pixels().shape[:2]
        syntax = "1.2.840.10008.1.2.4.50"
        inside = encode(skin_pixels(), quality=95, subsampling=0, icc_profile=P3)
        data = (
            dicom(jpeg, height, width, syntax=syntax, colours="YBR_FULL_422", ICCProfile=P3)
            if kind == "dicom"
            else dicom(inside, height, width, syntax=syntax, colours="YBR_FULL_422")
        )
    opened, stored = open_photo(data), open_photo(data, decoding="as-stored")
    assert opened.notes == {"colours-converted"}
    assert not stored.notes
    expected = decode(encode(stored.pixels_HWC, "PNG", icc_profile=P3))
    np.testing.assert_array_equal(opened.pixels_HWC, expected)
    assert np.abs(stored.pixels_HWC.astype(int) - skin_pixels()).mean() < 6
