"""One training with folds, weights and views: from settings to the bundle."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from ranks import run_ranks

from skindx.core.errors import UserError
from skindx.data.loader.batches import partition
from skindx.data.manifest import read_manifest, split_of
from skindx.diagnosis.predictor import Predictor
from skindx.imaging.decode import decode
from skindx.models.bundle.bundle_index import (
    CLASS_CALIBRATION,
    FOLD_TRAINED_IMAGES,
    TRAINING_IMAGES,
)
from skindx.models.combination import log
from skindx.models.conformal import fit_on_records
from skindx.models.ensemble import predict_members, predict_records
from skindx.training.config.run import TrainSettings
from skindx.training.ensembles.ready_ensemble import fit_on_calibration
from skindx.training.run import train

PREPROCESS = {"size": 64}
SETTINGS = {
    "engine": {"accelerator": "cpu", "ranks": 1},
    "recipe": {"epochs": 1, "batch": 16},
    "folds": 2,
    "members": [
        {
            "name": "fold",
            "model": "test_efficientnet",
            "preprocess": PREPROCESS,
            "fold": "each",
            "views": 2,
        },
        {"name": "plain", "model": "test_resnet", "preprocess": PREPROCESS},
    ],
    "ensemble": {"combine": {"kind": "auto"}},  # of 0.2: the mean
}


@pytest.fixture(scope="module")
def run(small_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train all of it in one process that is the only rank."""
    folder = tmp_path_factory.mktemp("ensemble") / "run"
    assert run_ranks(1, _train, small_dataset, folder, timeout_s=280) == [True]
    return folder


def _train(dataset: Path, folder: Path) -> bool:
    return train(dataset, TrainSettings.parse(SETTINGS), folder) is not None


@pytest.mark.distributed
def test_a_run_of_folds_and_another_member_packs_one_bundle(run: Path, small_dataset: Path) -> None:
    predictor = Predictor.load(run / "bundle")
    assert predictor.members == ("fold-fold0", "fold-fold1", "plain")
    fold0, fold1, plain = predictor.ensemble.combination.weights
    assert fold0 == fold1
    assert fold0 + fold1 + plain == pytest.approx(1)
    first, second, third = predictor.ensemble.members
    assert (first.temperature, first.views) == (second.temperature, 2)
    assert third.views == 1
    report = json.loads((run / "ensemble.json").read_text())
    assert report["chosen"] == "mean of probabilities"
    assert report["fitted on"] == {"pictures": 12, "groups": 12}
    assert report["folds of one kind"] == [["fold-fold0", "fold-fold1"]]
    # No class has ten of these twelve images, so nothing is calibrated by class, and it is said.
    by_class = report["calibration by class"]
    assert by_class["kept"] is False
    assert predictor.bundle.spec.class_calibration is None
    assert predictor.bundle.spec.provenance[CLASS_CALIBRATION] == by_class["why"]
    # Of 66 images of train and val every one was in some fold's training.
    provenance = predictor.bundle.spec.provenance
    assert (provenance[TRAINING_IMAGES], provenance[FOLD_TRAINED_IMAGES]) == (66, 12)
    assert "weights" in (run / "bundle" / "MODEL_CARD.md").read_text()


@pytest.mark.distributed
def test_a_fold_member_was_judged_on_its_fold(run: Path, small_dataset: Path) -> None:
    predictor = Predictor.load(run / "bundle")
    records = read_manifest(small_dataset)
    for fold in (0, 1):
        _, held = partition(records, fold, 2)
        kept = np.load(run / "members" / f"fold-fold{fold}" / "validation.npz")
        labels = [predictor.taxonomy.keys[label] for label in kept["truth"]]
        assert labels == [record.label for record in held]


