"""A training without a config: from weights that are at hand, or not at all."""

from pathlib import Path

import pytest
import timm
from command_line import Skindx
from safetensors.torch import save_file

from skindx.core.errors import UserError
from skindx.models.classifier.pretrained import kept_weights
from skindx.training.config.run import TrainSettings
from skindx.training.member_networks import DEFAULT_NETWORKS, with_default_network


@pytest.fixture(autouse=True)
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let neither the cache nor SKINDX_WEIGHTS hold anything; return the folder for weights."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SKINDX_WEIGHTS", raising=False)
    (tmp_path / "weights").mkdir()
    return tmp_path / "weights"


def test_without_weights_nothing_is_trained(
    skindx: Skindx, small_dataset: Path, tmp_path: Path
) -> None:
    code, _, err = skindx("train", small_dataset, "--out", tmp_path / "run")
    assert code == 2
    assert "needs pretrained weights, but" in err
    assert "--random-weights" in err
    assert not (tmp_path / "run").exists()


def test_the_first_network_with_a_file_is_taken_as_it_was_trained(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKINDX_WEIGHTS", str(empty_home))
    for name in ("resnet18.pth", "tf_efficientnet_lite0.fp16.safetensors", "other.safetensors"):
        (empty_home / name).write_bytes(b"")
    [member] = with_default_network(TrainSettings(), random_weights=False).members
    assert (member.model, member.preprocess.size) == ("tf_efficientnet_lite0", 224)
    assert member.preprocess.mean == (0.5, 0.5, 0.5)
    assert member.weights == empty_home / "tf_efficientnet_lite0.fp16.safetensors"
    assert not member.pretrained


def test_what_was_fetched_before_is_at_hand() -> None:
    plain = TrainSettings.parse({"members": [{"name": "a", "model": "resnet50"}]}).members[0]
    file = kept_weights(plain)
    file.parent.mkdir(parents=True)
    file.write_bytes(b"")
    [member] = with_default_network(TrainSettings(), random_weights=False).members
    assert (member.model, member.weights) == ("resnet50", file)


def test_other_settings_are_kept_and_members_that_are_named_stay(empty_home: Path) -> None:
    named = TrainSettings.parse({"members": [{"name": "a", "model": "test_resnet"}]})
    assert with_default_network(named, random_weights=False) is named
    random = TrainSettings.parse({"recipe": {"epochs": 3}})
    assert with_default_network(random, random_weights=True) is random
    (empty_home / "resnet18.safetensors").write_bytes(b"")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKINDX_WEIGHTS", str(empty_home))
        assert with_default_network(random, random_weights=False).recipe.epochs == 3
        patch.setenv("SKINDX_WEIGHTS", str(empty_home / "none"))
        with pytest.raises(UserError, match="is not a folder"):
            with_default_network(random, random_weights=False)


def test_every_default_network_is_one_of_timm_with_weights() -> None:
    for name in DEFAULT_NETWORKS:
        known = timm.get_pretrained_cfg(name)
        assert known is not None
        assert known.has_weights


def test_random_weights_are_for_a_training_that_names_no_network(
    skindx: Skindx, small_dataset: Path, tmp_path: Path
) -> None:
    save_file(dict(timm.create_model("test_resnet").state_dict()), tmp_path / "w.safetensors")
    more = ("--weights", tmp_path / "w.safetensors")
    code, _, err = skindx(
        "train", small_dataset, "--out", tmp_path / "run", "--random-weights", *more
    )
    assert code == 2
    assert "--random-weights works only without" in err
