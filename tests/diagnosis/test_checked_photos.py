"""The photos of a case on their way past the gates."""

import io
from typing import get_args

from PIL import Image
from skin_photo import skin_photo

from skindx.diagnosis.case import Case
from skindx.diagnosis.photo_checks import FAULTS, check_photos
from skindx.imaging.photo_gates import Fault


def test_there_is_advice_for_every_fault() -> None:
    assert set(FAULTS) == set(get_args(Fault))


def test_every_photo_of_a_case_is_looked_at() -> None:
    sound, dark = skin_photo(), skin_photo(skin_type=6, form="PNG")
    black = _png(Image.new("RGB", (200, 150)))
    seen, refusals = check_photos(Case((black, sound, b"no photo")))
    assert list(seen) == [1]
    assert [(refusal.photo, refusal.gate) for refusal in refusals] == [
        (0, "light"),
        (2, "unreadable"),
    ]
    assert refusals[0].message.startswith("The photo is too dark")
    seen, refusals = check_photos(Case((sound, dark)))
    assert (list(seen), refusals) == ([0, 1], [])


def test_small_photos_are_remarked_on() -> None:
    small = check_photos(Case((skin_photo(180, 150),)))[0][0]
    assert small.remarks == (
        "The photo is small (180 x 150 pixels), so fine structures may be lost.",
    )
    fine = check_photos(Case((skin_photo(800, 600),)))[0][0]
    assert fine.remarks == ()


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
