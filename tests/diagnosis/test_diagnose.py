import hashlib
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from skin_photo import skin_photo
from tiny_bundle import measured, odd_taxonomy, pack_tiny

from skindx.core.errors import UserError
from skindx.diagnosis import answer_texts, decision_texts
from skindx.diagnosis.bundle_statement import bundle_version
from skindx.diagnosis.case import Case
from skindx.diagnosis.diagnose import answer
from skindx.diagnosis.photo_checks import MAX_BYTES, read_photo
from skindx.diagnosis.predictor import Predictor
from skindx.diagnosis.record import Diagnosis
from skindx.diagnosis.report.answer_report import print_diagnosis
from skindx.imaging.decode import decode
from skindx.models.bundle.bundle import open_bundle
from skindx.models.bundle.bundle_changes import add_metrics
from skindx.texts import catalogue


def diagnose_bytes(predictor: Predictor, data: bytes) -> Diagnosis:
    return answer(predictor, Case((data,))).diagnosis


@pytest.fixture(scope="module")
def predictor(tiny_bundle: Path) -> Predictor:
    return Predictor.load(tiny_bundle)


def test_candidates_are_the_ensembles_own_probabilities_ranked(predictor: Predictor) -> None:
    data = skin_photo()
    diagnosis = diagnose_bytes(predictor, data)
    (prediction,) = predictor.predict([decode(data)])
    ranked = np.argsort(-prediction.probabilities_C)
    best = [i for n, i in enumerate(ranked) if n < 5 or prediction.probabilities_C[i] >= 0.05]
    keys = predictor.taxonomy.keys
    assert [candidate.key for candidate in diagnosis.candidates] == [keys[i] for i in best]
    shown = [candidate.probability for candidate in diagnosis.candidates]
    assert shown == pytest.approx(list(prediction.probabilities_C[best]))
    assert [vote.key for vote in diagnosis.votes] == [
        keys[row_C.argmax()] for row_C in prediction.member_probabilities_MC
    ]
    assert [vote.member for vote in diagnosis.votes] == ["resnet", "vit"]


def test_the_record_says_what_was_looked_at_and_by_whom(
    predictor: Predictor, tiny_bundle: Path
) -> None:
    exif = Image.Exif()
    exif[274] = 6  # stored lying, to be shown upright
    data = skin_photo(100, 80, exif=exif)
    diagnosis = diagnose_bytes(predictor, data)
    assert (diagnosis.photos[0].width, diagnosis.photos[0].height) == (80, 100)
    assert diagnosis.photos[0].sha256 == hashlib.sha256(data).hexdigest()
    assert diagnosis.source.version == bundle_version(open_bundle(tiny_bundle))
    assert diagnosis.source.review == "not clinically reviewed"
    assert diagnosis.source.calibrated
    assert diagnosis.photos[0].boxes
    assert all(
        0 <= box.x1 < box.x2 <= 80 and 0 <= box.y1 < box.y2 <= 100
        for box in diagnosis.photos[0].boxes
    )


def test_the_record_survives_json(predictor: Predictor) -> None:
    diagnosis = diagnose_bytes(predictor, skin_photo())
    assert Diagnosis.model_validate_json(diagnosis.model_dump_json()) == diagnosis


@pytest.mark.parametrize("form", ["PNG", "WEBP"])
def test_other_formats_are_read_by_content(predictor: Predictor, form: str) -> None:
    assert diagnose_bytes(predictor, skin_photo(form=form)).photos[0].width == 240


