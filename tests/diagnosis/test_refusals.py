"""All photos of a case are judged, and every refusal is told at once."""

import io
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from PIL import Image
from skin_photo import skin_photo
from some_features import Alike

from skindx.core.errors import UserError
from skindx.diagnosis.case import Case
from skindx.diagnosis.diagnose import answer
from skindx.diagnosis.photo_checks import (
    MIN_SIDE,
    Gate,
    Refusal,
    Refused,
    open_photo,
    read_photos,
)
from skindx.diagnosis.photo_list import FILE
from skindx.diagnosis.predictor import Predictor
from skindx.diagnosis.record import LesionBox, Photo
from skindx.diagnosis.scope import not_judged
from skindx.imaging.photo_gates import ModalityCheck
from skindx.models.bundle.bundle_index import least_side
from skindx.models.ood.ood_check import OodCheck
from skindx.texts.catalogue import text
from skindx.ui.answers_page import shown_row
from skindx.ui.http.answer_forms import fhir_problem
from skindx.ui.http.answer_rows import row_of
from skindx.ui.http.api_schemas import problem
from skindx.workers import worker_process

SOUND, BLURRED = skin_photo(), skin_photo(blur=9)
AGAIN = skin_photo(quality=90)
"""The sound photo in another file: a case has each file once."""
TWO = (Refusal(2, "light", "It is dark, so take it again."), Refusal(0, "blur", "It is blurred."))


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
    error = Refused.from_photos(TWO, 3)
    causes = "Photo 1: It is blurred. Photo 3: It is dark, so take it again."
    assert str(error) == f"{causes} {not_judged()}"
    assert (error.gate, error.photo) == ("blur", 0)
    assert error.refusals == (TWO[1], TWO[0])
    assert str(Refused.from_photos(TWO[1:], 1)) == f"It is blurred. {not_judged()}"


def noise(width: int, height: int, high: int = 256) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, high, (height, width, 3), np.uint8)
    pixels[..., ::2] //= 8  # green, as no skin is
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def test_no_refusal_sounds_like_an_all_clear(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each gate, in the words of every output; once, however many photos are refused."""
    modality = ModalityCheck(kind="clinical", threshold=-1e9, images=100)
    spec = predictor.bundle.spec.model_copy(update={"modality": modality})
    other = replace(predictor, bundle=replace(predictor.bundle, spec=spec))
    strange = refusing_all(predictor)
    errors = [
        *(refused(predictor, bad) for bad in (b"", b"no photo", noise(900, 80), noise(60, 60))),
        *(refused(predictor, bad) for bad in (BLURRED, noise(200, 200, 9), noise(200, 200))),
        *(refused(strange, SOUND), refused(other, SOUND), refused(strange, SOUND, BLURRED, AGAIN)),
    ]
    seen = {gate for error in errors for _, gate in gates(error)}
    assert seen == set(get_args(Gate))
    for error in errors:
        ending = not_judged()
        assert str(error).count(ending) == str(error).count(text("advice_now")) == 1
        assert str(error).endswith(ending)
        said = [
            problem(422, str(error), refused=error),
            fhir_problem(422, str(error), refused=error),
        ]
        for body in map(json.loads, (answer_.body for answer_ in said)):
            shown = json.dumps(body, ensure_ascii=False).count(ending)
            assert shown == len(error.refusals) + ("error" in body)
        row = row_of(error)
        assert row["reason"] == str(error)
        assert ending in shown_row({FILE: "a.jpg", "sha256": "", **row}, "", {})["text"]
    assert row_of(UserError("it is odd."))["reason"].endswith(not_judged())
    dermoscopic = predictor.bundle.images.model_copy(update={"modality": "dermoscopic"})
    monkeypatch.setattr(type(predictor.bundle), "images", dermoscopic, raising=False)
    strange, predictor = replace(strange), replace(predictor)  # what a bundle says is read once
    assert "take the photo through a dermatoscope" in str(refused(predictor, noise(200, 200)))
    said = str(refused(strange, SOUND))
    assert "The photo is too unlike the images" in said
    assert text("advice_now") in said
    assert "modality" not in said
    for seen_otherwise in (noise(60, 60), noise(900, 80), BLURRED):
        assert "dermatoscope" not in str(refused(predictor, seen_otherwise))


@pytest.mark.parametrize("none", [10, None])
def test_a_refusal_by_the_networks_says_how_often_urgent_images_are_refused(
    predictor: Predictor, none: int | None
) -> None:
    rates = {"none": {"value": 10 / 243, "low": 0.0169, "high": 0.0825}} if none else {}
    row = {"name": "urgent classes", "n": 243, "steps": {"none": none}, "rates": rates}
    measured = refusing_all(predictor)
    vars(measured)["metrics"] = {"served": [row]}  # in the place of what a bundle has
    figure = "The model also refused 4 of 100 urgent test images (95 % interval 1.7 % to 8.3 %)."
    assert (figure in str(refused(measured, SOUND))) == bool(none)
    assert "urgent" not in str(refused(measured, BLURRED))


def test_a_refused_photo_from_afar_is_offered_a_scan(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange = refusing_all(predictor)
    assert "so scan the photo" not in str(refused(strange, SOUND))
    boxes = tuple(
        LesionBox(x1=x, y1=5, x2=x + 9, y2=14, score=0.9, label="spot") for x in (10, 60, 110, 160)
    )
    afar = Photo(width=240, height=180, sha256="0" * 64, boxes=boxes)
    monkeypatch.setattr("skindx.diagnosis.network_gates.photo_of", lambda *_: afar)
    error = refused(strange, SOUND, AGAIN)
    shown = "The photo shows 4 small lesions, so scan the photo"
    assert str(error).count(shown) == 1  # a reason that all photos share is said once
    assert str(error).startswith("Each of photos 1 to 2: ")
    assert all(shown in one.text for one in error.refusals)
    assert "`skindx scan run`" in error.refusals[0].text


def test_a_refusal_crosses_a_process_border_whole() -> None:
    for error in (Refused("blur", "a sentence.", 2), Refused.from_photos(TWO, 3)):
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
    assert gates(refused(strange, SOUND, BLURRED, AGAIN)) == [
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

    error = refused(refusing_all(checked(-1e9)), SOUND, AGAIN)
    assert gates(error) == [(0, "modality"), (1, "modality")]
    # The check cannot tell a photo by a phone from one of a flower: the sentence is right for both.
    assert "take another through a dermatoscope" in str(error)
    assert answer(checked(1e9), Case((SOUND,))).diagnosis.candidates
    (found,) = checked(-1e9).predict([open_photo(SOUND).pixels_HWC])
    assert found.other_modality is True
    assert predictor.predict([open_photo(SOUND).pixels_HWC])[0].other_modality is None
