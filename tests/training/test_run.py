import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from network_guard import Guarded, run_guarded
from nodes import two_nodes, wait_all
from ranks import run_ranks
from safetensors.torch import load_file
from tiny_bundle import USE, measured

from skindx.core.errors import UserError
from skindx.data.manifest import read_manifest
from skindx.diagnosis.predictor import Predictor
from skindx.imaging.decode import decode
from skindx.models.bundle.bundle import open_bundle
from skindx.models.bundle.bundle_changes import add_metrics
from skindx.training.checks import check
from skindx.training.config.run import TrainSettings
from skindx.training.ensembles.member_refs import member_refs
from skindx.training.ensembles.pack import fit_fusion, packed_bundle, packing_fingerprint
from skindx.training.run import train

SETTINGS: dict[str, Any] = {
    "engine": {"accelerator": "cpu", "ranks": 2},
    "recipe": {"epochs": 2, "batch": 15},
    "members": [
        {"name": "a", "model": "test_resnet", "preprocess": {"size": 64}},
        {"name": "b", "model": "test_efficientnet", "preprocess": {"size": 64}},
    ],
    "detector": {"size": 64, "epochs": 1, "batch": 16},
    "monitors": ["tensorboard"],
    "use": USE.model_dump(mode="json"),
}


def _settings(**change: object) -> TrainSettings:
    return TrainSettings.parse({**SETTINGS, **change})


