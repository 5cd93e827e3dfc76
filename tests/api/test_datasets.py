"""Datasets and verbs as Python objects: splits, torch, Hugging Face, build, train, evaluate."""

import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from evaluation_fakes import records_of, scored, simulate
from small_dataset import free_dataset
from torch.utils.data import DataLoader

import skindx
from skindx.data.build import build_dataset
from skindx.data.decisions import Flag, write_flags
from skindx.data.manifest import read_manifest, write_manifest
from skindx.evaluation import evaluate as evaluation
from skindx.imaging.decode import decode
from skindx.training import run as training_run

OLDER = Path(__file__).parents[1] / "fixtures" / "v0_2"
DATA = OLDER / "dataset"


@pytest.fixture(scope="module")
def data() -> skindx.Dataset:
    return skindx.open_dataset(DATA)


def test_a_dataset_counts_its_splits_and_groups(data: skindx.Dataset) -> None:
    records = read_manifest(DATA)
    assert len(data) == sum(data.splits.values()) == sum(data.groups.values()) == len(records)
    assert data.table.num_rows == len(records)
    assert data.table["sha256"].to_pylist() == [record.sha256 for record in records]
    assert set(data.table["label"].to_pylist()) <= set(data.classes)
    assert len(data.files("test")) == data.splits["test"]
    assert all(file.is_file() for file in data.files())


def test_torch_gets_pixels_and_class_numbers(data: skindx.Dataset) -> None:
    test = data.torch("test")
    image, label = test[0]
    pixels = decode(data.files("test")[0].read_bytes())
    np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), pixels)
    first = next(record for record in read_manifest(DATA) if record.split == "test")
    assert data.classes[label] == first.label
    assert test[len(test) - 1][1] == test[-1][1]
    with pytest.raises(IndexError):
        test[len(test)]

    def small(opened: object) -> torch.Tensor:
        return torch.from_numpy(np.asarray(opened.resize((8, 8))).copy())  # type: ignore[attr-defined]

    images, labels = next(iter(DataLoader(data.torch("train", small), batch_size=4)))
    assert images.shape == (4, 8, 8, 3)
    assert labels.dtype == torch.int64
    with pytest.raises(skindx.UserError, match="there is no split 'dev'; give train, val"):
        data.torch("dev")


def test_hugging_face_gets_decodable_images_and_named_classes(data: skindx.Dataset) -> None:
    made = data.hf("val")
    assert made.num_rows == data.splits["val"]
    assert made.features["label"].names == list(data.classes)
    row = made[0]
    assert row["image"].size == (row["width"], row["height"])
    assert (
        data.classes[row["label"]]
        == data.table["label"].to_pylist()[data.table["split"].to_pylist().index("val")]
    )
    assert data.hf().num_rows == len(data)


def test_a_notebook_shows_counts_and_images(data: skindx.Dataset, tmp_path: Path) -> None:
    table = ElementTree.fromstring(f"<div>{data._repr_html_()}</div>")
    rows = [[str(cell.text) for cell in row] for row in table.iter("tr")]
    assert rows[-1] == ["all", *map(str, data.splits.values()), str(len(data))]
    for label, *numbers in rows[:-1]:
        expected = [r.split for r in read_manifest(DATA) if r.label == label]
        assert numbers == [str(expected.count(split)) for split in data.splits] + [
            str(len(expected))
        ]
    shown = data.show(split="val", most=4)
    assert {record.split for record in shown.records} == {"val"}
    assert len({record.label for record in shown.records}) == 3, "classes take turns"
    assert shown._repr_html_().count('<img src="data:image/jpeg;base64,') == 4
    assert "4 of 12 images" in repr(shown)
    assert len(data.show("Melanoma").records) == min(
        24, len(data.show("Melanoma", most=99).records)
    )
    assert not data.show(most=0).records
    with pytest.raises(skindx.UserError, match="no class 'melanom'; did you mean 'Melanoma'"):
        data.show("melanom")
    with pytest.raises(skindx.UserError, match="there is no split 'dev'"):
        data.show(split="dev")


