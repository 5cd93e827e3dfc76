"""The photos that judge the shipped detector: held apart, exactly as many lesions as it says."""

import csv
import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.core.errors import UserError
from skindx.models.detector import MODEL_WEIGHTS, MODEL_YAML
from skindx.models.shipped_detector import INDEX, open_shipped
from skindx_bench.scan.compose import varied_lesion
from skindx_bench.scan.material import CutOut, Material
from skindx_bench.scan.outlined import (
    copies_of_lesions,
    joined,
    outlined_side,
    read_outlined,
    set_outlined,
)
from skindx_bench.scan.planted import Config, planted, ship
from skindx_bench.scan.scoring import Photo

SKIN = (205, 160, 140)
CHECKOUT = Path(__file__).parents[2]


def _cut(angle: int = 20) -> CutOut:
    pixels, mask = np.full((120, 160, 3), SKIN, np.uint8), np.zeros((120, 160), np.uint8)
    for image, colour in ((pixels, (110, 70, 60)), (mask, 255)):
        cv2.ellipse(image, (80, 60), (50, 30), angle, 0, 360, colour, -1)
    x, y, wide, high = cv2.boundingRect(mask)
    return CutOut(pixels, (x, y, x + wide, y + high), urgent=False, mask_HW=mask)


@given(st.integers(0, 10_000), st.floats(20, 120), st.sampled_from(["poisson", "feathered"]))
def test_the_box_is_that_of_the_outline_at_the_size_that_was_asked(
    seed: int, size: float, blending: str
) -> None:
    rng = np.random.default_rng(seed)
    photo = np.full((240, 260, 3), SKIN, np.uint8)
    box = set_outlined(photo, varied_lesion(_cut(), rng), (130, 120), size, rng, blending=blending)  # type: ignore[arg-type]
    assert box is not None
    if blending == "poisson" and size < 60:  # OpenCV shrinks the mask by three pixels
        return
    assert max(box.x2 - box.x1, box.y2 - box.y1) == pytest.approx(size, abs=2.5)
    assert (box.x1 + box.x2) / 2 == pytest.approx(130, abs=2)
    assert (box.y1 + box.y2) / 2 == pytest.approx(120, abs=2)
    shows = np.abs(photo.astype(int) - SKIN).max(axis=2) > 25
    rows, columns = np.nonzero(shows)
    assert columns.min() >= box.x1 - 4
    assert columns.max() <= box.x2 + 4
    assert rows.min() >= box.y1 - 4
    assert rows.max() <= box.y2 + 4
    assert np.array_equal(photo[0], np.full((260, 3), SKIN, np.uint8))


def test_a_lesion_is_not_magnified_to_a_blur() -> None:
    photo, rng = np.full((900, 900, 3), SKIN, np.uint8), np.random.default_rng(0)
    assert set_outlined(photo, _cut(), (450, 450), 400, rng) is None