def _skindx(*arguments: str, before: tuple[str, ...] = (sys.executable,)):
    return subprocess.run(
        [*before, "-m", "skindx", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("config") / "train.yaml"
    file.write_text(yaml.safe_dump(SETTINGS))
    return file


@pytest.fixture(scope="module")
def trained(small_dataset: Path, config: Path, tmp_path_factory: pytest.TempPathFactory) -> Guarded:
    """Train by the command line and DeepSpeed's launcher on two ranks, in a HOME of its own."""
    home = tmp_path_factory.mktemp("home")
    arguments = ["train", str(small_dataset), "--config", str(config), "--out", "run"]
    return run_guarded(["-m", "skindx", *arguments], home, timeout_s=280)


@pytest.fixture(scope="module")
def run(trained: Guarded) -> Path:
    assert trained.returncode == 0, trained.stderr
    return trained.folder / "run"


@pytest.mark.distributed
def test_training_reaches_nobody(trained: Guarded) -> None:
    assert trained.returncode == 0, trained.stderr
    assert trained.calls == []


@pytest.mark.distributed
def test_deepspeed_compiles_nothing_and_leaves_no_shared_memory(trained: Guarded) -> None:
    assert trained.returncode == 0, trained.stderr
    assert not [file for file in trained.folder.rglob("*") if "torch_extensions" in file.parts]
    name = f"deepspeed_allreduce_buffer_{os.getuid()}_*"
    begun = (trained.folder / "run" / "train.yaml").stat().st_mtime
    assert not [f for f in Path("/dev/shm").glob(name) if f.stat().st_mtime > begun]


@pytest.mark.distributed
def test_a_trained_run_diagnoses(run: Path, small_dataset: Path) -> None:
    predictor = Predictor.load(run / "bundle")
    record = read_manifest(small_dataset)[0]
    (prediction,) = predictor.predict([decode((small_dataset / record.path).read_bytes())])
    assert prediction.probabilities_C.sum() == pytest.approx(1)
    assert prediction.member_probabilities_MC.shape == (2, 3)
    assert prediction.boxes is not None
    assert predictor.seen == {image.sha256: image.split for image in read_manifest(small_dataset)}
    assert predictor.fingerprints is not None
    made_from = [image.sha256 for image in read_manifest(small_dataset) if image.split != "test"]
    assert sorted(predictor.fingerprints.sha256s) == sorted(made_from)
    assert predictor.members == ("a", "b")
    rows = (run / "members" / "a" / "history.csv").read_text().splitlines()
    assert rows[0].startswith("epoch,loss,val_top1")
    assert len(rows) == 3
    assert TrainSettings.load(run / "train.yaml") == _settings()
    rows = (run / "detector" / "history.csv").read_text().splitlines()
    assert rows[0] == "epoch,loss,map50,map50_95,seconds,skipped_steps"
    assert len(rows) == 2


@pytest.mark.distributed
def test_validation_rows_are_in_manifest_order(run: Path, small_dataset: Path) -> None:
    """What was gathered from two ranks equals what the packed member says of the same images."""
    predictor = Predictor.load(run / "bundle")
    records = [record for record in read_manifest(small_dataset) if record.split == "val"]
    images = [decode((small_dataset / record.path).read_bytes()) for record in records]
    kept = np.load(run / "members" / "a" / "validation.npz")
    assert [predictor.taxonomy.keys[label] for label in kept["truth"]] == [
        record.label for record in records
    ]
    again = predictor.ensemble.members[0].log_probabilities(images)
    np.testing.assert_allclose(kept["log"], again, atol=1e-4)


@pytest.mark.distributed
def test_finished_members_are_not_trained_again(run: Path, small_dataset: Path) -> None:
    before = (run / "members" / "a" / "model.safetensors").stat().st_mtime_ns
    # A bundle as older versions packed it gets what it lacks from the finished members.
    shutil.rmtree(run / "bundle")
    bundle = train(small_dataset, _settings(), run)
    assert (run / "members" / "a" / "model.safetensors").stat().st_mtime_ns == before
    assert bundle is not None
    gallery = bundle.gallery()
    assert gallery is not None
    records = [record for record in read_manifest(small_dataset) if record.split == "train"]
    assert [row.sha256 for row in gallery.rows] == [record.sha256 for record in records]
    assert [row.label for row in gallery.rows] == [record.label for record in records]
    assert gallery.spec.shown == 0  # their licence is not known
    assert bundle.spec.conformal is not None
    assert bundle.spec.conformal.pictures == 12
    assert bundle.spec.ood is None  # 12 calibration images are too few
    evaluated = add_metrics(bundle.path, measured(0.5))
    again = train(small_dataset, _settings(engine={"accelerator": "cpu", "ranks": 1}), run)
    assert again is not None
    assert again.digest == evaluated.digest, "what was measured is lost"
    kept = (run / "train.yaml").read_text()
    others = {
        "recipe.epochs was 2 and is 3": _settings(recipe={"epochs": 3, "batch": 15}),
        "detector.epochs was 1 and is 3": _settings(
            detector={"size": 64, "epochs": 3, "batch": 16}
        ),
        "exchange.kind was dense and is topk, .*": _settings(exchange={"kind": "topk"}),
    }
    for said, other in others.items():
        with pytest.raises(
            UserError, match=rf"other settings or other data \({said}\); give another"
        ):
            train(small_dataset, other, run)
        assert (run / "train.yaml").read_text() == kept


@pytest.mark.distributed
def test_a_bundle_is_packed_again_when_what_it_is_packed_from_changes(
    run: Path, small_dataset: Path, tmp_path: Path
) -> None:
    shutil.copytree(run, tmp_path / "run")

    def packed_from(**change: object) -> str:
        settings, own = _settings(**change), tmp_path / "run"
        return packing_fingerprint(own, small_dataset, settings, member_refs(own, settings))

    first = packed_from()
    packed = packed_bundle(tmp_path / "run", first)
    assert packed
    assert packed.spec.use == USE
    assert packed_from(engine={"accelerator": "cpu", "ranks": 3}, monitors=[]) == first
    changed = [packed_from(name="other"), packed_from(ensemble={"combine": {"kind": "vote"}})]
    changed.append(packed_from(use={**SETTINGS["use"], "learned_from": "other images"}))
    weights = tmp_path / "run" / "members" / "a" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    changed.append(packed_from())
    assert first not in changed
    assert len(set(changed)) == 4
    shutil.rmtree(tmp_path / "run" / "bundle" / "members")
    assert packed_bundle(tmp_path / "run", first) is None, "it is damaged"


@pytest.mark.distributed
def test_the_weight_of_the_crop_is_fitted_and_served(
    run: Path, small_dataset: Path, tmp_path: Path
) -> None:
    shutil.copytree(run / "bundle", tmp_path / "bundle")
    fused = fit_fusion(tmp_path / "bundle", small_dataset, 1.5)
    assert fused.spec.fusion is not None
    served = Predictor.load(fused.path)
    images = [
        decode((small_dataset / record.path).read_bytes())
        for record in read_manifest(small_dataset)
        if record.split == "test"
    ]
    plain = Predictor.load(run / "bundle").predict(images)
    for one, other in zip(plain, served.predict(images), strict=True):
        sure = bool(one.boxes) and fused.spec.fusion.weight > 0
        assert (other.whole_C is not None) == sure
        same = other.whole_C if sure else other.probabilities_C
        np.testing.assert_allclose(same, one.probabilities_C, atol=1e-12)
    if fused.spec.fusion.weight:
        plain_sets = open_bundle(run / "bundle").spec.conformal
        assert fused.spec.whole_conformal == plain_sets
        assert served.conformal == fused.spec.conformal
        assert dataclasses.replace(served, detector=None).conformal == plain_sets


@pytest.mark.distributed
def test_another_run_takes_the_detector(run: Path, small_dataset: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(run / "members", other / "members")
    settings = _settings(detector={"from": str(run)})
    bundle = train(small_dataset, settings, other)
    assert bundle is not None
    assert not (other / "detector").exists()
    ours, theirs = (
        load_file(folder / "detector/model.safetensors") for folder in (bundle.path, run)
    )
    assert all(ours[key].equal(theirs[key]) for key in theirs)
    assert len(bundle.spec.provenance["detector's manifest sha256"]) == 64


def _alone(folder: Path, small_dataset: Path) -> list[str]:
    """Return the command that trains the first member without the others and the detector."""
    alone = {**SETTINGS, "members": SETTINGS["members"][:1], "detector": None}
    (folder / "alone.yaml").write_text(yaml.safe_dump(alone))
    return ["train", str(small_dataset), "--config", str(folder / "alone.yaml")]


def _assert_same_weights(run: Path, other: Path) -> None:
    file = "bundle/members/a/model.safetensors"
    ours, theirs = load_file(run / file), load_file(other / file)
    assert ours.keys() == theirs.keys()
    assert all(ours[key].equal(theirs[key]) for key in ours)


def _train_as_under_torchrun(dataset: Path, folder: Path) -> str | None:
    settings = TrainSettings.load(folder / "alone.yaml")
    bundle = train(dataset, settings, folder / "run")
    return bundle and str(bundle.path)


@pytest.mark.distributed
def test_ranks_that_others_started_give_the_same_weights(
    run: Path, small_dataset: Path, tmp_path: Path
) -> None:
    _alone(tmp_path, small_dataset)
    packed = run_ranks(2, _train_as_under_torchrun, small_dataset, tmp_path)
    assert packed == [str(tmp_path / "run/bundle"), None]
    _assert_same_weights(run, tmp_path / "run")


@pytest.mark.long
@pytest.mark.distributed
def test_torchrun_on_two_nodes_gives_the_same_weights(
    run: Path, small_dataset: Path, tmp_path: Path
) -> None:
    command = [*_alone(tmp_path, small_dataset), "--out", str(tmp_path / "run")]
    with two_nodes() as nodes:
        meet = ["--nnodes=2", "--nproc-per-node=1", f"--master-addr={nodes.addresses[0]}"]
        torchrun = ["-m", "torch.distributed.run", *meet]
        ranks = [
            nodes.start(node, [*torchrun, f"--node-rank={node}", "-m", "skindx", *command])
            for node in (0, 1)
        ]
        said = wait_all(ranks, timeout_s=250)
    assert ["packed" in line for line in said] == [True, False]
    _assert_same_weights(run, tmp_path / "run")


@pytest.mark.long
@pytest.mark.distributed
def test_a_hostfile_gives_the_same_weights(
    run: Path, small_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with two_nodes() as nodes:
        nodes.write_pdsh(tmp_path)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        hostfile = tmp_path / "hostfile"
        hostfile.write_text("".join(f"{address} slots=1\n" for address in nodes.addresses))
        done = _skindx(
            *(*_alone(tmp_path, small_dataset), "--out", str(tmp_path / "run")),
            *("--set", f"engine.hostfile={hostfile}", "--set", "engine.interface=cable0"),
        )
    assert done.returncode == 0, done.stderr
    assert "packed" in done.stdout
    _assert_same_weights(run, tmp_path / "run")


def test_what_cannot_work_is_reported_before_anything_is_written(
    small_dataset: Path, tmp_path: Path
) -> None:
    cases = {
        "recipe.batch=200 does not fit the dataset; set it from 4": _settings(
            recipe={"batch": 200}
        ),
        "timm has no model 'tset_resnet'": _settings(
            members=[{"name": "a", "model": "tset_resnet"}]
        ),
        "weights file nowhere.pth": _settings(
            members=[{"name": "a", "model": "test_resnet", "weights": "nowhere.pth"}]
        ),
        "the file nowhere does not exist; correct engine.hostfile": _settings(
            engine={"hostfile": "nowhere"}
        ),
        "needs the norm of each layer, but engine.zero=1 mixes layers": _settings(
            recipe={"optimizer": "lars"}, engine={"zero": 1}
        ),
    }
    for said, settings in cases.items():
        with pytest.raises(UserError, match=said):
            train(small_dataset, settings, tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_a_detector_needs_boxes(small_dataset: Path) -> None:
    import dataclasses

    from skindx.taxonomy import Taxonomy

    records = [dataclasses.replace(record, boxes=None) for record in read_manifest(small_dataset)]
    taxonomy = Taxonomy.load(small_dataset / "taxonomy.yaml")
    with pytest.raises(UserError, match="no training image has a box"):
        check(_settings(), records, taxonomy)


def test_two_members_of_one_name_are_refused() -> None:
    twice = [{"name": "a", "model": "test_resnet"}] * 2
    with pytest.raises(UserError, match="give each member its own name"):
        _settings(members=twice)