def test_a_notebook_draws_no_flagged_image_and_escapes_names(tmp_path: Path) -> None:
    small = free_dataset(tmp_path / "data", 6)
    evil = "<script>alert(1)</script>"
    gone = small.add(source_url=f'https://x.example/"{evil}', group=evil)
    folder = small.write()
    (folder / small.records[-1].path).unlink()
    face = small.records[0].sha256
    write_flags(folder, [Flag(face, "face", 0.9), Flag(gone, "quality", 0.5)], ["face", "quality"])
    opened = skindx.open_dataset(folder)
    shown = opened.show()
    assert {r.sha256 for r in shown.records} == {r.sha256 for r in small.records} - {face}
    html = shown._repr_html_()
    assert (
        "6 of 7 images; not drawn, since flagged for a face, text or an intimate region: 1" in html
    )
    assert "cannot be read" in html
    assert "<script" not in html + opened._repr_html_()
    assert html.count("<img") == 5

    many = [replace(small.records[1], sha256=f"{n:064x}", label=f"c{n:03d}") for n in range(200)]
    write_manifest(folder, many)
    html = skindx.open_dataset(folder)._repr_html_()
    assert "170 more classes" in html
    assert html.count("<tr>") == 32


def test_what_is_no_dataset_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(skindx.UserError, match=r"manifest\.parquet"):
        skindx.open_dataset(tmp_path)


