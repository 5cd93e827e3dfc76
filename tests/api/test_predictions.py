"""Predictions of many photos: the page's digits, one row a photo whatever it is, bounded memory."""

import io
import itertools
import os
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from skin_photo import skin_photo

import skindx
from skindx.api import predictions
from skindx.core.machine import cpu_count
from skindx.diagnosis.predictor import Predictor
from skindx.imaging.decode import decode
from skindx.models.ood.ood_check import OodCheck
from skindx.models.urgent_risk import RiskLevel, UrgentRiskRule

PHOTOS = tuple(skin_photo(seed=seed) for seed in range(5))


class LenientCheck(OodCheck):
    """Measures photos, and refuses none."""

    def is_out(self, p_value: float) -> bool:
        return False


@pytest.fixture(scope="module")
def model(whole_bundle: Path) -> skindx.Model:
    """Return a bundle with all parts whose out-of-distribution check refuses nothing."""
    predictor = Predictor.load(whole_bundle)
    assert predictor.ood
    ood = LenientCheck(predictor.ood.detectors, predictor.ood.scores_NK)
    level = RiskLevel(miss_rate=0.05, thresholds={"all": 0.1})
    rule = UrgentRiskRule(urgent_columns=(1, 2), lesions={"all": 57}, levels=(level,))
    spec = predictor.bundle.spec.model_copy(update={"urgent_risk": rule})
    bundle = replace(predictor.bundle, spec=spec)
    return skindx.Model(replace(predictor, ood=ood, bundle=bundle))


def test_a_row_holds_what_diagnose_answers(model: skindx.Model) -> None:
    rows = model.predict(PHOTOS, facts={"age": 40, "laterality": "left"}).to_pylist()
    for photo, row in zip(PHOTOS, rows, strict=True):
        answer = model.diagnose(photo, age=40)
        record = answer.diagnosis
        assert row["refused"] is None
        assert (row["urgency"], row["advice"]) == (answer.urgency, answer.advice)
        assert row["abstained"] == answer.abstained
        assert row["set"] == list(answer.conformal_set)
        for key, probability in answer.probabilities.items():
            assert row[f"probability_{key}"] == probability
        assert record.urgent_risk
        assert row["urgent_risk"] == record.urgent_risk.risk
        assert row["familiarity"] == record.familiarity
        total = sum(row[f"probability_{key}"] for key in model.classes)
        assert total == pytest.approx(1)


def test_no_batch_size_changes_a_digit(model: skindx.Model) -> None:
    first, *others = (model.predict(PHOTOS, batch).to_pylist() for batch in (1, 2, 5, 64))
    assert all(row["refused"] is None for row in first)
    assert others == [first] * 3
    assert model.predict(PHOTOS[::-1], 3).to_pylist()[::-1] == first


def test_paths_bytes_images_and_arrays_are_the_same_photo(
    model: skindx.Model, tmp_path: Path
) -> None:
    file = tmp_path / "photo.jpg"
    file.write_bytes(PHOTOS[0])
    opened = Image.open(io.BytesIO(PHOTOS[0]))
    # Pillow's JPEG decoder may round another way than ours: its own pixels are the comparison.
    pixels = np.asarray(opened)
    same = [file, str(file), PHOTOS[0], memoryview(PHOTOS[0]), decode(PHOTOS[0]), pixels, opened]
    table = model.predict(same)
    assert table["file"].to_pylist() == [str(file), str(file), *[None] * 5]
    assert len(set(table["probability"].to_pylist()[:5])) == 1
    assert len(set(table["probability"].to_pylist()[5:])) == 1