def _write_ham(folder: Path, count: int) -> Path:
    (folder / "images").mkdir(parents=True)
    (folder / "masks").mkdir()
    rng = np.random.default_rng(0)
    with (folder / "index.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "dx", "lesion_id"])
        for number in range(count):
            cut = _cut(int(rng.integers(180)))
            assert cut.mask_HW is not None
            noisy = np.clip(cut.pixels_HW3 + rng.normal(0, 3, (120, 160, 3)), 0, 255)
            bgr = cv2.cvtColor(noisy.astype(np.uint8), cv2.COLOR_RGB2BGR)
            cv2.imwrite(str(folder / f"images/I{number}.jpg"), bgr)
            cv2.imwrite(str(folder / f"masks/I{number}.png"), cut.mask_HW)
            rows.writerow([f"I{number}", "mel", f"L{number // 2}"])
    return folder


def test_a_lesion_is_on_one_side_and_taken_once(tmp_path: Path) -> None:
    ham = _write_ham(tmp_path / "ham", 40)
    sides = {side: read_outlined(ham, side) for side in ("train", "val", "test")}
    lesions = [outlined_side(f"L{number}") for number in range(20)]
    for side, material in sides.items():
        assert len(material.lesions) == lesions.count(side)
        assert all(cut.urgent for cut in material.lesions)
    assert len(joined(*sides.values()).lesions) == 20
    with pytest.raises(UserError, match=r"has no index\.csv"):
        read_outlined(tmp_path, "train")


def test_a_stretched_turned_copy_of_a_held_out_lesion_is_named(tmp_path: Path) -> None:
    ham, images = _write_ham(tmp_path / "ham", 12), tmp_path / "boxes/train/images"
    images.mkdir(parents=True)
    held = next(n for n in range(12) if outlined_side(f"L{n // 2}") != "train")
    copy = cv2.imread(str(ham / f"images/I{held}.jpg"))
    turned = cv2.rotate(cv2.resize(copy, (200, 200)), cv2.ROTATE_90_CLOCKWISE)
    cv2.imwrite(str(images / "copy_jpg.rf.1.jpg"), turned)
    other = np.random.default_rng(1).integers(0, 255, (8, 8, 3), np.uint8)
    cv2.imwrite(str(images / "other_jpg.rf.1.jpg"), cv2.resize(other, (200, 200)))
    found = copies_of_lesions(tmp_path / "boxes", ham, ("test", "val"))
    assert found == {"copy_jpg"}


def test_every_photo_has_exactly_its_lesions_and_is_the_same_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = Config(photos=2, width=640, height=480, lesions=3, sizes_most=60)
    first, again = (list(planted(config, Material(), "second")) for _ in "ab")
    assert not np.array_equal(
        next(planted(config, Material(), "first")).pixels_HW3, first[0].pixels_HW3
    )
    assert [len(one.boxes) for one in first] == [3, 3]
    for one, other in zip(first, again, strict=True):
        assert np.array_equal(one.pixels_HW3, other.pixels_HW3)
    monkeypatch.setattr("skindx_bench.scan.planted._ATTEMPTS", 2)
    crowded = Config(photos=1, width=256, height=256, lesions=80, sizes_most=30)
    with pytest.raises(UserError, match="has room for 80 lesions"):
        next(planted(crowded, Material(), "second"))


def test_a_second_box_at_a_lesion_is_not_once() -> None:
    truth = np.array([[0, 0, 20, 20], [50, 50, 90, 90]], np.float64)
    found = np.array([[0, 0, 20, 20], [4, 4, 20, 20], [50, 50, 90, 88]], np.float64)
    photo = Photo(truth, found, np.array([0.9, 0.5, 0.8]))
    assert photo.listed(0.4).tolist() == [2, 1]
    assert photo.listed(0.6).tolist() == [1, 1]


def test_what_is_shipped_says_what_the_bench_measured(tmp_path: Path) -> None:
    run = tmp_path / "run/detector"
    run.mkdir(parents=True)
    for name in (MODEL_YAML, MODEL_WEIGHTS):
        (run / name).write_bytes(name.encode())
    measured = tmp_path / "planted.json"
    measured.write_text(json.dumps({"figures": {"planted_recall": {"value": 0.955, "n": 200}}}))
    ship(run.parent, tmp_path / "out", 0.4, 640, measured)
    index = open_shipped(tmp_path / "out").index
    assert (index.spec.size, index.spec.confidence) == (640, 0.4)
    assert index.planted is not None
    assert (index.planted.found, index.planted.lesions, index.planted.photos) == (191, 200, 10)


def test_the_shipped_detector_promises_what_stands_in_the_measured_file() -> None:
    folder = CHECKOUT / "models/lesion-detector"
    written = json.loads((CHECKOUT / "docs/measured/scan-planted.json").read_text())
    figure, asked = written["figures"]["planted_recall"], Config()
    opened = open_shipped(folder).index
    assert opened.planted is not None
    assert opened.planted.lesions == figure["n"] == asked.photos * asked.lesions == 200
    assert opened.planted.recall.low == pytest.approx(figure["spread"][0])
    assert (folder / INDEX).stat().st_size + (folder / MODEL_WEIGHTS).stat().st_size < 6e6
