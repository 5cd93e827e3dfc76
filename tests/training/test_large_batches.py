"""Large batches are a matter of config: LARS, LAMB, scaled rates, half precision."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks import run_ranks
from torch import nn

from skindx.core.errors import UserError
from skindx.training.checkpoint import fingerprints
from skindx.training.checkpoint.fingerprints import fingerprint
from skindx.training.config.engine import EngineSettings, deepspeed_config
from skindx.training.config.recipe import Recipe
from skindx.training.config.run import TrainSettings
from skindx.training.deepspeed.engine import Engine
from skindx.training.deepspeed.ranks import join
from skindx.training.parallel.mesh import leave
from skindx.training.tasks.optimizer import build_optimizer

WEIGHT, BIAS = np.array([[3.0, 4.0], [0.0, 1.0]]), np.array([0.5, -2.0])
GRADIENTS = [
    (np.array([[0.2, -0.1], [0.4, 0.3]]), np.array([1.0, -1.0])),
    (np.array([[-0.5, 0.1], [0.1, 0.7]]), np.array([0.5, 0.25])),
    (np.array([[0.3, 0.3], [-0.2, 0.9]]), np.array([-0.1, 0.6])),
]


def _steps(recipe: Recipe) -> tuple[np.ndarray, np.ndarray]:
    """Return weight and bias after a step with each of the gradients."""
    net = nn.Linear(2, 2)
    with torch.no_grad():
        net.weight.copy_(torch.from_numpy(WEIGHT))
        net.bias.copy_(torch.from_numpy(BIAS))
    optimizer = build_optimizer(net, recipe, fresh=[])
    for gradient, of_bias in GRADIENTS:
        net.weight.grad = torch.from_numpy(gradient).float()
        net.bias.grad = torch.from_numpy(of_bias).float()
        optimizer.step()
    return net.weight.detach().numpy(), net.bias.detach().numpy()


@pytest.mark.parametrize("momentum", [0.9, 0.0])
@pytest.mark.parametrize("eta", [0.001, 0.02])
def test_lars_by_hand(momentum: float, eta: float) -> None:
    """You et al. 2017, algorithm 1: local rate eta |w| / (|g| + lambda |w|), none for a bias."""
    decay, rate = 0.1, 2.0
    recipe = Recipe(
        optimizer="lars",
        learning_rate=rate,
        weight_decay=decay,
        momentum=momentum,
        trust_coefficient=eta,
    )
    weight, bias = WEIGHT.copy(), BIAS.copy()
    speed, speed_of_bias = np.zeros_like(weight), np.zeros_like(bias)
    for gradient, of_bias in GRADIENTS:
        length, steepness = np.linalg.norm(weight), np.linalg.norm(gradient)
        local = eta * length / (steepness + decay * length)
        change = local * (gradient + decay * weight)
        speed = momentum * speed + change
        speed_of_bias = momentum * speed_of_bias + of_bias
        weight -= rate * (change + momentum * speed if momentum else speed)  # Nesterov's
        bias -= rate * (of_bias + momentum * speed_of_bias if momentum else speed_of_bias)
    found = _steps(recipe)
    np.testing.assert_allclose(found[0], weight, rtol=1e-5)
    np.testing.assert_allclose(found[1], bias, rtol=1e-5)


def test_lamb_by_hand() -> None:
    """You et al. 2019, algorithm 2: Adam's step and the decay, made as long as the weight."""
    decay, rate = 0.1, 0.02
    found = _steps(Recipe(optimizer="lamb", learning_rate=rate, weight_decay=decay))
    for which, start, adapted in ((0, WEIGHT, True), (1, BIAS, False)):
        weight, mean, square = start.copy(), np.zeros_like(start), np.zeros_like(start)
        for step, gradients in enumerate(GRADIENTS, start=1):
            gradient = gradients[which]
            mean = 0.9 * mean + 0.1 * gradient
            square = 0.999 * square + 0.001 * gradient**2
            corrected = mean / (1 - 0.9**step), square / (1 - 0.999**step)
            change = corrected[0] / (np.sqrt(corrected[1]) + 1e-6)
            if adapted:
                change = change + decay * weight
                change = change * np.linalg.norm(weight) / np.linalg.norm(change)
            weight -= rate * change
        np.testing.assert_allclose(found[which], weight, rtol=1e-4)


def test_sgd_without_momentum_follows_the_gradient_alone() -> None:
    weight, bias = _steps(Recipe(optimizer="sgd", learning_rate=0.5, weight_decay=0, momentum=0))
    np.testing.assert_allclose(weight, WEIGHT - 0.5 * sum(g for g, _ in GRADIENTS), rtol=1e-5)
    np.testing.assert_allclose(bias, BIAS - 0.5 * sum(b for _, b in GRADIENTS), rtol=1e-5)


@given(
    base=st.integers(1, 64),
    larger=st.integers(1, 64),
    optimizer=st.sampled_from(["sgd", "lars", "lamb", "adamw"]),
)
def test_the_rate_grows_with_the_batch(base: int, larger: int, optimizer: str) -> None:
    batch = max(2, base * larger)
    recipe = Recipe(
        optimizer=optimizer, learning_rate=0.1, batch=batch, base_batch=base, warmup_epochs=2
    )
    grown = batch / base
    by = grown if optimizer in ("sgd", "lars") else math.sqrt(grown)
    assert recipe.peak_rate == pytest.approx(0.1 * by)
    as_given = recipe.model_copy(update={"base_batch": None})
    for step in range(12):
        assert recipe.rate_at(step, 4) == pytest.approx(by * as_given.rate_at(step, 4))


