from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from skindx.core.errors import UserError
from skindx.data.loader.ahead import Pool
from skindx.data.loader.load import Reading
from skindx.data.loader.settings import Augment
from skindx.data.loader.source import Files
from skindx.data.manifest import read_manifest, split_of
from skindx.models.bundle.bundle import Bundle, pack
from skindx.models.bundle.bundle_index import MemberSpec
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx.models.classifier.preprocess import Preprocess
from skindx.models.ensemble import predict_records
from skindx.taxonomy import Taxonomy
from skindx.training.checkpoint.fingerprints import fingerprint
from skindx.training.checks import check
from skindx.training.config.recipe import Recipe
from skindx.training.config.run import TrainSettings
from skindx.training.ensembles.member_refs import soft_targets, student_settings, write_targets
from skindx.training.tasks.image_sets import (
    TrainingSet,
    class_numbers,
    load_targets,
    training_batches,
)
from skindx.training.tasks.losses import build_loss

SMALL = ClassifierSettings(model="test_resnet", preprocess=Preprocess(size=64))
STUDENT = {"name": "pupil", "model": "test_resnet", "preprocess": {"size": 64}}


def _settings(**change: object) -> TrainSettings:
    distil = {"student": STUDENT, **change}
    return TrainSettings.parse({"engine": {"accelerator": "cpu"}, "distil": distil})


def _teacher(path: Path, dataset: Path, temperature: float = 0.2) -> Bundle:
    torch.manual_seed(0)
    member = MemberSpec(name="a", classifier=SMALL, temperature=0.1)
    state = build_classifier(SMALL, 3).net.state_dict()
    return pack(
        path,
        "teacher",
        Taxonomy.load(dataset / "taxonomy.yaml"),
        [(member, state)],
        temperature=temperature,
        provenance={"manifest sha256": "x"},
    )


def test_soft_targets_by_hand() -> None:
    said_NC, truth_N = np.array([[0.8, 0.2]]), np.array([1])
    # At temperature 2 the odds of four to one become two to one.
    softened = soft_targets(said_NC, truth_N, temperature=2.0, share=0.75)
    assert softened[0] == pytest.approx([0.75 * 2 / 3, 0.75 / 3 + 0.25])
    assert soft_targets(said_NC, truth_N, temperature=1.0, share=1.0)[0] == pytest.approx(
        [0.8, 0.2]
    )


def test_targets_are_the_teachers_words_of_the_training_images(
    small_dataset: Path, tmp_path: Path
) -> None:
    settings, teacher = _settings(), _teacher(tmp_path / "bundle", small_dataset)
    write_targets(tmp_path, small_dataset, settings, teacher)
    records = split_of(read_manifest(small_dataset), "train")
    (member,) = student_settings(tmp_path, settings).members
    found_NC = load_targets(member.targets, records, 3)
    said_NC, _ = predict_records(teacher.ensemble(), small_dataset, records)
    truth_N = class_numbers(records, teacher.taxonomy.keys)
    np.testing.assert_allclose(found_NC, soft_targets(said_NC, truth_N, 2.0, 0.7), atol=1e-6)
    # Asked again nothing is written; another teacher or share is another file.
    before = fingerprint(student_settings(tmp_path, settings), member, small_dataset)
    stamp = member.targets.stat().st_mtime_ns
    write_targets(tmp_path, small_dataset, settings, _teacher(tmp_path / "bundle", small_dataset))
    assert member.targets.stat().st_mtime_ns == stamp
    write_targets(tmp_path, small_dataset, _settings(share=0.5), teacher)
    assert fingerprint(student_settings(tmp_path, settings), member, small_dataset) != before
    with pytest.raises(UserError, match="soft targets for 53 training images"):
        load_targets(member.targets, records[1:], 3)


def test_a_step_learns_the_targets_of_its_own_images(small_dataset: Path) -> None:
    records = split_of(read_manifest(small_dataset), "train")
    labels_N = class_numbers(records, ("Disc", "Stripes", "Plain"))
    targets_NC = np.random.default_rng(0).dirichlet(np.ones(3), len(records)).astype(np.float32)
    soft = TrainingSet(
        Files(small_dataset, records), labels_N, False, Reading(1, 2, Pool()), targets_NC
    )
    shares = [np.array([3, 1, 40]), np.array([7, 9])]
    for _, (images, learned) in zip(
        shares, training_batches(soft, shares, Augment(), side=32, seed=0, epoch=0), strict=True
    ):
        assert images.shape[0] == len(learned)
        loss = build_loss(labels_N, 3, Recipe())(torch.zeros(len(learned), 3), learned)
        assert loss.item() == pytest.approx(len(learned) * np.log(3), rel=1e-5)
    batches = training_batches(soft, shares, Augment(), side=32, seed=0, epoch=0)
    np.testing.assert_array_equal(next(iter(batches))[1].numpy(), targets_NC[[3, 1, 40]])


def test_what_cannot_be_distilled_is_reported(small_dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="takes no fold"):
        _settings(student={**STUDENT, "fold": 0})
    records = read_manifest(small_dataset)
    taxonomy = Taxonomy.load(small_dataset / "taxonomy.yaml")
    wrong = _settings(student={**STUDENT, "model": "test_resnat"})
    with pytest.raises(UserError, match="timm has no model 'test_resnat'"):
        check(student_settings(tmp_path, wrong), records, taxonomy, tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        load_targets(tmp_path / "nothing.safetensors", records, 3)
    save_file({"other": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match="does not hold soft targets"):
        load_targets(tmp_path / "other.safetensors", records, 3)
