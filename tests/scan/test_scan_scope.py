"""What a scan says of the conditions that its bundle does not know, in every output."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from found_lesions import lesion
from painted_bodies import CLASSES, PHOTOS, paint, scan_of, size_recall
from pdf_words import words_of
from tiny_bundle import pack_tiny
from whole_photo import ArrayPhoto

from skindx.diagnosis.predictor import Predictor
from skindx.diagnosis.report import pdf_sheet
from skindx.models.conformal import Share
from skindx.scan.compare.registration import read_scan
from skindx.scan.outputs.scan_files import write_lesion_list, write_scan
from skindx.scan.outputs.scan_pages import threshold_sentence
from skindx.scan.outputs.scan_result import missed_sentence, read_summary
from skindx.scan.scanned_lesions import diagnose_lesions, rank, read_lesions, write_lesions
from skindx.taxonomy import SkinClass, Taxonomy
from skindx.texts import catalogue
from skindx.ui.scans.scan_answer import answer_of, list_html

SIZE = (500, 400)
HARMLESS = tuple(one for one in CLASSES if one.urgency != "urgent")


class Folder:
    """A scan's folder, written by a bundle with some classes."""

    def __init__(self, path: Path, classes: tuple[SkinClass, ...], risk: float | None) -> None:
        lesions = [lesion(90 + 80 * n, 150, risk=risk, urgent=None) for n in range(5)]
        lesions = [
            replace(one, probabilities_C=np.full(len(classes), 1 / len(classes)), possible=())
            for one in lesions
        ]
        result = replace(scan_of(lesions, size_wh=SIZE, miss_rate=None), classes=classes)
        write_scan(path, result, [ArrayPhoto(paint(lesions, SIZE))])
        write_lesion_list(path, result.photos, [], classes)
        self.path = path
        self.answer = answer_of(path, Taxonomy(name="t", title="T", classes=classes))

    def texts(self) -> dict[str, str]:
        """Return every output as a person reads it."""
        texts = {
            name: (self.path / name).read_text(encoding="utf-8")
            for name in ("scan.html", "lesions.csv", "lesions.coco.json", "lesions.json")
        }
        texts["scan.pdf"] = words_of((self.path / "scan.pdf").read_bytes())
        texts["page"] = list_html(self.path, self.answer)
        texts["api"] = self.answer.model_dump_json()
        return {
            name: " ".join(text.replace("\xa0", " ").replace("\\", "").split())
            for name, text in texts.items()
        }


@pytest.fixture(scope="module")
def harmless(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pdf_sheet, "dejavu", lambda: None)
        return Folder(tmp_path_factory.mktemp("scan") / "harmless", HARMLESS, None)


def test_without_urgent_classes_no_output_gives_an_urgent_risk(harmless: Folder) -> None:
    for name, text in harmless.texts().items():
        assert "< 1 %" not in text.replace("&lt;", "<"), name
        assert "no urgent condition" in text, name
    with (harmless.path / "lesions.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {(row["urgent_risk"], row["urgent"]) for row in rows} == {("", "")}
    assert {row["no_urgent_risk"] for row in rows} == {catalogue.text("no_urgent_classes")}
    assert pq.read_table(harmless.path / "lesions.parquet")["urgent_risk"].null_count == 5
    assert [one.urgent_risk for one in harmless.answer.lesions] == [None] * 5
    assert harmless.answer.no_urgent_risk == catalogue.text("no_urgent_classes")
    assert '<span class="risk">–</span>' in harmless.texts()["scan.html"]


def test_every_output_says_which_conditions_the_model_does_not_know(harmless: Folder) -> None:
    for name, text in harmless.texts().items():
        assert "Melanocytic naevus" in text, name
        assert "Merkel cell carcinoma" in text, name
        assert name == "api" or "may show melanoma or invasive squamous cell carcinoma" in text, (
            name
        )
    assert "melanoma" in harmless.answer.unknown_urgent
    assert harmless.answer.warning.startswith("Any photo may show melanoma")
    summary = read_summary(harmless.path)
    assert set(summary.known) == {one.name for one in HARMLESS}


def test_with_an_urgent_class_the_risk_stands_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)
    folder = Folder(tmp_path / "scan", CLASSES, 0.004)
    texts = folder.texts()
    assert "< 1 %" in texts["scan.html"].replace("&lt;", "<")
    assert folder.answer.no_urgent_risk == ""
    assert folder.answer.lesions[0].urgent_risk == 0.004
    for name, text in texts.items():
        assert "Merkel cell carcinoma" in text, name


def test_a_scan_of_an_older_version_is_read_with_the_same_caution(harmless: Folder) -> None:
    path = harmless.path.parent / "older"
    shutil.copytree(harmless.path, path)
    table = pq.read_table(path / "lesions.parquet")
    zero = table.set_column(
        table.schema.get_field_index("urgent_risk"), "urgent_risk", [[0.0] * table.num_rows]
    ).drop(["no_urgent_risk", "not_known"])
    pq.write_table(zero, path / "lesions.parquet")
    raw = json.loads((path / "scan.json").read_text())
    for key in ("no_urgent_risk", "known", "unknown_urgent", "warning"):
        del raw[key]
    (path / "scan.json").write_text(json.dumps(raw))
    scan = read_scan(path)
    assert [row["urgent_risk"] for view in scan.views for row in view.rows] == [None] * 5
    assert scan.summary.scope.text == ""


def test_a_bundle_without_urgent_classes_gives_lesions_no_risk(tmp_path: Path) -> None:
    taxonomy = Taxonomy(name="two", title="Two", classes=HARMLESS)
    predictor = Predictor.load(pack_tiny(tmp_path / "bundle", taxonomy=taxonomy).path)
    found = diagnose_lesions(predictor, _store(tmp_path), [lesion(80, 80, 60).box], 1.5)
    assert found[0].urgent_risk is None
    write_lesions(tmp_path / "lesions.npz", found)
    assert read_lesions(tmp_path / "lesions.npz")[0].urgent_risk is None
    assert rank([scan_of([*found, lesion(30, 30, 20, risk=None)]).photos[0]])[0].rank == 1


def _store(folder: Path) -> Any:
    from test_scan_join import store_of

    (folder / "store").mkdir()
    return store_of(folder / "store", paint([lesion(80, 80, 60)], (160, 160)))


@pytest.mark.parametrize(("shares", "words"), [
    ((1, 2), "About 1 lesion of these photos is not in this list"),
    ((1, 3), "About 2 lesions of these photos are not in this list"),
    ((1, 1), "of 1 lesion of its validation images"),
])  # fmt: skip
def test_one_lesion_is_singular(shares: tuple[int, int], words: str) -> None:
    assert words in missed_sentence((size_recall(10, 20, *shares),), [12], PHOTOS)


def test_the_threshold_of_a_scan_names_both_errors() -> None:
    sent_on = Share(value=1, low=0.735, high=1, pictures=12)
    text = threshold_sentence(scan_of([lesion(urgent=True)], sent_on=sent_on))
    assert "misses at most 5 % of urgent lesions like those" in text
    raised = "It calls 100.0 % (95 % interval 73.5 to 100.0 %, 12 images) of the calibration images"
    assert raised in text
