"""Images that made a bundle, and copies of them, are left out of an evaluation and counted."""

import json
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from evaluation_fakes import FakePredictor, records_of, simulate, write_dataset

from skindx.core.errors import UserError
from skindx.data.copies.describe import describe_bytes
from skindx.data.manifest import Record, write_manifest
from skindx.evaluation.answers import OLDER, OWN, Contamination, leave_out
from skindx.evaluation.evaluate import evaluate_served
from skindx.models.fingerprints import Fingerprints


def jpeg(seed: int, quality: int) -> bytes:
    random = np.random.default_rng(seed)
    coarse = random.normal(128, 50, (9, 12, 3)).clip(0, 255).astype(np.uint8)
    pixels = cv2.resize(coarse, (160, 120), interpolation=cv2.INTER_CUBIC)
    return cv2.imencode(".jpg", pixels, [1, quality])[1].tobytes()


@pytest.fixture
def dataset(tmp_path: Path) -> tuple[Path, list[Record]]:
    """Images 0..5 at quality 70; a bundle was made from 0 in these bytes, and from 1 and 2."""
    records = records_of(["nevus"] * 6)
    (tmp_path / "data/pictures").mkdir(parents=True)
    for seed, record in enumerate(records):
        (tmp_path / "data" / record.path).write_bytes(jpeg(seed, 70))
    write_manifest(tmp_path / "data", records)
    return tmp_path / "data", records


def predictor(made_from: int) -> SimpleNamespace:
    prints = Fingerprints.from_images(
        (f"{seed:064x}", describe_bytes(jpeg(seed, 95))) for seed in range(made_from)
    )
    seen = {f"{0:064x}": "train", f"{5:064x}": "test"}
    return SimpleNamespace(trained_on="a", seen=seen, fingerprints=prints)


def test_copies_in_other_bytes_are_left_out_and_counted(
    dataset: tuple[Path, list[Record]],
) -> None:
    folder, records = dataset
    rest, contamination = leave_out(
        predictor(3), folder, records, "all", manifest="b", bundle="bundle"
    )
    assert rest == records[3:]
    assert contamination == Contamination(1, 2, "")


def test_nothing_left_is_one_sentence(dataset: tuple[Path, list[Record]]) -> None:
    folder, records = dataset
    with pytest.raises(UserError, match=r"all 5 images are, or are copies of"):
        leave_out(predictor(6), folder, records, "test", manifest="b", bundle="bundle")


def test_where_copies_are_not_looked_for(dataset: tuple[Path, list[Record]]) -> None:
    folder, records = dataset
    made = predictor(3)
    rest, contamination = leave_out(made, folder, records, "test", manifest="a", bundle="bundle")
    assert (rest, contamination) == (records[1:], Contamination(1, 0, OWN))
    rest, contamination = leave_out(made, folder, records, "train", manifest="b", bundle="bundle")
    assert (rest, contamination) == (records, Contamination(0, 0, OWN))
    made.fingerprints = None
    rest, contamination = leave_out(made, folder, records, "test", manifest="b", bundle="bundle")
    assert (rest, contamination) == (records[1:], Contamination(1, 0, OLDER))


def test_metrics_report_and_table_say_it(tmp_path: Path) -> None:
    labels, table = simulate(12)
    records = records_of(labels)
    folder = write_dataset(tmp_path / "dataset", records)

    def decode(data: bytes) -> np.ndarray:
        return np.zeros((6, 8, 3), np.uint8)

    for prints, sentence in (
        (Fingerprints.from_images([]), "0 images are left out: copies of images"),
        (None, f"Copies in other bytes were not looked for: {OLDER}."),
    ):
        served = FakePredictor(table, fingerprints=prints)
        out = tmp_path / f"out {prints is None}"
        evaluate_served(served, records, decode, out, bundle="b", dataset=folder, draws=20)
        metrics = json.loads((out / "metrics.json").read_text())
        assert metrics["contamination"]["near_copies"] == 0
        assert bool(metrics["contamination"]["not_searched"]) == (prints is None)
        assert sentence in (out / "report.html").read_text()
