"""All photos of a case are judged, and every refusal is told at once."""

import io
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from skin_photo import skin_photo
from some_features import Alike

from skindx.core.errors import UserError
from skindx.diagnosis.case import Case
from skindx.diagnosis.diagnose import answer
from skindx.diagnosis.photo_checks import MIN_SIDE, Refusal, Refused, open_photo, read_photos
from skindx.diagnosis.predictor import Predictor
from skindx.imaging.photo_gates import ModalityCheck
from skindx.models.bundle.bundle_index import least_side
from skindx.models.ood.ood_check import OodCheck
from skindx.workers import worker_process

SOUND, BLURRED = skin_photo(), skin_photo(blur=9)
TWO = (Refusal(2, "light", "it is dark; take it again."), Refusal(0, "blur", "it is blurred."))


@pytest.fixture(scope="module")
def predictor(tiny_bundle: Path) -> Predictor:
    return Predictor.load(tiny_bundle)


def refusing_all(predictor: Predictor) -> Predictor:
    """Return a predictor for which every photo is out of distribution."""
    return replace(predictor, ood=OodCheck((Alike(),), np.full((99, 1), -np.inf)))


def refused(predictor: Predictor, *photos: bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        answer(predictor, Case(photos))
    return caught.value


def gates(error: Refused) -> list[tuple[int, str]]:
    return [(refusal.photo, refusal.gate) for refusal in error.refusals]


def test_the_error_names_the_photos_in_their_order() -> None:
    error = Refused.of(TWO, 3)
    assert str(error) == "photo 1: it is blurred; photo 3: it is dark; take it again."
    assert (error.gate, error.photo) == ("blur", 0)
    assert error.refusals == (TWO[1], TWO[0])
    assert str(Refused.of(TWO[1:], 1)) == "it is blurred."


def test_a_refusal_crosses_a_process_border_whole() -> None:
    for error in (Refused("blur", "a sentence.", 2), Refused.of(TWO, 3)):
        there = pickle.loads(pickle.dumps(error))
        assert (there.gate, str(there), there.photo) == (error.gate, str(error), error.photo)
        assert there.refusals == error.refusals
    two = (replace(TWO[0], shown=b"\xff\xd8 jpeg"), TWO[1])
    message = io.BytesIO(worker_process.pack([worker_process.plain(photo) for photo in two]))
    received = worker_process.receive(message.read)
    assert tuple(worker_process.rebuilt(Refusal, part) for part in received) == two


def test_a_refused_photo_that_browsers_cannot_show_comes_back_small(predictor: Predictor) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    file = io.BytesIO()
    blurred = Image.open(io.BytesIO(skin_photo(800, 600, blur=30)))
    pillow_heif.from_pillow(blurred).save(file, quality=90)
    first, second = refused(predictor, file.getvalue(), BLURRED).refusals
    assert Image.open(io.BytesIO(first.shown)).size == (240, 180)
    assert second.shown == b""


def test_all_bad_photos_of_a_case_are_named_at_once(predictor: Predictor) -> None:
    assert gates(refused(predictor, BLURRED, SOUND, b"no photo")) == [
        (0, "blur"),
        (2, "unreadable"),
    ]
    strange = refusing_all(predictor)
    assert gates(refused(strange, SOUND, BLURRED, SOUND)) == [
        (0, "unfamiliar"),
        (1, "blur"),
        (2, "unfamiliar"),
    ]
    assert gates(refused(strange, BLURRED)) == [(0, "blur")]


def test_no_photo_is_smaller_than_what_the_bundle_was_checked_on(predictor: Predictor) -> None:
    least = least_side(predictor.bundle.spec)
    assert predictor.least_side == least == 71
    error = refused(predictor, skin_photo(100, least - 1))
    assert gates(error) == [(0, "size")]
    assert f"100 x {least - 1} pixels" in str(error)
    assert f"at least {least} pixels on each side" in str(error)
    assert answer(predictor, Case((skin_photo(100, least),))).diagnosis.photos[0].height == least


def test_no_bundle_takes_photos_below_the_floor_of_all() -> None:
    with pytest.raises(Refused, match=f"at least {MIN_SIDE} pixels"):
        open_photo(skin_photo(60, 60), least=10)
    with pytest.raises(Refused, match="at least 178 pixels"):
        open_photo(skin_photo(133, 106), least=178)


def test_files_that_cannot_be_read_are_named_together(tmp_path: Path) -> None:
    (tmp_path / "good.jpg").write_bytes(SOUND)
    assert read_photos([tmp_path / "good.jpg"]) == (SOUND,)
    with pytest.raises(UserError, match=r"one\.jpg does not exist.*two\.jpg does not exist") as e:
        read_photos([tmp_path / name for name in ("one.jpg", "good.jpg", "two.jpg")])
    assert str(e.value).endswith("check the path.")


def test_a_photo_of_the_other_modality_is_refused_before_an_unlike_one(
    predictor: Predictor,
) -> None:
    def checked(threshold: float) -> Predictor:
        check = ModalityCheck(kind="dermoscopic", threshold=threshold, images=100)
        spec = predictor.bundle.spec.model_copy(update={"modality": check})
        return replace(predictor, bundle=replace(predictor.bundle, spec=spec))

    error = refused(refusing_all(checked(-1e9)), SOUND, SOUND)
    assert gates(error) == [(0, "modality"), (1, "modality")]
    # The check cannot tell a photo by a phone from one of a flower: the sentence is right for both.
    assert "without one, or to show something other than skin; this says nothing" in str(error)
    assert answer(checked(1e9), Case((SOUND,))).diagnosis.candidates
    (found,) = checked(-1e9).predict([open_photo(SOUND).pixels_HWC])
    assert found.other_modality is True
    assert predictor.predict([open_photo(SOUND).pixels_HWC])[0].other_modality is None