def png_header_of(width: int, height: int) -> bytes:
    """Return a PNG that claims a size far beyond its bytes."""
    import struct
    import zlib

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    ihdr = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1000))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", ihdr) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("data", "said"),
    [
        pytest.param(b"", "empty", id="empty"),
        pytest.param(b"hello, I am a photo", "not a photo in", id="text"),
        pytest.param(skin_photo(form="BMP"), "not a photo in", id="bmp"),
        pytest.param(skin_photo(form="TIFF"), "not a photo in", id="tiff"),
        pytest.param(b"<svg onload='alert(1)'/>", "not a photo in", id="svg"),
        pytest.param(b"\xff\xd8\xff", "damaged or cut short", id="three bytes"),
        pytest.param(skin_photo()[:-300], "damaged or cut short", id="truncated jpeg"),
        pytest.param(skin_photo(form="PNG")[:-200], "damaged or cut short", id="truncated png"),
        pytest.param(png_header_of(13_000, 13_000), "13000 x 13000 pixels", id="bomb"),
        pytest.param(bytes(MAX_BYTES + 1), "20 MB", id="huge file"),
        pytest.param(skin_photo(8, 8), "8 x 8 pixels", id="tiny"),
        pytest.param(skin_photo(40_000, 40), "40,000 x 40 pixels", id="ribbon"),
    ],
)
def test_what_is_no_photo_is_refused_in_one_sentence(
    predictor: Predictor, data: bytes, said: str
) -> None:
    with pytest.raises(UserError, match=said) as caught:
        diagnose_bytes(predictor, data)
    message = str(caught.value)
    assert "\n" not in message
    assert "0x" not in message  # no decoder's inner words
    assert any(verb in message.lower() for verb in ("choose", "take", "save"))


def test_a_path_that_is_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.jpg does not exist"):
        read_photo(tmp_path / "nowhere.jpg")
    with pytest.raises(UserError, match="cannot be read"):
        read_photo(tmp_path)


def test_weights_that_are_no_numbers_give_no_diagnosis(tmp_path: Path) -> None:
    broken = pack_tiny(tmp_path / "bundle", broken=True)
    with pytest.raises(UserError, match="damaged"):
        diagnose_bytes(Predictor.load(broken.path), skin_photo())


def test_a_bundle_without_detector_says_so(tmp_path: Path) -> None:
    bundle = pack_tiny(tmp_path / "bundle", temperature=1.0)
    diagnosis = diagnose_bytes(Predictor.load(bundle.path), skin_photo())
    assert diagnosis.photos[0].boxes is None
    assert "no lesion detector" in diagnosis.photos[0].boxes_found
    assert not diagnosis.source.calibrated


def test_the_version_ignores_measurements_and_sees_everything_else(tmp_path: Path) -> None:
    first = pack_tiny(tmp_path / "a")
    version = bundle_version(first)
    shutil.copytree(first.path, tmp_path / "copy")
    add_metrics(tmp_path / "copy", measured(0.5))
    assert bundle_version(open_bundle(tmp_path / "copy")) == version
    assert bundle_version(pack_tiny(tmp_path / "b", temperature=0.6)) != version


def test_the_terminal_shows_everything_and_obeys_no_markup(tmp_path: Path) -> None:
    bundle = pack_tiny(tmp_path / "bundle", taxonomy=odd_taxonomy())
    diagnosis = diagnose_bytes(Predictor.load(bundle.path), skin_photo())
    console = Console(file=io.StringIO(), width=120)
    print_diagnosis(diagnosis, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[red]brackets[/red]" in text
    unwrapped = " ".join(text.split())
    assert unwrapped.index(diagnosis.next_step.advice) < unwrapped.index("Nearest conditions")
    assert diagnosis.notice in unwrapped
    assert catalogue.text("cannot_rule_out") in unwrapped


def test_the_terminal_is_short_unless_details_are_asked_for(predictor: Predictor) -> None:
    diagnosis = diagnose_bytes(predictor, skin_photo())
    shown = {}
    for details in (False, True):
        console = Console(file=io.StringIO(), width=500)
        print_diagnosis(diagnosis, console, details=details)
        shown[details] = console.file.getvalue()  # type: ignore[attr-defined]
    folded = [*decision_texts.decided(diagnosis), *answer_texts.basis(diagnosis, None)[:2]]
    folded += filter(None, [answer_texts.digests(diagnosis)])
    said = (*diagnosis.next_step.parts, diagnosis.next_step.because, diagnosis.notice)
    assert folded
    assert not any(sentence in shown[False] for sentence in folded)
    assert all(sentence in shown[True] for sentence in folded)
    assert all(one in short for short in shown.values() for one in said)
    assert "--details" in shown[False]
    assert len(shown[False].split()) <= 260


def test_the_terminal_lists_boxes(predictor: Predictor) -> None:
    diagnosis = diagnose_bytes(predictor, skin_photo())
    console = Console(file=io.StringIO(), width=120)
    print_diagnosis(diagnosis, console)
    assert diagnosis.photos[0].boxes is not None
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("detector score") == len(diagnosis.photos[0].boxes)
    assert json.loads(diagnosis.model_dump_json())["photos"][0]["boxes"]
