import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import pytest
from evaluation_fakes import CLASSES, FakePredictor, decode, records_of, simulate, write_dataset
from typer.testing import CliRunner

from skindx.cli import app
from skindx.core.errors import UserError
from skindx.evaluation.evaluate import evaluate, evaluate_served
from skindx.evaluation.predictor_comparison import compare_folders
from skindx.models.ensemble import OodResult


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> FakePredictor:
    """Put the fake in the place of the real predictor and decoder."""
    predictor = FakePredictor(simulate(40)[1])
    predictors = ModuleType("predictor")
    loader = type("Predictor", (), {"load": staticmethod(lambda path, **_: predictor)})
    predictors.Predictor = loader  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "skindx.diagnosis.predictor", predictors)
    monkeypatch.setattr("skindx.imaging.sandboxed_images.decode_limited", decode)
    # The records' hashes are as made up as their images.
    monkeypatch.setattr("skindx.evaluation.evaluate.check_sample", lambda *_: None)
    return predictor


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    labels = simulate(40)[0]
    records = [*records_of(labels[:35]), *records_of(labels, split="train")[35:]]
    return write_dataset(tmp_path / "dataset", records)


def test_three_files_tell_the_same(served: FakePredictor, dataset: Path, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    out = tmp_path / "evaluation"
    found = evaluate(
        Path("some/bundle"), dataset, out, draws=50, progress=lambda *step: steps.append(step)
    )
    assert sorted(file.name for file in out.iterdir()) == [
        "metrics.json",
        "predictions.csv",
        "predictions.json",
        "predictions.parquet",
        "report.html",
    ]
    metrics = json.loads((out / "metrics.json").read_text())
    origin = metrics.pop("origin")
    assert metrics == found.to_dict()
    assert (origin["bundle"], origin["split"]) == ("some/bundle", "test")
    assert set(origin["versions"]) >= {"skindx", "python", "numpy"}

    rows = pq.read_table(out / "predictions.parquet").to_pylist()
    assert [row["path"] for row in rows] == [f"pictures/{i}.npy" for i in range(35)]
    for row, truth in zip(rows, served.table, strict=False):
        probabilities = [row[f"probability_{condition.key}"] for condition in CLASSES]
        assert probabilities == pytest.approx(truth.probabilities_C.tolist())
        assert row["predicted"] == CLASSES[int(truth.probabilities_C.argmax())].key
    right = sum(row["predicted"] == row["label"] for row in rows)
    assert found.ensemble.top1.value == pytest.approx(right / 35)

    assert served.batches == [16, 16, 3]
    assert steps == [(16, 35), (32, 35), (35, 35)]


def test_a_second_run_replaces_the_first_and_agrees(
    served: FakePredictor, dataset: Path, tmp_path: Path
) -> None:
    runs = [evaluate(Path("b"), dataset, tmp_path / "out", draws=50) for _ in range(2)]
    assert runs[0].to_dict() == runs[1].to_dict()
    assert [file.name for file in tmp_path.iterdir() if "tmp" in file.name] == []


def test_a_failed_run_keeps_the_first(served: FakePredictor, dataset: Path, tmp_path: Path) -> None:
    evaluate(Path("b"), dataset, tmp_path / "out", draws=50)
    before = (tmp_path / "out" / "metrics.json").read_bytes()
    (dataset / "pictures" / "20.npy").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"20\.npy cannot be read .*skindx build"):
        evaluate(Path("b"), dataset, tmp_path / "out", draws=50)
    assert (tmp_path / "out" / "metrics.json").read_bytes() == before


def test_a_folder_with_other_things_is_never_replaced(
    served: FakePredictor, dataset: Path, tmp_path: Path
) -> None:
    bundle = tmp_path / "run" / "bundle"
    bundle.mkdir(parents=True)
    with pytest.raises(UserError, match=r"holds other files \(bundle\).*new or empty folder"):
        evaluate(bundle, dataset, tmp_path / "run")
    assert bundle.is_dir()
    with pytest.raises(UserError, match="is a file"):
        evaluate(bundle, dataset, dataset / "manifest.parquet")
    assert served.batches == []


