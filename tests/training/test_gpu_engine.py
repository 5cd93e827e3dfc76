"""The engine on a GPU learns what a plain loop on the CPU learns, in every mode."""

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import timm
import torch
import torch.distributed as dist
from host_fabric import HostFabric
from ranks import run_ranks
from torch import Tensor, nn

from skindx.comm.dense import DenseSettings
from skindx.comm.exchange_settings import ExchangeSettings
from skindx.comm.fused import FusedSettings
from skindx.comm.hierarchical import HierarchicalSettings
from skindx.comm.powersgd import PowerSGDSettings
from skindx.comm.topk import TopKSettings
from skindx.data.loader.batches import global_batches, share
from skindx.data.manifest import read_manifest
from skindx.diagnosis.predictor import Predictor
from skindx.training.config.run import TrainSettings
from skindx.training.deepspeed.engine import Engine
from skindx.training.deepspeed.ranks import join
from skindx.training.run import train

pytestmark = [pytest.mark.gpu, pytest.mark.distributed]

COUNT, BATCH, RATE = 16, 4, 0.01
EXACT: dict[str, dict[str, Any]] = {
    "plain": {},
    "channels last": {"channels_last": True},
    "compiled": {"compile": True},
    "compiled, channels last": {"compile": True, "channels_last": True},
    "checkpointed": {"activation_checkpointing": True},
    "zero 1": {"zero": 1},
    "zero 2": {"zero": 2},
    "zero 3": {"zero": 3},
}
HALF: dict[str, dict[str, Any]] = {
    "bf16": {"precision": "bf16"},
    "bf16, compiled, channels last": {"precision": "bf16", "compile": True, "channels_last": True},
    "bf16, zero 2": {"precision": "bf16", "zero": 2},
    "fp16": {"precision": "fp16"},
    "fp16, zero 1": {"precision": "fp16", "zero": 1},
}
SHARED: dict[str, ExchangeSettings] = {
    "dense": DenseSettings(),
    "fused": FusedSettings(tune=False),
    "topk, all": TopKSettings(density=1.0, warmup=()),
    "hierarchical": HierarchicalSettings(ranks_per_node=1),
    "powersgd, full rank": PowerSGDSettings(rank=1000),
}
SCALED: dict[str, ExchangeSettings] = {
    "fp16, fused": FusedSettings(tune=False),
    "fp16, topk": TopKSettings(density=1.0, warmup=()),
}


def _settings(device: str, **engine: Any) -> TrainSettings:
    return TrainSettings.parse(
        {
            "recipe": {"epochs": 1, "batch": BATCH},
            "members": [{"name": "a", "model": "test_resnet", "preprocess": {"size": 32}}],
            "engine": {"accelerator": device, "timeout_s": 180, **engine},
        }
    )


def _model() -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=3)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):  # else what the ranks' own batches make of it
            layer.eval().requires_grad_(False)
    return model


def _data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(COUNT, 3, 32, 32, generator=generator), torch.arange(COUNT) % 3


def _join(device: str, *, shared: bool = False) -> Any:
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    if shared:  # NCCL takes one rank a GPU; gloo, begun first, lets two share it
        os.environ["LOCAL_RANK"] = "0"
        dist.init_process_group("gloo", timeout=timedelta(seconds=90))
    return join(_settings(device).engine)


def _learn(place: Any, world: int, exchange: ExchangeSettings, **mode: Any) -> dict[str, Any]:
    """Train two epochs and return all weights, the loss before and after, and skipped steps."""
    settings = _settings(place.device.type, **mode).engine
    model, (inputs, labels) = _model().to(place.device), _data()
    inputs, labels = inputs.to(place.device), labels.to(place.device)
    optimizer = torch.optim.SGD(
        [parameter for parameter in model.parameters() if parameter.requires_grad], RATE
    )
    engine = Engine(model, optimizer, replace(place, settings=settings), BATCH, exchange=exchange)
    skipped, losses = 0, []
    for epoch in range(2):
        for batch in global_batches(COUNT, BATCH, 0, epoch):
            own = torch.from_numpy(share(batch, dist.get_rank(), world)).to(place.device)
            logits = engine(inputs[own]).float()
            loss = nn.functional.cross_entropy(logits, labels[own], reduction="sum")
            losses.append(float(loss.detach()))
            engine.backward(loss, len(batch))
            skipped += not engine.step(RATE)
    weights = {name: value.cpu().float().numpy() for name, value in engine.full_state().items()}
    engine.train(False)
    answer = engine.whole()(inputs).detach().float().cpu().numpy()
    engine.close()
    return {"weights": weights, "answer": answer, "losses": losses, "skipped": skipped}