@pytest.mark.distributed
def test_the_temperature_is_of_what_is_served(run: Path, small_dataset: Path) -> None:
    """The fold members' word on validation, by hand: of each image that of who did not see it."""
    from skindx.models.combination import apply_temperature, combine, fit_temperature

    predictor = Predictor.load(run / "bundle")
    records = read_manifest(small_dataset)
    val = split_of(records, "val")
    first, second, plain = predict_members(predictor.ensemble.members, small_dataset, val)
    seen = {image.path for image in partition(records, 0, 2)[0]}
    unseen_N1 = np.array([[record.path not in seen] for record in val])
    word_UNC = [np.where(unseen_N1, first, second), plain]
    truth_N = np.array([predictor.taxonomy.keys.index(record.label) for record in val])
    temperatures = [fit_temperature(word_NC, truth_N) for word_NC in word_UNC]
    members = predictor.ensemble.members
    assert [members[0].temperature, members[2].temperature] == pytest.approx(temperatures, rel=1e-3)
    soft = np.stack([apply_temperature(w, t) for w, t in zip(word_UNC, temperatures, strict=True)])
    assert predictor.ensemble.combination.weights[2] == pytest.approx(1 / 2)
    mean_NC = soft.mean(axis=0)
    # What sharpens is kept only where images that it was not fitted on bear it out.
    fitted = fit_temperature(log(mean_NC), truth_N)
    served = predictor.ensemble.temperature
    assert served == pytest.approx(fitted, rel=1e-2) or served == 1 > fitted
    # A split at a time or a batch at a time: the packed ensemble says the same.
    whole_NC, member_MNC = predict_records(predictor.ensemble, small_dataset, val)
    images = [decode((small_dataset / record.path).read_bytes()) for record in val[:3]]
    np.testing.assert_allclose(
        whole_NC[:3], [answer.probabilities_C for answer in predictor.predict(images)], atol=1e-5
    )
    np.testing.assert_allclose(
        whole_NC,
        combine(member_MNC, predictor.ensemble.temperature, predictor.ensemble.combination),
    )


@pytest.mark.distributed
def test_sets_are_fitted_on_calibration_alone_as_the_ensemble_answers(
    run: Path, small_dataset: Path
) -> None:
    predictor = Predictor.load(run / "bundle")
    held = split_of(read_manifest(small_dataset), "calibration")
    assert held
    probabilities_NC, _ = predict_records(predictor.ensemble, small_dataset, held)
    fitted = fit_on_records(probabilities_NC, held, predictor.taxonomy)
    assert predictor.conformal is not None
    assert predictor.conformal.pictures == len(held)
    assert predictor.conformal.thresholds == pytest.approx(fitted.thresholds)
    assert predictor.conformal.urgent == pytest.approx(fitted.urgent)
    # A dataset without a calibration split, such as a fold of a cross-validation.
    others = [record for record in read_manifest(small_dataset) if record.split != "calibration"]
    parts = fit_on_calibration(
        predictor.ensemble, small_dataset, others, predictor.taxonomy, predictor.gallery
    )
    assert parts == (None, None, {})


@pytest.mark.distributed
def test_nothing_is_made_twice_and_members_serve_other_runs(
    run: Path, small_dataset: Path, tmp_path: Path
) -> None:
    stamps = {file: file.stat().st_mtime_ns for file in run.glob("members/*/*")}
    again = TrainSettings.load(run / "train.yaml")
    assert again == TrainSettings.parse(SETTINGS)
    reused = {
        "members": [],
        "reused": [
            {"run": str(run), "member": "plain"},
            {"run": str(run), "member": "fold-fold0", "name": "half"},
        ],
        "ensemble": {"combine": {"kind": "mean"}},
        "engine": SETTINGS["engine"],
    }
    bundle = train(small_dataset, TrainSettings.parse(reused), tmp_path / "other")
    assert bundle is not None
    assert [member.name for member in bundle.spec.members] == ["plain", "half"]
    assert bundle.spec.combination.weights is None
    assert not (tmp_path / "other" / "members").exists()
    assert {file: file.stat().st_mtime_ns for file in run.glob("members/*/*")} == stamps


@pytest.mark.distributed
def test_members_of_another_dataset_are_refused(
    run: Path, small_dataset: Path, tmp_path: Path
) -> None:
    from skindx.data.manifest import write_manifest

    other = tmp_path / "data"
    shutil.copytree(small_dataset, other)
    write_manifest(other, read_manifest(small_dataset)[:-1])
    reused = {"reused": [{"run": str(run), "member": "plain"}], "engine": SETTINGS["engine"]}
    with pytest.raises(UserError, match="was trained on other data than"):
        train(other, TrainSettings.parse(reused), tmp_path / "run")
    assert not (tmp_path / "run").exists()
