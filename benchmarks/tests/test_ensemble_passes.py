"""Predictions of members in several views: as a bundle serves them, and made only once."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_bundle import MODELS, pack_tiny

from skindx.data.manifest import read_manifest, split_of
from skindx.evaluation.answers import Answers
from skindx.models.combination import apply_temperature
from skindx.models.ensemble import Prediction, predict_members
from skindx.taxonomy import Taxonomy
from skindx.training.checkpoint.finished import FinishedMember, save_member
from skindx_bench.train import ensemble_passes

FLOPS = {"resnet": 10, "vit": 20}


def test_views_are_those_that_a_bundle_serves_and_are_predicted_once(
    small_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taxonomy = Taxonomy.load(small_dataset / "taxonomy.yaml")
    bundle = pack_tiny(tmp_path / "bundle", taxonomy=taxonomy)
    (tmp_path / "data").symlink_to(small_dataset)
    found = ensemble_passes.fold_passes(tmp_path, bundle, FLOPS, 8, "cpu")
    assert found.names == tuple(MODELS)
    assert found.flops_M == (10, 20)
    records = split_of(read_manifest(small_dataset), "test")
    assert found.test.truth_N.tolist() == [taxonomy.keys.index(row.label) for row in records]
    assert found.test.groups_N.tolist() == [row.group for row in records]
    for views, members_MNC in found.test.members.items():
        copies = [replace(member, views=views) for member in bundle.ensemble("cpu").members]
        log_MNC = predict_members(copies, small_dataset, records)
        for own_NC, log_NC, member in zip(members_MNC, log_MNC, copies, strict=True):
            assert own_NC == pytest.approx(apply_temperature(log_NC, member.temperature), abs=1e-5)
    assert sorted(found.test.members) == [1, 2, 4, 8]
    assert not np.allclose(found.test.members[1], found.test.members[8], atol=1e-4)

    # What training and evaluation wrote already gives the same in one view.
    ensemble, answers = bundle.ensemble("cpu"), {}
    for split in ("val", "test"):
        own = split_of(read_manifest(small_dataset), split)
        log_MNC = predict_members(ensemble.members, small_dataset, own)
        truth_N = np.array([taxonomy.keys.index(row.label) for row in own])
        for member, log_NC in zip(ensemble.members, log_MNC, strict=True):
            if split == "val":
                finished = FinishedMember({}, log_NC, truth_N)
                save_member(tmp_path / "run", member.name, finished, [{"epoch": 1}], "")
        said_MNC = np.stack(
            [
                apply_temperature(log_NC, member.temperature)
                for log_NC, member in zip(log_MNC, ensemble.members, strict=True)
            ]
        )
        predictions = [
            Prediction(mean_C, members_MC)
            for mean_C, members_MC in zip(
                said_MNC.mean(axis=0), said_MNC.swapaxes(0, 1), strict=True
            )
        ]
        answers[split] = Answers.join(own, predictions, taxonomy.classes, list(MODELS))
    served = ensemble_passes.served_passes(tmp_path, bundle, FLOPS, answers["test"])
    for one, other in ((served.test, found.test), (served.validation, found.validation)):
        assert (one.truth_N == other.truth_N).all()
        assert (one.groups_N == other.groups_N).all()
        assert one.members[1] == pytest.approx(other.members[1], abs=1e-5)

    def refuse(*_: object) -> None:
        raise AssertionError("predicted again")

    monkeypatch.setattr(ensemble_passes, "predict_views", refuse)
    again = ensemble_passes.fold_passes(tmp_path, bundle, FLOPS, 8, "cpu")
    assert (again.test.members[4] == found.test.members[4]).all()
    with pytest.raises(AssertionError, match="predicted again"):
        ensemble_passes.fold_passes(tmp_path, bundle, FLOPS, 4, "cpu")