def test_rates_stand_as_they_are_by_default() -> None:
    assert Recipe(learning_rate=0.3, batch=512).peak_rate == 0.3
    assert Recipe(learning_rate=0.3, batch=32, base_batch=32).peak_rate == 0.3
    head = Recipe(learning_rate=0.1, head_learning_rate=0.4, batch=64, base_batch=32,
                  optimizer="sgd")  # fmt: skip
    groups = build_optimizer(nn.Linear(2, 2), head, fresh=["weight"]).param_groups
    assert {round(group["lr_scale"], 6) for group in groups} == {4.0, 1.0}  # both rates grow alike
    assert {group["lr"] for group in groups} == {0.2}


def test_members_of_before_are_still_known(tmp_path: Path) -> None:
    """What is left at its default is in no fingerprint; what is used changes it."""
    (tmp_path / "manifest.parquet").write_bytes(b"x")

    def mark(**recipe: object) -> str:
        settings = TrainSettings.parse({"recipe": recipe})
        return fingerprint(settings, settings.members[0], tmp_path)

    young = {"base_batch", "momentum", "trust_coefficient", "preconditioner"}
    assert not young & Recipe().fingerprint_fields().keys()
    assert Recipe().model_dump().keys() == Recipe().fingerprint_fields().keys() | young
    assert mark() == mark(base_batch=None, momentum=0.9, trust_coefficient=0.001)
    assert mark() == mark(learning_rate=0.001)
    marks = [
        mark(optimizer="lars", **options)
        for options in ({}, {"momentum": 0}, {"trust_coefficient": 0.01}, {"base_batch": 8})
    ]
    assert len({mark(), *marks}) == 5


def test_a_members_own_recipe_counts_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "manifest.parquet").write_bytes(b"x")
    seen: list[Any] = []
    monkeypatch.setattr(fingerprints, "fingerprint_of", seen.append)
    own = {"name": "a", "model": "test_resnet", "recipe": {"epochs": 3}}
    settings = TrainSettings.parse({"members": [own]})
    fingerprint(settings, settings.members[0], tmp_path)
    (parts,) = seen
    assert parts["recipe"] == parts["member"]["recipe"]
    assert parts["recipe"]["epochs"] == 3
    assert "base_batch" not in str(parts)


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (
            {"optimizer": "adamw", "momentum": 0.5},
            "momentum applies only to the optimizers sgd and lars; .*adamw",
        ),
        (
            {"optimizer": "sgd", "trust_coefficient": 0.1},
            "trust_coefficient applies only to the optimizers lars;",
        ),
        ({"optimizer": "sgd", "momentum": 1}, "momentum"),
        ({"base_batch": 0}, "base_batch"),
    ],
)
def test_settings_of_another_optimizer_are_refused(recipe: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Recipe.parse(recipe)


def test_a_scaled_loss_changes_no_step_and_a_gradient_that_overflows_none() -> None:
    """LARS looks at |g| beside lambda |w|: gradients must have been unscaled when it does."""
    recipe = Recipe(optimizer="lars", learning_rate=1.0, weight_decay=0.1)
    results = []
    for scale in (1.0, 1024.0):
        torch.manual_seed(0)
        net, inputs = nn.Linear(3, 2), torch.randn(5, 3)
        optimizer = build_optimizer(net, recipe, fresh=[])
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        for batch in (inputs, inputs * math.inf, inputs):
            optimizer.zero_grad()
            scaler.scale(net(batch).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == scale / 2
        results.append(net.weight.detach())
    assert results[0].isfinite().all()
    torch.testing.assert_close(*results)


def test_half_precision_is_autocast_and_not_half_weights() -> None:
    for precision, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        config = deepspeed_config(EngineSettings(precision=precision), 64, 2)
        assert config["torch_autocast"] == {"enabled": True, "dtype": dtype}
        assert not {"bf16", "fp16"} & config.keys()  # both would halve the weights as well


def _dtypes_under_bf16() -> dict[str, Any]:
    """Take a LARS step in bf16 and tell of what type everything was."""
    mesh = join(EngineSettings(accelerator="cpu", precision="bf16"))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))
    kinds: dict[str, Any] = {}
    for name, layer in net.named_children():
        layer.register_forward_hook(lambda _, __, out, name=name: kinds.update({name: out.dtype}))
    optimizer = build_optimizer(net, Recipe(optimizer="lars", learning_rate=1.0), fresh=[])
    engine = Engine(net, optimizer, mesh, batch=4)
    engine.backward(engine(torch.randn(4, 3, 8, 8)).float().square().sum(), 4)
    kinds["gradients"] = {parameter.grad.dtype for parameter in net.parameters()}
    engine.step(1.0)
    kinds["state"] = {state["momentum_buffer"].dtype for state in optimizer.state.values()}
    kinds["weights"] = {parameter.dtype for parameter in net.parameters()}
    kinds["statistics"] = net[1].running_mean.dtype
    engine.close()
    leave()
    return {key: str(value) for key, value in kinds.items()}


@pytest.mark.distributed
def test_masters_are_fp32_and_products_half() -> None:
    (kinds,) = run_ranks(1, _dtypes_under_bf16)
    assert kinds["0"] == kinds["3"] == "torch.bfloat16"
    for key in ("gradients", "state", "weights"):
        assert kinds[key] == "{torch.float32}", key
    assert kinds["statistics"] == "torch.float32"