def test_one_bad_photo_is_a_row_and_no_end(model: skindx.Model, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty.jpg").touch()
    bad = {
        tmp_path / "nowhere.jpg": "file",
        tmp_path: "file",
        tmp_path / "pipe": "file",
        "nul\0byte": "file",
        "not\udcffutf8.jpg": "file",
        3.5: "file",
        tmp_path / "empty.jpg": "unreadable",
        b"GIF89a": "unreadable",
        PHOTOS[0][:900]: "unreadable",
        skin_photo(blur=9): "blur",
    }
    table = model.predict([*bad, np.zeros((9, 9)), np.zeros((200, 200, 3), np.uint8), PHOTOS[1]], 4)
    assert table["refused"].to_pylist()[:-1] == [*bad.values(), "file", "light"]
    reasons = table["reason"].to_pylist()[:-1]
    assert all(reason.endswith(".") and "\n" not in reason for reason in reasons)
    assert None not in table["sha256"].to_pylist()[6:10]
    # Of a file that is too large only a part is read, whose hash is no file's.
    with (tmp_path / "large.jpg").open("wb") as file:
        file.truncate(21 << 20)
    assert model.predict([tmp_path / "large.jpg"])["sha256"].to_pylist() == [None]


def test_an_error_of_ours_spoils_one_row(
    model: skindx.Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = Predictor.predict_with_features

    def failing(self: Predictor, images: list[np.ndarray]) -> object:
        if any(image.shape[0] == 90 for image in images):
            raise RuntimeError("of doe.jpg")
        return plain(self, images)

    monkeypatch.setattr(Predictor, "predict_with_features", failing)
    table = model.predict([PHOTOS[0], skin_photo(120, 90), PHOTOS[1]])
    assert table["refused"].to_pylist()[1] == "failed"
    assert "failed" not in table["refused"].to_pylist()[::2]
    assert caplog.messages == ["a photo could not be judged (RuntimeError)"]  # and no names


def test_facts_are_for_all_or_for_each(model: skindx.Model) -> None:
    each = model.predict(PHOTOS[:2], facts=[{"age": 200}, None])
    assert each["refused"].to_pylist()[0] == "facts"
    assert "age" in each["reason"].to_pylist()[0]
    with pytest.raises(skindx.UserError, match="did you mean 'age'"):
        model.predict(PHOTOS, facts={"agee": 3})
    with pytest.raises(skindx.UserError, match="2 facts are given for 5"):
        model.predict(PHOTOS, facts=[None, None])
    with pytest.raises(skindx.UserError, match="the photos are not a list"):
        model.predict("photo.jpg")
    with pytest.raises(skindx.UserError, match="at least 1"):
        model.predict(PHOTOS, batch=0)
    with pytest.raises(skindx.UserError, match="whole number"):
        model.predict(PHOTOS, batch=2.5)  # type: ignore[arg-type]
    with pytest.raises(skindx.UserError, match="no mapping; give one"):
        model.predict(PHOTOS, facts="age")  # type: ignore[arg-type]
    for few in ([None], [None, None, None]):
        with pytest.raises(skindx.UserError, match="the number of facts differs"):
            model.predict(iter(PHOTOS[:2]), facts=iter(few))


def test_a_device_that_is_not_there_is_a_sentence() -> None:
    with pytest.raises(skindx.UserError, match="no device 'tpu'; give --device cpu"):
        skindx.load("./bundle", device="tpu")


def test_a_stream_without_end_is_read_a_little_ahead(model: skindx.Model) -> None:
    taken = 0

    def endless() -> itertools.count:
        nonlocal taken
        for n in itertools.count():
            taken += 1
            yield PHOTOS[n % 5]

    counts: list[tuple[str, int, int]] = []
    stream = model.iter_predictions(endless(), 4, progress=lambda *at: counts.append(at))
    rows = [next(stream).num_rows for _ in range(3)]
    stream.close()
    assert rows == [4, 4, 4]
    assert counts == [("predict", 4, 0), ("predict", 8, 0), ("predict", 12, 0)]
    assert taken <= 12 + 4 + cpu_count() + 1


def test_large_photos_make_smaller_batches(
    model: skindx.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictions, "MOST_PIXELS", 2 * 240 * 180)
    sizes = [batch.num_rows for batch in model.iter_predictions(PHOTOS, 64)]
    assert sizes == [3, 2]


def test_threads_get_the_rows_of_one(model: skindx.Model) -> None:
    alone = model.predict(PHOTOS)
    tables: dict[int, object] = {}

    def predicting(n: int) -> None:
        tables[n] = model.predict(PHOTOS, batch=1 + n)

    threads = [threading.Thread(target=predicting, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(4):
        assert tables[n] == alone


def test_memory_does_not_grow_with_the_photos(
    model: skindx.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 2,000 photos no more are alive at any time than two batches and those at work."""
    alive, most = 0, 0
    plain = predictions._read

    def freed() -> None:
        nonlocal alive
        alive -= 1

    def counted(*values: Any) -> predictions._Read:
        nonlocal alive, most
        read = plain(*values)
        alive += 1
        most = max(most, alive)
        weakref.finalize(read, freed)
        return read

    monkeypatch.setattr(predictions, "_read", counted)
    endless = itertools.cycle([PHOTOS[0], *[b"GIF89a"] * 99])
    rows = 0
    for batch in model.iter_predictions(itertools.islice(endless, 2000), 16):
        rows += batch.num_rows
    assert rows == 2000
    assert most <= 3 * 16 + 2 * cpu_count()