def test_a_build_takes_what_the_command_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[skindx.BuildSettings] = []

    def built(settings: skindx.BuildSettings, out: Path, **options: Any) -> None:
        given.append(settings)
        options["progress"]("screen", 1, 2)
        shutil.copytree(DATA, out)

    monkeypatch.setattr(build_dataset, "build", built)
    (tmp_path / "images" / "nevus").mkdir(parents=True)
    stages: list[tuple[str, int, int]] = []
    made = skindx.build(
        tmp_path / "images",
        tmp_path / "data",
        urgency={"nevus": "routine"},
        sets=["seed=5"],
        progress=lambda *at: stages.append(at),
    )
    assert made.path == tmp_path / "data"
    assert (given[0].seed, dict(given[0].urgency)) == (5, {"nevus": "routine"})
    assert stages == [("screen", 1, 2)]
    recipe = {"name": "x", "sources": [{"kind": "folder", "path": str(tmp_path / "images")}]}
    with pytest.raises(skindx.UserError, match="write them into the settings"):
        skindx.build(recipe, tmp_path / "other", sets=["seed=1"])
    with pytest.raises(skindx.UserError, match="there is no setting 'sed'"):
        skindx.build({**recipe, "sed": 1}, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_training_reports_epochs_and_gives_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[skindx.TrainSettings] = []

    def trained(dataset: Path, settings: skindx.TrainSettings, run: Path) -> SimpleNamespace:
        assert dataset == DATA
        given.append(settings)
        member = run / "members" / settings.members[0].name
        member.mkdir(parents=True)
        (member / "history.csv").write_text("epoch,loss\n1,2.0\n2,1.0\n")
        return SimpleNamespace(path=OLDER / "whole" / "bundle")

    monkeypatch.setattr(training_run, "train", trained)
    epochs: list[tuple[str, int, int]] = []
    settings = skindx.TrainSettings.load(OLDER / "whole" / "train.yaml")
    model = skindx.train(
        skindx.open_dataset(DATA), tmp_path, settings, progress=lambda *at: epochs.append(at)
    )
    assert given == [settings]
    total = settings.recipe_of(settings.members[0]).epochs
    assert epochs == [(settings.members[0].name, 2, total)]
    assert model.predict([]).num_rows == 0
    skindx.train(DATA, tmp_path / "b", {"recipe": {"epochs": 3}}, weights="w.safetensors")
    assert given[1].recipe.epochs == 3
    assert given[1].members[0].weights == Path("w.safetensors")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(skindx.UserError, match="without torchrun"):
        skindx.train(DATA, tmp_path)


def test_an_evaluation_goes_into_the_bundle_where_it_is_of_the_test_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(OLDER / "whole" / "bundle", bundle)
    given: list[dict[str, Any]] = []

    def evaluated(path: Path, dataset: Path, folder: Path, **options: Any) -> SimpleNamespace:
        given.append(options)
        shutil.copytree(OLDER / "whole" / "evaluation", folder)
        metrics = json.loads((folder / "metrics.json").read_text())
        metrics["origin"]["bundle_digest"] = before
        (folder / "metrics.json").write_text(json.dumps(metrics))
        options["progress"](3, 4)
        options["copies_progress"](1, 2)
        return SimpleNamespace(external=None)

    monkeypatch.setattr(evaluation, "evaluate", evaluated)
    before = skindx.load(bundle).digest
    stages: list[tuple[str, int, int]] = []
    report = skindx.evaluate(bundle, DATA, progress=lambda *at: stages.append(at))
    assert report.folder == tmp_path / "evaluation"
    assert report.metrics == json.loads((report.folder / "metrics.json").read_text())
    assert stages == [("evaluate", 3, 4), ("copies", 1, 2)]
    assert report.digest == skindx.load(bundle).digest == before
    val = skindx.evaluate(bundle, DATA, tmp_path / "val", split="val", digest=report.digest)
    external = skindx.evaluate(bundle, DATA, external=True)
    assert (val.digest, external.digest) == (None, None)
    assert external.folder == tmp_path / "external"
    assert [one["split"] for one in given] == ["test", "val", "all"]
    assert report.evaluation_digest is not None
    assert skindx.load(bundle, report.evaluation_digest).digest == before
    with pytest.raises(skindx.UserError, match="digest"):
        skindx.load(bundle, "0" * 64)


def test_a_bundle_is_opened_from_a_zip_of_its_folder(tmp_path: Path) -> None:
    whole = OLDER / "whole"
    inside = shutil.make_archive(str(tmp_path / "inside"), "zip", whole, "bundle")
    flat = shutil.make_archive(str(tmp_path / "flat"), "zip", whole / "bundle")
    digest = skindx.load(whole / "bundle").digest
    model = skindx.load(inside, digest)
    assert model.digest == skindx.load(flat).digest == digest
    assert model.diagnose(skindx.open_dataset(DATA).files("test")[4]).pdf()[:4] == b"%PDF"
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as archive:
        archive.writestr("bundle.json", "{}")
        archive.writestr("../outside", "x")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("readme", "x")
    (tmp_path / "text.zip").write_text("not a zip")
    (tmp_path / "cut.zip").write_bytes(Path(flat).read_bytes()[:-30])
    for name, why in {
        "evil": "which does not belong in a bundle",
        "other": "has no bundle.json",
        "text": "is not a zip",
        "cut": "is not a zip",
    }.items():
        with pytest.raises(skindx.UserError, match=why):
            skindx.load(tmp_path / f"{name}.zip")
    assert not (tmp_path.parent / "outside").exists()


def test_a_report_has_its_figures_as_attributes() -> None:
    labels, predictions = simulate(60, seed=3)
    records = records_of(labels, [f"g{n}" for n in range(60)])
    scores = scored(records, predictions, ("alpha", "beta"))
    report = skindx.EvaluationReport(Path("<run>"), scores, None)
    assert report.figures["top1"] == report.top1 == scores.ensemble.top1
    assert report.auroc.low <= report.auroc.value <= report.auroc.high
    assert report.classes["melanoma"].n == labels.count("melanoma")
    assert report.served == {one.name: one for one in scores.served}
    assert f"balanced accuracy: {100 * report.balanced_accuracy.value:.1f} %" in repr(report)
    worse = replace(report, scores=replace(scores, not_useful=("It <b> calls all urgent.",)))
    assert "It &lt;b&gt; calls all urgent." in worse._repr_html_()
    assert "It <b> calls all urgent." in repr(worse)