def _one_rank(device: str) -> dict[str, Any]:
    place = _join(device)
    dense = DenseSettings()
    found = {name: _learn(place, 1, dense, **mode) for name, mode in {**EXACT, **HALF}.items()}
    for name, exchange in SCALED.items():
        found[name] = _learn(place, 1, exchange, precision="fp16")
    dist.destroy_process_group()
    return found


def _two_ranks(device: str) -> dict[str, Any]:
    place = _join(device, shared=True)
    with patch("skindx.training.gradient_sync.Fabric", HostFabric):
        found = {name: _learn(place, 2, exchange) for name, exchange in SHARED.items()}
    dist.destroy_process_group()
    return found


def _plain() -> dict[str, np.ndarray]:
    model, (inputs, labels) = _model(), _data()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, RATE)
    for epoch in range(2):
        for batch in global_batches(COUNT, BATCH, 0, epoch):
            optimizer.zero_grad()
            own = torch.from_numpy(batch)
            nn.functional.cross_entropy(model(inputs[own]), labels[own]).backward()
            nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
    return {name: value.numpy() for name, value in model.state_dict().items()}


def _near(found: dict[str, np.ndarray], tolerance: float) -> None:
    for name, value in _plain().items():
        if value.dtype == np.float32:
            np.testing.assert_allclose(
                found[name], value, rtol=tolerance, atol=tolerance, err_msg=name
            )


@pytest.fixture(scope="module")
def alone(device: str) -> dict[str, Any]:
    # Of 15 trainings, three compile; on a machine that has compiled nothing yet that takes minutes.
    (rank,) = run_ranks(1, _one_rank, device, device=device, timeout_s=190)
    return dict(rank)


@pytest.fixture(scope="module")
def shared(device: str) -> list[dict[str, Any]]:
    return run_ranks(2, _two_ranks, device, device=device, timeout_s=190)


@pytest.mark.xdist_group("one rank")
@pytest.mark.parametrize("mode", EXACT)
def test_one_rank_learns_what_a_plain_loop_learns(alone: dict[str, Any], mode: str) -> None:
    _near(alone[mode]["weights"], 1e-3)
    np.testing.assert_allclose(alone[mode]["answer"], alone["plain"]["answer"], atol=1e-2)


@pytest.mark.xdist_group("one rank")
@pytest.mark.parametrize("mode", [*HALF, *SCALED])
def test_half_precision_learns_the_same_roughly(alone: dict[str, Any], mode: str) -> None:
    losses = alone[mode]["losses"]
    assert np.isfinite(losses).all()
    # A loss scale begins too large: it may cost steps until it has found its size.
    if alone[mode]["skipped"] == 0 and "fp16" not in mode:
        _near(alone[mode]["weights"], 0.1)
    np.testing.assert_allclose(alone[mode]["answer"], alone["plain"]["answer"], atol=0.5)


@pytest.mark.xdist_group("two ranks")
@pytest.mark.parametrize("kind", SHARED)
def test_two_ranks_that_share_the_device_learn_it_too(
    shared: list[dict[str, Any]], kind: str
) -> None:
    for rank in shared:
        _near(rank[kind]["weights"], 1e-3)


def _whole_run(device: str, dataset: str, run: str) -> None:
    # Not 32 pixels, of which the last convolutions see one: of a map of 1 x 1 nobody can tell
    # whether it is channels last, and torch 2.11's compiler and its kernels guess differently.
    settings = TrainSettings.parse(
        {
            "recipe": {"epochs": 2, "batch": 8},
            "members": [{"name": "a", "model": "test_resnet", "preprocess": {"size": 64}}],
            "engine": {
                "accelerator": device,
                "precision": "bf16",
                "channels_last": True,
                "compile": True,
            },
        }
    )
    assert len(read_manifest(Path(dataset))) == 90
    bundle = train(Path(dataset), settings, Path(run))
    assert bundle is not None


@pytest.mark.xdist_group("a run")
def test_a_run_from_dataset_to_answer(device: str, small_dataset: Path, tmp_path: Path) -> None:
    """Batches by way of pinned memory, validation, checkpoints, calibration, the bundle."""
    run = tmp_path / "run"
    run_ranks(1, _whole_run, device, str(small_dataset), str(run), device=device, timeout_s=190)
    predictor = Predictor.load(run / "bundle", device=device)
    image = np.zeros((72, 96, 3), np.uint8)
    (prediction,) = predictor.predict([image])
    assert prediction.probabilities_C.sum() == pytest.approx(1)
