"""A run whose files have the right fingerprint and the wrong content: one sentence a file."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from skindx.core.errors import UserError
from skindx.data.manifest import read_manifest
from skindx.models.classifier.classifier import build_classifier, load_weights
from skindx.taxonomy import Taxonomy
from skindx.training.checkpoint.fingerprints import fingerprint
from skindx.training.checkpoint.finished import (
    FinishedMember,
    load_parts,
    member_folder,
    packed_origin,
    save_member,
)
from skindx.training.config.run import TrainSettings
from skindx.training.ensembles.pack import EnsembleBuilder

SMALL = {"model": "test_resnet", "preprocess": {"size": 32}}
SETTINGS = {
    "members": [{"name": "a", **SMALL}, {"name": "b", **SMALL}],
    "recipe": {"epochs": 1, "batch": 18},
    "engine": {"accelerator": "cpu"},
    "detector": None,
}


@pytest.fixture
def builder(small_dataset: Path, tmp_path: Path) -> EnsembleBuilder:
    """Return a run with two finished members."""
    settings = TrainSettings.parse(SETTINGS)
    taxonomy, records = Taxonomy.load(small_dataset / "taxonomy.yaml"), read_manifest(small_dataset)
    builder = EnsembleBuilder(tmp_path / "run", small_dataset, settings, taxonomy, records, "cpu")
    held = [record for record in records if record.split == "val"]
    for member in settings.members:
        state = build_classifier(member, 3).net.state_dict()
        log_NC = np.log(np.full((len(held), 3), 1 / 3))
        finished = FinishedMember(state, log_NC, np.zeros(len(held), np.int64))
        mark = fingerprint(settings, member, small_dataset)
        save_member(builder.run, member.name, finished, [{"epoch": 1}], mark)
    return builder


Tensors = dict[str, torch.Tensor]


def _without(state: Tensors) -> Tensors:
    return dict(list(state.items())[1:])


def _with(state: Tensors) -> Tensors:
    return {**state, "another": torch.zeros(2)}


def _flat(state: Tensors) -> Tensors:
    return {name: value.reshape(-1) for name, value in state.items()}


def _whole(state: Tensors) -> Tensors:
    return {name: value.to(torch.int8) for name, value in state.items()}


CHANGES = [_without, _with, _flat, _whole]


@pytest.mark.parametrize("change", CHANGES)
def test_weights_of_another_network_are_refused(
    builder: EnsembleBuilder, change: Callable[[Tensors], Tensors]
) -> None:
    file = "members/b/model.safetensors"
    builder.parts(["b"])
    save_file(change(load_file(builder.run / file)), builder.run / file)
    with pytest.raises(
        UserError, match="does not have the tensors of the model 'test_resnet'"
    ) as caught:
        builder.parts(["b"])
    assert file in str(caught.value)
    assert "to train it again" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("log", "truth"),
    [((11, 3), 12), ((12, 2), 12), ((12, 3), 11), ((0, 3), 0)],
)
def test_validation_of_other_images_is_refused(
    builder: EnsembleBuilder, log: tuple[int, int], truth: int
) -> None:
    file = member_folder(builder.run, "b") / "validation.npz"
    np.savez(file, log=np.zeros(log), truth=np.zeros(truth, np.int64))
    with pytest.raises(UserError, match=r"does not have the predictions"):
        builder.parts(["b"])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_weights_to_start_from_that_cannot_be_copied_stay_out(
    builder: EnsembleBuilder, tmp_path: Path
) -> None:
    """Sparse, complex and whole numbers have the right shape and are no weights."""
    classifier = build_classifier(builder.settings.members[0], 3)
    state = classifier.net.state_dict()
    odd = [lambda each: each.to_sparse(), lambda each: each.to(torch.complex64), torch.Tensor.char]
    names = [name for name, value in state.items() if value.ndim > 1][:3]
    for name, change in zip(names, odd, strict=True):
        state[name] = change(state[name])
    torch.save(state, tmp_path / "weights.pt")
    assert load_weights(classifier, tmp_path / "weights.pt") == names


@pytest.mark.parametrize("change", CHANGES)
def test_a_runs_detector_of_another_network_is_refused(
    tmp_path: Path, change: Callable[[Tensors], Tensors]
) -> None:
    whole = Path(__file__).parents[1] / "fixtures/v0_1/whole"
    shutil.copytree(whole / "detector", tmp_path / "detector")
    load_parts(tmp_path)
    file = tmp_path / "detector/model.safetensors"
    save_file(change(load_file(file)), file)
    with pytest.raises(UserError, match=r"are of different networks|only float32"):
        load_parts(tmp_path)


def test_a_runs_detector_that_does_not_say_its_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "detector").mkdir()
    (tmp_path / "detector/detector.json").write_text('{"manifest": 3}')
    settings = TrainSettings.parse({"detector": {"from": str(tmp_path)}})
    with pytest.raises(UserError, match="does not name the dataset"):
        packed_origin(settings)
