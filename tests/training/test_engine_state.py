"""An engine's state: whole, by parameter name, the same for every ZeRO stage and rank count."""

from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch import nn

from skindx.training.checkpoint.saved_state import State
from skindx.training.config.engine import EngineSettings
from skindx.training.deepspeed.engine import Engine
from skindx.training.deepspeed.ranks import join
from skindx.training.parallel.mesh import Mesh, leave

BATCH = 12
STAGES = {"adamw": (0, 1, 2, 3), "sgd": (0, 1, 2, 3)}
"""Optimizer -> stages of ZeRO that are tried with it."""


class _Skipping(nn.Sequential):
    """One of its layers is never reached."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in list(self)[:4]:
            x = layer(x)
        return x


def _engine(mesh: Mesh, zero: int, optimizer: str) -> Engine:
    torch.manual_seed(0)
    module = _Skipping(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 5), nn.Linear(5, 3))
    module.skipped = nn.Linear(4, 4)
    module[2].requires_grad_(False)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {
            "params": [parameter for parameter in trained if parameter.ndim > 1],
            "weight_decay": 0.1,
        },
        {"params": [parameter for parameter in trained if parameter.ndim == 1]},
    ]
    made: torch.optim.Optimizer = (
        torch.optim.AdamW(groups, lr=0.1)
        if optimizer == "adamw"
        else torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    )
    settings = mesh.settings.model_copy(update={"zero": zero})
    own = Mesh(mesh.data, mesh.device, settings)
    return Engine(module, made, own, BATCH)


def _step(engine: Engine, number: int) -> None:
    generator = torch.Generator().manual_seed(number)
    inputs, labels = torch.randn(BATCH, 6, generator=generator), torch.arange(BATCH) % 3
    own = slice(engine.mesh.data.rank, None, engine.mesh.data.size)
    loss = nn.functional.cross_entropy(engine(inputs[own]), labels[own], reduction="sum")
    engine.backward(loss, BATCH)
    engine.step(0.1)


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    return value.detach().clone().tolist() if isinstance(value, torch.Tensor) else value


def _tensors(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tensors(each) for key, each in value.items()}
    return torch.tensor(value)


def _go_on(mesh: Mesh, state: State, zero: int, optimizer: str) -> Any:
    engine = _engine(mesh, zero, optimizer)
    engine.load_state_dict(_tensors(state))
    loaded = _copied(engine.state_dict())
    for number in range(3, 6):
        _step(engine, number)
    weights = _copied(engine.state_dict()["weights"])
    engine.close()
    return loaded, weights


def _every_stage(states: dict[Any, State] | None) -> dict[Any, Any]:
    """Train six steps in one go and in two, at every stage; or go on from others' states."""
    mesh, results = join(EngineSettings(accelerator="cpu")), {}
    for optimizer, stages in STAGES.items():
        for zero in stages:
            if states is not None:
                results[optimizer, zero] = _go_on(mesh, states[optimizer, 0], zero, optimizer)
                continue
            engine = _engine(mesh, zero, optimizer)
            for number in range(3):
                _step(engine, number)
            state = _copied(engine.state_dict())
            for number in range(3, 6):
                _step(engine, number)
            whole = _copied(engine.state_dict()["weights"])
            engine.close()
            loaded, again = _go_on(mesh, state, zero, optimizer)
            results[optimizer, zero] = {
                "state": state,
                "loaded": loaded,
                "whole": whole,
                "again": again,
            }
    leave()
    return results


@pytest.mark.distributed
def test_a_state_fits_every_stage_and_number_of_ranks() -> None:
    first, second = run_ranks(2, _every_stage, None)
    for key, result in first.items():
        assert result["state"] == second[key]["state"], key
        assert result["loaded"] == result["state"], key
        assert result["again"] == result["whole"], key
        frozen = result["state"]["weights"].keys() - result["state"]["optimizer"].keys()
        assert frozen == {"2.bias", "2.weight"}, key
    (alone,) = run_ranks(1, _every_stage, {key: each["state"] for key, each in first.items()})
    for key, (loaded, weights) in alone.items():
        assert loaded == first[key[0], 0]["state"], key
        for name, value in weights.items():
            expected = torch.tensor(first[key[0], 0]["whole"][name])
            torch.testing.assert_close(torch.tensor(value), expected, rtol=1e-4, atol=1e-5)
