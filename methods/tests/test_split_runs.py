"""A whole training with split layers: killed, resumed under another form, packed whole."""

import json
from pathlib import Path
from typing import Any

import faults
import pytest
import torch
from faults import Accident
from safetensors.torch import load_file

from skindx.core.errors import UserError
from skindx.training.config.run import TrainSettings
from skindx.training.registry import PLANNED
from skindx_methods.plan.events import Span, Step, StepTask
from skindx_methods.plan.recorded_step import timeline_file
from skindx_methods.plan.timeline import lay_beside, write_chrome

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


def _settings(parallel: dict[str, Any]) -> TrainSettings:
    engine = {"accelerator": "cpu", "timeout_s": 60, "parallel": parallel}
    return TrainSettings.parse({**SETTINGS, "engine": engine})


def _weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "members" / "a" / "model.safetensors")


@pytest.mark.distributed
def test_a_killed_training_goes_on_under_another_form_and_back(
    small_dataset: Path, tmp_path: Path
) -> None:
    data, split = _settings({"kind": "data"}), _settings(OWT)
    whole, run = tmp_path / "whole", tmp_path / "run"
    whole.mkdir()
    (whole / PLANNED).write_text("{}")
    assert faults.wait(faults.start(2, whole, small_dataset, data)) == [0, 0]
    _check_timeline(timeline_file(whole, "a"))

    for _ in range(3):
        ranks = faults.start(2, run, small_dataset, split, Accident("kill", 4))
        assert faults.wait(ranks) == [1, -9]
        assert "are split over 2 ranks" in faults.printed(run, 0)
        # On a busy machine the checkpoint of step 2 may not be on disk when the rank is killed.
        if list((run / "checkpoints").rglob("index.json")):
            break
    ranks = faults.start(2, run, small_dataset, data, Accident("kill", 3))
    assert faults.wait(ranks) == [1, -9]
    assert "0 of 1 epochs and 2 steps done" in faults.printed(run, 0)
    assert faults.wait(faults.start(2, run, small_dataset, split)) == [0, 0]
    # The last checkpoint may not have been on disk when the ranks were killed.
    printed = faults.printed(run, 0)
    assert any(f"0 of 1 epochs and {steps} steps done" in printed for steps in (2, 4))

    found, expected = _weights(run), _weights(whole)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4)


def _check_timeline(file: Path) -> None:
    """Look at the recorded step of a run that follows a plan, beside a predicted one."""
    predicted = file.with_name("predicted.json")
    write_chrome(predicted, Step((StepTask("forward", "cores", 1.0),), (Span(0.0, 1.0),)))
    for _ in range(2):  # again: what was added is replaced
        lay_beside(predicted, [file])
    events = json.loads(predicted.read_text())["traceEvents"]
    assert [event["name"] for event in events if event["pid"] == 1 and "dur" in event] == [
        "forward"
    ]
    tasks = [event for event in events if event["pid"] == 2 and event["ph"] == "X"]
    words = {event["name"].partition(" ")[0] for event in tasks}
    assert words >= {"forward", "backward", "update"}
    assert min(event["ts"] for event in tasks) >= 0


def test_a_timeline_is_laid_beside_a_timeline_alone(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist; run `skindx plan make --timeline"):
        lay_beside(tmp_path / "none.json", [])
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(UserError, match="is not a timeline of a step"):
        lay_beside(tmp_path / "other.json", [])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"engine": {"parallel": OWT, "zero": 1}},
            "which does not work with ZeRO; set engine.zero=0",
        ),
        ({"engine": {"parallel": OWT, "precision": "fp16"}}, "set engine.precision=bf16"),
        ({"engine": {"parallel": OWT, "compile": True}}, "set engine.compile=false"),
        ({"engine": {"parallel": OWT, "schedule": "hop"}}, "set engine.schedule=data"),
        ({"engine": {"parallel": {**OWT, "min_weights": 0}}}, "min_weights"),
        (
            {"engine": {"parallel": OWT}, "recipe": {"preconditioner": {"kind": "kfac"}}},
            r"preconditioner\.kind=kfac needs whole layers",
        ),
        (
            {"engine": {"parallel": OWT}, "recipe": {"optimizer": "lamb"}},
            "recipe.optimizer=lamb goes by the norms of whole layers; set recipe.optimizer to",
        ),
        (
            {"engine": {"parallel": OWT}, "recipe": {"optimizer": "muon"}},
            "recipe.optimizer=muon multiplies whole layers; set recipe.optimizer to adamw or sgd",
        ),
        ({"engine": {"parallel": OWT, "elastic": {}}}, "elastic needs the whole network"),
        (
            {"engine": {"parallel": OWT}, "exchange": {"kind": "local"}},
            "engine.parallel.kind=owt splits layers",
        ),
    ],
)
def test_what_does_not_go_with_split_layers_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        TrainSettings.parse({"members": SETTINGS["members"], **change})
    assert "\n" not in str(caught.value)
