"""A network that cannot do what is asked of it is refused before anything is written."""

import faulthandler
import os
import signal
from pathlib import Path

import pytest
import timm
import torch
from command_line import Skindx

from skindx.core.errors import UserError
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx.models.classifier.preprocess import Preprocess
from skindx.training.config.run import TrainSettings
from skindx.training.member_networks import probe_members


def settings(model: str, size: int, **change: object) -> TrainSettings:
    member = {"name": "a", "model": model, "preprocess": {"size": size}}
    return TrainSettings.parse({"members": [member], **change})


@pytest.mark.parametrize(
    ("model", "size", "said"),
    [
        ("inception_v3", 48, "inception_v3 cannot be trained on images of 48 x 48 pixels"),
        ("crossvit_tiny_240", 240, "crossvit_tiny_240 makes several last feature maps"),
        ("coat_tiny", 64, "coat_tiny makes several last feature maps"),
    ],
)
def test_the_command_line_names_the_member_and_writes_nothing(
    skindx: Skindx, small_dataset: Path, tmp_path: Path, model: str, size: int, said: str
) -> None:
    member = f"members=[{{name: a, model: {model}, preprocess: {{size: {size}}}}}]"
    out = tmp_path / "run"
    code, _, err = skindx(
        *("train", small_dataset, "--out", out, "--set", member, "--set", "recipe.batch=8")
    )
    assert code == 2
    assert err.startswith("error: member a: ")
    assert said in err
    assert err.count("\n") == 1
    assert not out.exists()


def test_a_network_that_ends_its_process_ends_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Aborts(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            faulthandler.disable()  # pytest's: in a fork it may fail over threads that are gone
            os.abort()

    monkeypatch.setattr(timm, "create_model", lambda *_, **__: Aborts())
    monkeypatch.setattr("skindx.models.classifier.classifier._calm_head", lambda net: None)
    with pytest.raises(UserError, match=r"test_resnet ends .* SIGABRT"):
        probe_members(settings("test_resnet", 72), 3)


def test_a_trial_that_is_killed_blames_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "skindx.training.member_networks.try_network",
        lambda *_: os.kill(os.getpid(), signal.SIGKILL),
    )
    with pytest.raises(UserError, match=r"signal SIGKILL.* run the same command"):
        probe_members(settings("test_resnet", 73), 3)


def test_small_images_first_are_tried_too() -> None:
    resize = {"recipe": {"resize": {"start": 32}}}
    with pytest.raises(UserError, match="cannot be trained"):
        probe_members(settings("vit_tiny_patch16_224", 64, **resize), 3)


def test_layers_and_checkpoints_that_timm_lacks_are_named(
    skindx: Skindx, small_dataset: Path, tmp_path: Path
) -> None:
    member = "members=[{name: a, model: poolformer_s12, preprocess: {size: 64}}]"
    code, _, err = skindx(
        *("train", small_dataset, "--out", tmp_path / "run", "--set", member),
        *("--set", "recipe={batch: 8, layer_decay: 0.7}"),
    )
    assert (code, err.count("\n")) == (2, 1)
    assert "timm cannot divide PoolFormer" in err or "timm cannot divide MetaFormer" in err


@pytest.mark.parametrize("size", [64, 160])
def test_a_transformer_is_built_for_the_side_and_rebuilt_alike(size: int) -> None:
    network = ClassifierSettings(model="test_vit", preprocess=Preprocess(size=size))
    one = build_classifier(network, 3).eval()
    again = build_classifier(ClassifierSettings.parse(network.model_dump(mode="json")), 3)
    again.net.load_state_dict(one.net.state_dict())
    assert one(torch.zeros(1, size, size, 3, dtype=torch.uint8)).shape == (1, 3)
    assert network.model_args == {}  # and so the fingerprint of a run stays


def test_a_network_that_takes_the_images_as_it_is_stays_as_it_was() -> None:
    from skindx.models.classifier.network_setup import sized_arguments

    assert sized_arguments("test_resnet", {}, 64) == {}
    assert sized_arguments("test_vit", {}, 160) == {}
    assert sized_arguments("test_vit", {"img_size": 96}, 64) == {"img_size": 96}
    assert sized_arguments("test_vit", {"dynamic_img_size": True}, 64) == {"dynamic_img_size": True}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_stem_that_damages_memory_gives_the_same_gradient(layout: torch.memory_format) -> None:
    from skindx.models.classifier.network_setup import avoid_strided_pointwise_fault

    torch.manual_seed(0)
    layer = torch.nn.Conv2d(3, 8, 1, stride=2)
    avoid_strided_pointwise_fault(layer)
    layer = layer.to(memory_format=layout)  # as a training does, after the network is built
    images = torch.rand(2, 3, 32, 32).to(memory_format=torch.channels_last)
    seen = []
    layer.register_forward_hook(lambda _, given, __: seen.append(given[0].is_contiguous()))
    layer(images).square().sum().backward()
    assert layer.weight.stride() == (3, 1, 1, 1)
    expected = torch.nn.Conv2d(3, 8, 1)
    expected.load_state_dict(layer.state_dict())
    expected(images[..., ::2, ::2].contiguous()).square().sum().backward()
    assert seen == [True]
    torch.testing.assert_close(layer.weight.grad, expected.weight.grad)


def test_a_network_with_such_a_stem_is_trained() -> None:
    """Fastvit's own backward ended the process at 96 pixels."""
    probe_members(settings("fastvit_t8", 96), 3)
