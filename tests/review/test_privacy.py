import importlib.util
import socket
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from tiny_dataset import skin

from skindx.core.errors import UserError
from skindx.imaging.decode import decode
from skindx.review.privacy_audit import PrivacyDetector, PrivacySettings, is_text, version

NAME = "Anna Schmidt"


@pytest.fixture(scope="module")
def detector() -> PrivacyDetector:
    return PrivacyDetector(PrivacySettings())


def photo(package: str, path: str) -> NDArray[np.uint8]:
    """Return a photo of people that an installed package ships, or skip."""
    found = importlib.util.find_spec(package)
    file = Path(found.origin).parent / path if found and found.origin else None
    if file is None or not file.is_file():
        pytest.skip(f"{package} ships no {path}")
    return decode(file.read_bytes())


def tagged(text: str, corner: tuple[int, int], pixels: int = 15) -> NDArray[np.uint8]:
    image = Image.fromarray(skin(3, 320, 240))
    font = ImageFont.load_default(pixels)
    ImageDraw.Draw(image).text(corner, text, font=font, fill="black")
    return np.asarray(image)


@pytest.mark.parametrize(
    ("package", "path"),
    [("matplotlib", "mpl-data/sample_data/grace_hopper.jpg"), ("ultralytics", "assets/zidane.jpg")],
)
@pytest.mark.parametrize("upside_down", [False, True])
def test_faces_are_found(
    detector: PrivacyDetector, package: str, path: str, upside_down: bool
) -> None:
    pixels = photo(package, path)
    if upside_down:
        pixels = np.ascontiguousarray(pixels[::-1, ::-1])
    faces = [finding for finding in detector.detect(pixels) if finding.reason == "face"]
    assert faces
    assert max(face.score for face in faces) > 0.5


def test_the_box_lies_on_the_face(detector: PrivacyDetector) -> None:
    pixels = photo("matplotlib", "mpl-data/sample_data/grace_hopper.jpg")
    (face,) = [finding for finding in detector.detect(pixels) if finding.reason == "face"]
    kind, _, where = face.detail.partition(" at ")
    (x1, y1), (x2, y2) = ([int(v) for v in corner.split(",")] for corner in where.split(" to "))
    assert kind in ("face female", "face male")
    # Her eyes and mouth lie in there, the wall and the cap's top do not.
    assert 130 < x1 < 200 < 320 < x2 < 400
    assert 100 < y1 < 190 < 300 < y2 < 380


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_a_name_is_found_where_it_stands_and_is_not_repeated(
    detector: PrivacyDetector, turns: int
) -> None:
    pixels = np.ascontiguousarray(np.rot90(tagged(NAME, (20, 200)), turns))
    found = [finding for finding in detector.detect(pixels) if finding.reason == "text"]
    assert found
    for finding in found:
        assert finding.score >= 0.5
        assert "Anna" not in finding.detail
        assert "Schmidt" not in finding.detail
    if turns == 0:
        assert found[0].detail.split(" at ")[1].split(",")[0] in {str(x) for x in range(10, 25)}


def test_skin_alone_and_a_ruler_are_no_text(detector: PrivacyDetector) -> None:
    plain = skin(5, 320, 240)
    ruled = plain.copy()
    for n in range(30):
        cv2.line(ruled, (10 + 10 * n, 230), (10 + 10 * n, 218 if n % 5 else 210), (0, 0, 0), 1)
    for pixels in (plain, ruled):
        assert [
            finding for finding in detector.detect(pixels) if finding.reason in ("text", "face")
        ] == []


@pytest.mark.parametrize("shape", [(64, 64), (256, 64), (16, 400)])
def test_odd_sizes_are_looked_at(detector: PrivacyDetector, shape: tuple[int, int]) -> None:
    detector.detect(np.full((*shape, 3), 180, np.uint8))


def test_the_threshold_decides(detector: PrivacyDetector) -> None:
    pixels = photo("matplotlib", "mpl-data/sample_data/grace_hopper.jpg")
    assert any(finding.reason == "face" for finding in detector.detect(pixels))
    strict = PrivacyDetector(PrivacySettings(face=0.99, intimate=0.99, text=1.0))
    assert strict.detect(pixels) == []


@pytest.mark.parametrize(
    ("line", "written"),
    [
        ("12.03.2019", True),
        ("Anna", True),
        ("ID 883205", True),
        ("李明", True),
        ("1i11", False),
        ("10", False),
        ("20", False),
        ("福", False),
        ("", False),
        ("®", False),
    ],
)
def test_rulers_and_spots_are_no_writing(line: str, written: bool) -> None:
    assert is_text(line) is written


def test_the_version_knows_packages_and_thresholds() -> None:
    assert version(PrivacySettings()) != version(PrivacySettings(face=0.3))
    assert "nudenet 3" in version(PrivacySettings())


def test_without_the_extra_one_sentence_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "nudenet" else real(name)
    )
    with pytest.raises(UserError, match=r"nudenet.* install .*\[audit,detect\]'"):
        PrivacyDetector(PrivacySettings())


def test_nobody_is_called(detector: PrivacyDetector, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network is asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    PrivacyDetector(PrivacySettings()).detect(tagged(NAME, (20, 100)))
