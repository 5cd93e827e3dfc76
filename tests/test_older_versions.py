"""What older versions wrote still opens and goes on: dataset, run, bundle, scan and case book.

`support/write_fixtures.py` wrote the folders, once for each version; they are never changed.
"""

import csv
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Skindx
from kept_cases import answer

from skindx.casebook.casebook import Casebook
from skindx.casebook.kept_case import LIST
from skindx.core.atomic_files import sha256_file
from skindx.data.manifest import read_issues, read_manifest
from skindx.diagnosis.bundle_statement import bundle_version
from skindx.diagnosis.predictor import Predictor
from skindx.evaluation.answers import read_predictions
from skindx.evaluation.breakdown import breakdowns
from skindx.evaluation.evaluate import served_conclusions
from skindx.evaluation.questions import question_scores
from skindx.imaging.decode import decode
from skindx.models.bundle.bundle import open_bundle
from skindx.scan.compare.registration import read_scan

FIXTURES = Path(__file__).parent / "fixtures"
_BUNDLE_VERSIONS = {
    "v0_1": "c66bc4dd23d0c6ee5459598ae945734e4b42afab015951c504ca4687081fdad4",
    "v0_2": "6e2e1e6e336e0c9b7e9d627e316b7ed191a0b77a41d514e42f6f303b8fc9d540",
}
"""What each version called its own bundle in answers."""
_BUNDLE_DIGESTS = {
    "v0_2": "fe64876d1e88ea434afbabe169c697c61471562a28506bde179f75c696dfbfef",
}
"""What each version gave out for `--expect`."""
_IMAGES = {"v0_1": 108, "v0_2": 84}
VERSIONS = sorted(path.name for path in FIXTURES.iterdir() if path.name.startswith("v"))


def versions_with(part: str) -> list[str]:
    return [version for version in VERSIONS if (FIXTURES / version / part).exists()]


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def written(version: str, tmp_path: Path) -> Path:
    """Return a copy of what one version wrote."""
    return Path(shutil.copytree(FIXTURES / version, tmp_path / "written"))


def test_a_dataset_opens(written: Path, version: str) -> None:
    records = read_manifest(written / "dataset")
    assert len(records) == _IMAGES[version]
    assert {record.label for record in records} == {"Melanoma", "Nevus", "Dermatofibroma"}
    assert read_issues(written / "dataset") == []
    for record in records:
        assert sha256_file(written / "dataset" / record.path) == record.sha256
        assert record.boxes is not None
        assert len(record.boxes) == 1


def test_a_bundle_diagnoses_as_it_was_evaluated(written: Path) -> None:
    """The predictions equal those that the version stored beside the bundle."""
    import pyarrow.parquet as pq

    rows = pq.read_table(written / "whole/evaluation/predictions.parquet").to_pylist()
    by_sha256 = {record.sha256: record for record in read_manifest(written / "dataset")}
    predictor = Predictor.load(written / "whole/bundle")
    pixels = [
        decode((written / "dataset" / by_sha256[row["sha256"]].path).read_bytes()) for row in rows
    ]
    for row, prediction in zip(rows, predictor.predict(pixels), strict=True):
        assert prediction.boxes is not None
        stored_C = [row[f"probability_{key}"] for key in predictor.taxonomy.keys]
        np.testing.assert_allclose(prediction.probabilities_C, stored_C, atol=1e-4)


def test_predictions_give_figures_again(written: Path) -> None:
    """Without age, sex, site and confirmation, and without the second question."""
    answers = read_predictions(written / "whole/evaluation")
    assert (answers.facts, answers.soon_risk) == ({}, None)
    (age,) = (one for one in breakdowns(answers, draws=5) if one.attribute == "age")
    assert age.note == "the manifest names no age"
    questions = question_scores(answers, draws=5)
    assert questions[0].n + questions[0].others == len(answers)


def test_a_bundle_has_all_its_parts(written: Path, version: str) -> None:
    bundle = open_bundle(written / "whole/bundle")
    assert bundle.spec.conformal is not None
    assert bundle.detector() is not None
    gallery, seen = bundle.gallery(), bundle.seen()
    assert gallery is not None
    assert (bundle.novelty() or bundle.ood()) is not None
    assert seen is not None
    assert len(seen) == _IMAGES[version]
    assert bundle.metrics() is not None


def test_a_bundle_without_a_risk_threshold_follows_the_set_and_says_so(written: Path) -> None:
    predictor = Predictor.load(written / "whole/bundle")
    if predictor.urgent_risk is not None:
        pytest.skip("this version wrote a threshold")
    assert "no threshold of the urgent risk" in predictor.no_urgent_risk
    records = [record for record in read_manifest(written / "dataset") if record.split == "test"]
    pixels = [decode((written / "dataset" / record.path).read_bytes()) for record in records]
    predictions = predictor.predict(pixels)
    for conclusion, prediction in zip(
        served_conclusions(predictor, records, predictions), predictions, strict=True
    ):
        assert predictor.conformal is not None
        (set_C,) = predictor.conformal.sets(prediction.probabilities_C[None])
        in_set = {predictor.taxonomy.classes[column].urgency for column in np.flatnonzero(set_C)}
        assert (conclusion.next_step.urgency == "urgent") == ("urgent" in in_set)


