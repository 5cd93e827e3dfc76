"""Low-rank updates: nothing at first, of low rank at the end, and a plain network when kept."""

from pathlib import Path
from typing import Any

import pytest
import torch
from plain_engine import Alone, PlainEngine
from safetensors.torch import save_file
from test_trainer import Silent, data_of

from skindx.core.errors import UserError
from skindx.models.classifier.classifier import build_classifier
from skindx.training import state
from skindx.training.config.recipe import LoraSettings
from skindx.training.config.run import TrainSettings
from skindx.training.loop import fit
from skindx.training.tasks.classifier_job import setup_member
from skindx.training.tasks.optimizer import add_low_rank, plain_state

VIT = {"model": "test_vit", "model_args": {"depth": 2}, "preprocess": {"size": 64}}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    settings = TrainSettings.parse({"members": [{**VIT, "name": "a"}]}).members[0]
    net = build_classifier(settings.network(), 3).net
    file = tmp_path / "given.safetensors"
    save_file({name: value.contiguous() for name, value in net.state_dict().items()}, file)
    return file


def _settings(weights: Path, **recipe: Any) -> TrainSettings:
    member = {**VIT, "name": "a", "weights": weights, "trunk": "lora", "lora": {"rank": 2}}
    return TrainSettings.parse(
        {
            "members": [member],
            "recipe": {"epochs": 2, "batch": 18, "learning_rate": 0.01, **recipe},
            "engine": {"accelerator": "cpu"},
            "loader": {"threads": 1},
        }
    )


def test_nothing_changes_before_the_first_step(weights: Path) -> None:
    settings = _settings(weights).members[0]
    torch.manual_seed(0)
    plain = build_classifier(settings.network(), 3).eval()
    before = plain.net.state_dict()
    images = torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8)
    wanted = plain(images)
    before = {name: value.clone() for name, value in before.items()}
    add_low_rank(plain, LoraSettings(rank=2))
    assert torch.allclose(plain(images), wanted)
    after = plain_state(plain.net)
    assert list(after) == list(before) or set(after) == set(before)
    assert all(after[name].equal(before[name]) for name in before)


@pytest.mark.parametrize("recipe", [{}, {"ema": {"decay": 0.5}}], ids=["plain", "average"])
def test_only_low_rank_updates_and_the_head_are_learned(
    weights: Path, small_dataset: Path, monkeypatch: pytest.MonkeyPatch, recipe: dict[str, Any]
) -> None:
    from safetensors.torch import load_file

    monkeypatch.setattr(state, "Engine", PlainEngine)
    settings = _settings(weights, **recipe)
    member = settings.members[0]
    training = setup_member(settings, member, data_of(small_dataset), Alone(), print)
    finished = fit(training, Silent())
    given = load_file(weights)
    assert set(finished.state) == set(given)
    ranks = set()
    for name, value in finished.state.items():
        if name.startswith("head."):
            assert not value.equal(given[name])
        elif value.equal(given[name]):
            assert not (name.startswith("blocks.") and name.endswith("qkv.weight"))
        else:
            ranks.add(int(torch.linalg.matrix_rank(value - given[name], rtol=1e-3)))
    assert ranks
    assert max(ranks) <= 2
    # What is kept is a plain network that answers as the one in training did.
    classifier = build_classifier(member.network(), 3)
    classifier.net.load_state_dict(finished.state)
    classifier.eval()
    images = torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8)
    with torch.inference_mode():
        assert torch.allclose(classifier(images), training.evaluated().eval()(images), atol=1e-5)


def test_a_network_without_linear_layers_is_refused() -> None:
    member = TrainSettings.parse({"members": [{"name": "a", "model": "test_resnet"}]}).members[0]
    with pytest.raises(UserError, match="take a transformer"):
        add_low_rank(build_classifier(member.network(), 3), LoraSettings())