def test_a_split_without_images_names_those_that_have_some(
    served: FakePredictor, dataset: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"splits: test \(35\), train \(5\)"):
        evaluate(Path("b"), dataset, tmp_path / "out", split="val")
    with pytest.raises(UserError, match="is not a dataset"):
        evaluate(Path("b"), tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(UserError, match="draws is 0, but an interval needs"):
        evaluate(Path("b"), dataset, tmp_path / "out", draws=0)
    assert not (tmp_path / "out").exists()


def test_a_dataset_that_shares_no_class_is_refused(served: FakePredictor, tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "dataset", records_of(["lupus", "rosacea"]))
    with pytest.raises(UserError, match=r"classes of the dataset \(lupus, rosacea\) .* own 4"):
        evaluate(Path("b"), folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_images_that_made_the_bundle_are_left_out(
    served: FakePredictor, dataset: Path, tmp_path: Path
) -> None:
    sha256 = [record.sha256 for record in records_of(["nevus"] * 40)]
    served.seen = {sha256[0]: "train", sha256[1]: "val", sha256[2]: "test", "f" * 64: "train"}
    found = evaluate(Path("b"), dataset, tmp_path / "test", draws=50)
    assert (found.pictures, found.seen) == (33, 2)
    report = (tmp_path / "test" / "report.html").read_text()
    assert "2 images are left out" in report
    again = evaluate(Path("b"), dataset, tmp_path / "train", split="train", draws=50)
    assert (again.pictures, again.seen) == (5, 0)  # asked for by name
    served.seen = dict.fromkeys(sha256, "train")
    with pytest.raises(UserError, match="all 40 images are"):
        evaluate(Path("b"), dataset, tmp_path / "all", split="all", draws=50)
    assert not (tmp_path / "all").exists()


def test_a_missing_image_is_named(tmp_path: Path) -> None:
    labels, table = simulate(3)
    records = records_of(labels)
    folder = write_dataset(tmp_path / "dataset", records)
    (folder / "pictures" / "1.npy").unlink()
    with pytest.raises(UserError, match=r"1\.npy cannot be read"):
        evaluate_served(
            FakePredictor(table), records, decode, tmp_path / "out", bundle="b", dataset=folder
        )


def test_two_bundles_are_evaluated_and_compared(
    served: FakePredictor, dataset: Path, tmp_path: Path
) -> None:
    sides = tmp_path / "a", tmp_path / "b"
    for side in sides:
        side.mkdir()
        (side / "bundle.json").write_text("{}")
    out, steps = tmp_path / "out", []
    found = compare_folders(
        *sides, out, dataset=dataset, draws=10, progress=lambda *step: steps.append(step)
    )
    assert found.pictures == 35
    assert found.test.only_first == found.test.only_second == 0
    assert sorted(file.name for file in out.iterdir()) == [
        "comparison.html",
        "comparison.json",
        "first",
        "second",
    ]
    assert (out / "second" / "report.html").is_file()
    assert steps[-1] == ("second", 35, 35)
    with pytest.raises(UserError, match=r"are not bundles; remove --dataset"):
        compare_folders(out / "first", out / "second", tmp_path / "new", dataset=dataset)


def test_the_share_that_the_ood_check_refuses_is_reported(
    served: FakePredictor, dataset: Path, tmp_path: Path
) -> None:
    """Of the 35 test images 0, 8, 16, 24 and 32 have the least p-value that 99 others allow."""
    table = list(served.table)
    served.table = [
        replace(said, ood=OodResult(0.01 if n % 8 == 0 else 0.5, 0.01))
        for n, said in enumerate(table)
    ]
    found = evaluate(Path("b"), dataset, tmp_path / "out", draws=50).ood
    assert found is not None
    assert (found.n, found.promised, found.refused.value) == (35, 0.01, pytest.approx(5 / 35))
    assert found.refused.low < 5 / 35 < found.refused.high
    assert "of these images are refused" in (tmp_path / "out" / "report.html").read_text()
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["ood"]["refused"]["value"] == found.refused.value
    # Without a check in the bundle nothing is said of one.
    served.table = table
    assert evaluate(Path("b"), dataset, tmp_path / "none", draws=50).ood is None
    assert "are refused" not in (tmp_path / "none" / "report.html").read_text()


def test_the_command_fills_in_the_checklists(
    served: FakePredictor, dataset: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = ["evaluate", "./b", str(dataset), "--out", str(out), "--split", "train"]
    command.append("--checklist")
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "Training: " not in (out / "checklist.md").read_text()  # another manifest's bundle
    assert "| 22 | Sample size | 5 images in 5 groups. |" in (out / "checklist.md").read_text()