def test_a_bundle_keeps_the_version_that_answers_name(written: Path, version: str) -> None:
    """What is added to a bundle later does not rename those that lack it."""
    assert bundle_version(open_bundle(written / "whole/bundle")) == _BUNDLE_VERSIONS[version]


@pytest.mark.parametrize("version", versions_with("answers"))
def test_a_bundle_gives_the_answers_that_it_gave(
    written: Path, version: str, skindx: Skindx, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of `skindx diagnose --json` but its sentences, under the digest that was given out."""
    monkeypatch.chdir(written)
    by_sha256 = {record.sha256: record for record in read_manifest(Path("dataset"))}
    kept = sorted(Path("answers").iterdir())
    assert len(kept) == 6
    for file in kept:
        image = f"dataset/{by_sha256[file.stem].path}"
        expect = ("--expect", _BUNDLE_DIGESTS[version])
        code, answer_now, err = skindx("diagnose", "whole/bundle", image, "--json", *expect)
        assert code == 0, err
        then, now = json.loads(file.read_text()), json.loads(answer_now)
        assert then.keys() <= now.keys()
        for path, value in _facts(then):
            part, name = re.match(r"/(\w+)/?(\w*)", path).groups()  # type: ignore[union-attr]
            if part in ("urgent_risk", "soon_risk") and name in _OF_THE_THRESHOLD:
                # They were those of the threshold, and are those of the advice now, which an
                # evaluation of this version did not count: nothing may be printed in their place.
                assert now[part][name] in (None, ""), path
                continue
            same = pytest.approx(value, rel=1e-4) if isinstance(value, float) else value
            assert dict(_facts(now))[path] == same, path


_OF_THE_THRESHOLD = (
    *("measured_on", "measured_missed", "measured_sent_on"),
    *("prevalence", "ppv", "npv"),
)


def _facts(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every number, name and code of an answer by its path; sentences may be reworded."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _facts(item, f"{path}/{key}")
    elif not (isinstance(value, str) and " " in value):
        yield path, value


@pytest.mark.parametrize("version", versions_with("scan"))
def test_a_scan_opens(written: Path) -> None:
    scan = read_scan(written / "scan")
    assert scan.summary.lesions == 5
    (view,) = scan.views
    assert (view.boxes_L4.shape, view.pixels_HW3.shape) == ((5, 4), (120, 160, 3))


@pytest.mark.usefixtures("without_fingerprints")
@pytest.mark.distributed
@pytest.mark.parametrize(
    "version",
    [
        version if version == VERSIONS[-1] else pytest.param(version, marks=pytest.mark.long)
        for version in VERSIONS
    ],
)
def test_a_half_way_run_goes_on(
    written: Path, skindx: Skindx, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command continues from the checkpoint, under the residuals of two ranks."""
    monkeypatch.chdir(written)
    before = (written / "half/members/a/history.csv").read_text()
    code, _, err = skindx("train", "dataset", "--config", "half/train.yaml", "--out", "half")
    assert code == 0, err
    history = (written / "half/members/a/history.csv").read_text()
    assert history.startswith(before)
    assert [row["epoch"] for row in csv.DictReader(history.splitlines())] == list("123456")
    assert open_bundle(written / "half/bundle").spec.members[0].name == "a"


@pytest.mark.usefixtures("without_fingerprints")
def test_a_finished_run_is_not_trained_again(
    written: Path, skindx: Skindx, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(written)
    weights = json.loads((written / "whole/bundle/bundle.json").read_text())["files"]
    code, _, err = skindx("train", "dataset", "--config", "whole/train.yaml", "--out", "whole")
    assert code == 0, err
    again = open_bundle(written / "whole/bundle").spec.files
    for name in ("members/a/model.safetensors", "members/b/model.safetensors"):
        assert again[name] == weights[name]


def test_a_case_book_opens(written: Path) -> None:
    if (written / "cases.db.keys").exists():
        (written / "cases.db.keys").chmod(0o600)  # git does not keep it
    book = Casebook.open(written / "cases.db")
    assert {(lesion.lesion, lesion.cases) for lesion in book.lesions("ann")} == {
        ("arm", 2),
        ("leg", 1),
    }
    first, second = book.cases("ann", "P-1", "arm")
    (third,) = book.cases("ann", "P-1", "leg")
    for seed, case in enumerate((first, second, third), start=1):
        kept, now = case.diagnosis, answer(seed).diagnosis
        assert kept.notice  # in the words of its version
        (stored,), (made,) = kept.photos, now.photos
        assert stored.sha256 == "0" * 64  # as these answers were painted then
        same_photo = stored.model_copy(update={"sha256": made.sha256})
        assert kept.model_copy(update={"notice": now.notice, "photos": (same_photo,)}) == now
        (photo,) = case.photos
        assert decode(photo).shape == (240, 320, 3)
    assert (third.confirmed, third.note) == ("Nevus", "/ excised")


@pytest.mark.parametrize("version", versions_with("scan"))
def test_a_kept_scan_opens(written: Path) -> None:
    (written / "cases.db.keys").chmod(0o600)  # git does not keep it
    scans = Casebook.open(written / "cases.db").scans
    (kept,) = scans.scans("ann")
    assert (kept.patient, kept.view, kept.photos, kept.lesions) == ("P-1", "back", 1, 5)
    files = scans.files("ann", kept.id)
    assert files.pop(LIST) == b"<p>listed</p>"
    for name, content in files.items():
        assert content == (written / "scan" / name).read_bytes()
