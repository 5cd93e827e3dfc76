"""A whole training with split layers: killed, resumed under another form, packed whole."""

from pathlib import Path
from typing import Any

import faults
import pytest
import torch
from faults import Accident
from safetensors.torch import load_file

from skindx.errors import UserError
from skindx.states import UnfitStateError
from skindx.training.checkpoint.resume import Remembered
from skindx.training.config.run import TrainSettings

OWT = {"kind": "owt", "min_weights": 1}
SETTINGS: dict[str, Any] = {
    "recipe": {"epochs": 1, "batch": 9, "optimizer": "sgd", "ema": {"decay": 0.9}},
    "members": [
        {
            "name": "a",
            "model": "test_resnet",
            "model_args": {"drop_rate": 0.2},
            "head": {"kind": "mlp", "width": 21},
            "preprocess": {"size": 64},
        }
    ],
    "loader": {"threads": 1},
    "checkpoint": {"every_steps": 2},
}


def _settings(parallel: dict[str, Any], **change: Any) -> TrainSettings:
    engine = {"accelerator": "cpu", "timeout_s": 60, "parallel": parallel}
    return TrainSettings.parse({**SETTINGS, **change, "engine": engine})


def _weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "members" / "a" / "model.safetensors")


VIT = {"name": "a", "model": "test_vit", "preprocess": {"size": 64}}


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("parallel", "change"),
    [
        pytest.param(OWT, {}, id="owt"),
        pytest.param(
            {"kind": "tensor", "size": 2}, {"members": [VIT]}, id="tensor", marks=pytest.mark.long
        ),
    ],
)
def test_a_killed_training_goes_on_under_another_form_and_back(
    parallel: dict[str, Any], change: dict[str, Any], small_dataset: Path, tmp_path: Path
) -> None:
    data, split = _settings({"kind": "data"}, **change), _settings(parallel, **change)
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert faults.wait(faults.start(2, whole, small_dataset, data)) == [0, 0]

    ranks = faults.start(2, run, small_dataset, split, Accident("kill", 4))
    assert faults.wait(ranks) == [1, -9]
    assert "are split over 2 ranks" in faults.printed(run, 0)
    ranks = faults.start(2, run, small_dataset, data, Accident("kill", 3))
    assert faults.wait(ranks) == [1, -9]
    assert "0 of 1 epochs and 2 steps done" in faults.printed(run, 0)
    assert faults.wait(faults.start(2, run, small_dataset, split)) == [0, 0]
    assert "0 of 1 epochs and 4 steps done" in faults.printed(run, 0)

    found, expected = _weights(run), _weights(whole)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4)


class _OtherForm:
    def state_dict(self) -> dict[str, Any]:
        return {"step": 3}

    def load_state_dict(self, states: Any) -> None:
        raise UnfitStateError("exchange/residual is float32 (4) and must be float32 (3)")


def test_what_an_exchange_remembers_stays_under_its_form() -> None:
    remembered = Remembered(_OtherForm())
    assert remembered.state_dict() == {"step": 3}
    said = r"must be float32 \(3\); what an exchange remembers stays under the engine.parallel.kind"
    with pytest.raises(UnfitStateError, match=said):
        remembered.load_state_dict([])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"engine": {"parallel": {"kind": "tensor3d"}}}, "engine.parallel"),
        ({"engine": {"parallel": OWT, "zero": 1}}, "which ZeRO would split once more; set zero=0"),
        ({"engine": {"parallel": OWT, "precision": "fp16"}}, "set precision=bf16"),
        ({"engine": {"parallel": OWT, "compile": True}}, "set compile=false"),
        ({"engine": {"parallel": OWT, "schedule": "hop"}}, "set schedule=data"),
        ({"engine": {"parallel": {**OWT, "min_weights": 0}}}, "min_weights"),
        (
            {"engine": {"parallel": OWT}, "recipe": {"optimizer": "lars"}},
            "adapts its rate to the norm of whole layers",
        ),
        (
            {"engine": {"parallel": OWT}, "recipe": {"preconditioner": {"kind": "kfac"}}},
            "preconditioner.kind=kfac works on whole layers",
        ),
    ],
)
def test_what_does_not_go_with_split_layers_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        TrainSettings.parse({"members": SETTINGS["members"], **change})
    assert "\n" not in str(caught.value)
