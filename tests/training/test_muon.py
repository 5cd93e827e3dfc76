"""Muon as a kind of optimizer: which weights it takes, its step, its state, what it refuses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks import run_ranks
from states import as_arrays
from timm.optim.muon import _is_suitable_for_muon
from torch import Tensor, nn

from skindx.core.errors import UserError
from skindx.core.state_checks import UnfitStateError
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx.training.checkpoint.resume import share_weights
from skindx.training.checkpoint.saved_state import (
    check_optimizer,
    load_named_state,
    named_state,
    read_state,
    split,
    write_state,
)
from skindx.training.checks import _check_layer_norms
from skindx.training.config.engine import EngineSettings
from skindx.training.config.optimizers import is_matrix
from skindx.training.config.recipe import Ema, Recipe
from skindx.training.config.run import TrainSettings
from skindx.training.deepspeed.engine import Engine
from skindx.training.deepspeed.ranks import join
from skindx.training.parallel.mesh import Mesh, leave
from skindx.training.tasks.optimizer import (
    WeightAverage,
    build_optimizer,
)

MUON: dict[str, Any] = {"optimizer": "muon"}


def _net(model: str) -> nn.Module:
    with torch.device("meta"):
        return build_classifier(ClassifierSettings(model=model), 8)


def _by_muon(net: nn.Module, **recipe: Any) -> set[str]:
    """Return the names of the weights that Muon takes; AdamW takes all others that learn."""
    names = {weight: name.removeprefix("net.") for name, weight in net.named_parameters()}
    groups = build_optimizer(net, Recipe(optimizer="muon", **recipe), []).param_groups
    assert sum(len(g["params"]) for g in groups) == sum(w.requires_grad for w in net.parameters())
    return {names[w] for g in groups if not g["use_fallback"] for w in g["params"]}


def test_which_weights_it_takes_of_mobilenetv2() -> None:
    """Stem, the 1 x 1 kernels of 17 blocks, the last kernel; no depthwise one, no classifier."""
    expected = {"conv_stem.weight", "conv_head.weight", "blocks.0.0.conv_pw.weight"}
    for stage, blocks in enumerate((2, 3, 4, 3, 3, 1), start=1):
        for block in range(blocks):
            expected |= {
                f"blocks.{stage}.{block}.{which}.weight" for which in ("conv_pw", "conv_pwl")
            }
    assert _by_muon(_net("mobilenetv2_100")) == expected
    assert len(expected) == 35


def test_which_weights_it_takes_of_resnet18() -> None:
    expected = {"conv1.weight"} | {f"layer{stage}.0.downsample.0.weight" for stage in (2, 3, 4)}
    for stage in (1, 2, 3, 4):
        expected |= {f"layer{stage}.{b}.conv{c}.weight" for b in (0, 1) for c in (1, 2)}
    assert _by_muon(_net("resnet18")) == expected


def test_slower_layers_keep_their_share_of_the_rate() -> None:
    resnet = _net("test_resnet")
    recipe = Recipe(optimizer="muon", layer_decay=0.5)
    scales = {group["lr_scale"] for group in build_optimizer(resnet, recipe, []).param_groups}
    assert {0.5, 0.25, 1.0} < scales


@given(st.lists(st.integers(1, 600), min_size=1, max_size=4))
def test_a_matrix_is_what_timm_takes_for_one(shape: list[int]) -> None:
    weight = torch.empty(shape, device="meta")
    assert is_matrix(shape) == _is_suitable_for_muon(weight)


class Toy(nn.Module):
    """A kernel of 6 x 12, a depthwise one, a norm and a last layer, as a classifier has them."""

    class Body(nn.Sequential):
        def get_classifier(self) -> nn.Module:
            return self[-1]

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = self.Body(
            nn.Conv2d(3, 6, 2, bias=False),
            nn.Conv2d(6, 6, 1, groups=6),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(6, 5),
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images)
        return logits


_QUINTIC = ((4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037),
            (2.8769, -3.1427, 1.2046), (2.8366, -3.0525, 1.2012))  # fmt: skip


def test_three_steps_by_hand() -> None:
    """Newton and Schulz in double precision, and AdamW; timm multiplies in bf16."""
    net, rate, decay = Toy(), 0.01, 0.1
    optimizer = build_optimizer(net, Recipe(optimizer="muon", learning_rate=rate,
                                            weight_decay=decay), [])  # fmt: skip
    generator = np.random.default_rng(0)
    expected = {name: w.detach().double().numpy().copy() for name, w in net.named_parameters()}
    first = {name: np.zeros_like(value) for name, value in expected.items()}
    second = {name: np.zeros_like(value) for name, value in expected.items()}
    moved: dict[str, float] = dict.fromkeys(expected, 0.0)
    for step in (1, 2, 3):
        for name, weight in net.named_parameters():
            gradient = generator.normal(size=weight.shape)
            weight.grad = torch.from_numpy(gradient).float()
            value = expected[name]
            value *= 1 - rate * (decay if value.ndim > 1 else 0)
            if name == "net.0.weight":
                first[name] = 0.95 * first[name] + 0.05 * gradient
                x = first[name].reshape(6, 12) / np.linalg.norm(first[name])
                for a, b, c in _QUINTIC:
                    square = x @ x.T
                    x = a * x + (b * square + c * square @ square) @ x
                assert np.abs(np.linalg.svd(x)[1] - 1).max() < 0.35  # the point of it
                change = rate * 0.2 * np.sqrt(12) * x.reshape(value.shape)
            else:
                first[name] = 0.9 * first[name] + 0.1 * gradient
                second[name] = 0.95 * second[name] + 0.05 * gradient**2
                mean, square = first[name] / (1 - 0.9**step), second[name] / (1 - 0.95**step)
                change = rate * mean / (np.sqrt(square) + 1e-7)
            value -= change
            moved[name] += float(np.linalg.norm(change))
        optimizer.step()
    for name, weight in net.named_parameters():
        difference = np.linalg.norm(weight.detach().numpy() - expected[name])
        assert difference < (0.02 if name == "net.0.weight" else 1e-4) * moved[name], name


def test_its_rate_grows_with_the_root_of_the_batch() -> None:
    assert Recipe(optimizer="muon", learning_rate=0.1, batch=64, base_batch=16).peak_rate == 0.2


SETTINGS = EngineSettings(accelerator="cpu", gradient_clip=1.0, sync_batch_norm=True)
RECIPE = Recipe(optimizer="muon", learning_rate=0.02, layer_decay=1, ema=Ema(decay=0.9))


class Run:
    """An engine with Muon and a moving average; eleven images a step, unevenly shared out."""

    def __init__(self, mesh: Mesh) -> None:
        net = Toy()
        self.average = WeightAverage(net, Ema(decay=0.9))
        self.engine = Engine(net, build_optimizer(net, RECIPE, []), mesh, 11)

    def trained(self, first: int, last: int) -> dict[str, Any]:
        data, engine = self.engine.mesh.data, self.engine
        for number in range(first, last):
            generator = torch.Generator().manual_seed(number)
            images, labels = torch.randn(11, 3, 6, 6, generator=generator), torch.arange(11) % 5
            own = slice(data.rank, None, data.size)
            loss = nn.functional.cross_entropy(engine(images[own]), labels[own], reduction="sum")
            engine.backward(loss, 11)
            assert engine.step(0.02)
            self.average.update(engine.module, number + 1)
        return {
            "weights": as_arrays(engine.state_dict()["weights"]),
            "average": as_arrays(self.average.module.state_dict()),
        }


def _everything(folder: str, first: bool) -> dict[str, Any]:
    mesh = join(SETTINGS)
    found: dict[str, Any] = {}
    if first:
        found["whole"] = Run(mesh).trained(0, 6)
        begun = Run(mesh)
        begun.trained(0, 3)
        state = {"engine": begun.engine.state_dict(), "average": begun.average.state_dict()}
        buffers = {name: value.clone() for name, value in begun.engine.module.named_buffers()}
        if mesh.is_main:
            write_state(Path(folder) / "state", split({**state, "buffers": buffers}))
        mesh.broadcast_from_main(lambda: None)
    kept = read_state(Path(folder) / "state")
    again = Run(mesh)
    again.engine.load_state_dict(kept["engine"])
    again.average.load_state_dict(kept["average"])
    again.engine.module.load_state_dict(kept["buffers"], strict=False)
    found["resumed"] = again.trained(3, 6)
    if mesh.data.rank:  # as on another processor
        with torch.no_grad():
            torch._foreach_mul_(list(again.engine.module.parameters()), 1.01)
    share_weights(again.engine.module, again.engine.optimizer, mesh)
    found["shared"] = as_arrays(dict(again.engine.module.named_parameters()))
    leave()
    return found


@pytest.mark.distributed
def test_ranks_stay_alike_and_a_resumed_training_goes_on_to_the_bit(tmp_path: Path) -> None:
    pair = run_ranks(2, _everything, str(tmp_path), True)
    (alone,) = run_ranks(1, _everything, str(tmp_path), False)
    whole = pair[0]["whole"]
    for result in (pair[1]["whole"], pair[0]["resumed"], pair[1]["resumed"]):
        for kind in ("weights", "average"):
            for name, value in result[kind].items():
                if "running" not in name and "num_batches" not in name:
                    np.testing.assert_array_equal(value, whole[kind][name], err_msg=name)
    for name, value in pair[1]["shared"].items():  # those that the main rank had already
        np.testing.assert_array_equal(value, pair[0]["resumed"]["weights"][name], err_msg=name)
    for name, value in alone["resumed"]["weights"].items():  # sums round otherwise
        np.testing.assert_allclose(value, whole["weights"][name], atol=0.03, err_msg=name)


def _stepped() -> tuple[nn.Module, torch.optim.Optimizer]:
    net = Toy()
    optimizer = build_optimizer(net, RECIPE, [])
    for weight in net.parameters():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    return net, optimizer


def test_a_state_that_names_another_optimizer_for_a_weight_is_refused() -> None:
    net, optimizer = _stepped()
    state = named_state(optimizer, net)
    assert set(state["net.0.weight"]) == {"use_muon", "momentum_buffer"}
    assert set(state["net.1.weight"]) == {"use_muon", "step", "exp_avg", "exp_avg_sq"}
    check_optimizer(state, optimizer, net, complete=True)
    load_named_state(optimizer, net, state)
    forged = {**state, "net.6.bias": {**state["net.6.bias"], "use_muon": True}}
    with pytest.raises(
        UnfitStateError, match=r"net\.6\.bias was saved by another kind of optimizer step"
    ):
        check_optimizer(forged, optimizer, net, complete=True)
    forged = {**state, "net.6.weight": state["net.0.weight"]}
    with pytest.raises(UnfitStateError, match=r"net\.6\.weight"):
        check_optimizer(forged, optimizer, net, complete=True)


def test_what_it_keeps_of_a_network_is_about_one_copy() -> None:
    net = build_classifier(ClassifierSettings(model="mobilenetv2_100"), 8)
    optimizer = build_optimizer(net, Recipe(optimizer="muon"), [])
    for weight in net.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    kept = sum(t.numel() for s in optimizer.state.values() for t in s.values()
               if isinstance(t, Tensor))  # fmt: skip
    weights = sum(weight.numel() for weight in net.parameters())
    assert weights < kept < 1.1 * weights


ONE = {"name": "a", "model": "test_resnet"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"recipe": {**MUON, "momentum": 0.5}}, "momentum applies only to the optimizers sgd and"),
        ({"exchange": {"kind": "topk", "momentum": 0.9}}, "would apply momentum in both optimizer"),
        ({"members": [{**ONE, "trunk": "frozen", "pretrained": True}]},
         "muon cannot train the head, and a frozen trunk trains only the head"),
    ],
)  # fmt: skip
def test_what_it_does_not_go_with_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        TrainSettings.parse({"members": [ONE], "recipe": MUON, **change})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_zero_is_refused(zero: int) -> None:
    settings = TrainSettings.parse({"members": [ONE], "recipe": MUON, "engine": {"zero": zero}})
    with pytest.raises(UserError, match=rf"matrix of each layer, .*zero={zero} .*sgd or adamw\."):
        _check_layer_norms(settings)


def test_a_network_without_one_last_layer_is_refused() -> None:
    net = _net("deit_tiny_distilled_patch16_224")
    with pytest.raises(
        UserError, match="does not work with this model, because the network has no single"
    ):
        _by_muon(net)
