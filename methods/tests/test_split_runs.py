"""A whole training with split layers: killed, resumed under another form, packed whole."""

import json
from pathlib import Path
from typing import Any

import faults
import pytest
import torch
from faults import Accident
from safetensors.torch import load_file

from skindx.core.cost.events import Span, Step, StepTask
from skindx.core.errors import UserError
from skindx.core.state_checks import UnfitStateError
from skindx.data.manifest import read_manifest
from skindx.taxonomy import Taxonomy
from skindx.training.checkpoint.resume import Remembered
from skindx.training.checks import check
from skindx.training.config.run import TrainSettings
from skindx.training.registry import PLANNED
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


def _settings(parallel: dict[str, Any], **change: Any) -> TrainSettings:
    engine = {"accelerator": "cpu", "timeout_s": 60, "parallel": parallel}
    return TrainSettings.parse({**SETTINGS, **change, "engine": engine})


def _weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "members" / "a" / "model.safetensors")


VIT = {"name": "a", "model": "test_vit", "preprocess": {"size": 64}}


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("parallel", "change", "said"),
    [
        pytest.param(OWT, {}, "are split over 2 ranks", id="owt"),
    ],
)
def test_a_killed_training_goes_on_under_another_form_and_back(
    parallel: dict[str, Any],
    change: dict[str, Any],
    said: str,
    small_dataset: Path,
    tmp_path: Path,
) -> None:
    data, split = _settings({"kind": "data"}, **change), _settings(parallel, **change)
    whole, run = tmp_path / "whole", tmp_path / "run"
    whole.mkdir()
    (whole / PLANNED).write_text("{}")
    assert faults.wait(faults.start(2, whole, small_dataset, data)) == [0, 0]
    _check_timeline(timeline_file(whole, "a"))

    for _ in range(3):
        ranks = faults.start(2, run, small_dataset, split, Accident("kill", 4))
        assert faults.wait(ranks) == [1, -9]
        assert said in faults.printed(run, 0)
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


@pytest.mark.long
@pytest.mark.distributed
def test_a_killed_training_on_a_cube_goes_on_without_it_and_the_other_way(
    small_dataset: Path, tmp_path: Path
) -> None:
    change = {"members": [VIT], "recipe": {**SETTINGS["recipe"], "batch": 18}}
    data, cube = (_settings({"kind": kind}, **change) for kind in ("data", "tensor3d"))
    whole = tmp_path / "whole"
    assert faults.wait(faults.start(8, whole, small_dataset, data)) == [0] * 8
    for first, second in ((cube, data), (data, cube)):
        run = tmp_path / first.engine.parallel.kind
        ranks = faults.start(8, run, small_dataset, first, Accident("kill", 3))
        assert -9 in faults.wait(ranks)
        assert faults.wait(faults.start(8, run, small_dataset, second)) == [0] * 8
        assert "0 of 1 epochs and 2 steps done" in faults.printed(run, 0)
        for name, value in _weights(whole).items():
            torch.testing.assert_close(_weights(run)[name], value, rtol=1e-3, atol=1e-4)


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
    with pytest.raises(UserError, match="does not exist; `skindx plan make --timeline"):
        lay_beside(tmp_path / "none.json", [])
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(UserError, match="is no timeline of a step"):
        lay_beside(tmp_path / "other.json", [])


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
        ({"engine": {"parallel": {"kind": "cubes"}}}, "engine.parallel"),
        ({"engine": {"parallel": OWT, "zero": 1}}, "which ZeRO would split once more; set zero=0"),
        ({"engine": {"parallel": OWT, "precision": "fp16"}}, "set precision=bf16"),
        ({"engine": {"parallel": OWT, "compile": True}}, "set compile=false"),
        ({"engine": {"parallel": OWT, "schedule": "hop"}}, "set schedule=data"),
        ({"engine": {"parallel": {**OWT, "min_weights": 0}}}, "min_weights"),
        (
            {"engine": {"parallel": OWT}, "recipe": {"preconditioner": {"kind": "kfac"}}},
            "preconditioner.kind=kfac works on whole layers",
        ),
        (
            {"engine": {"parallel": OWT}, "recipe": {"optimizer": "lamb"}},
            "recipe.optimizer=lamb goes by the norms of whole layers; take adamw or sgd",
        ),
        (
            {"engine": {"parallel": {"kind": "model"}}},
            "engine.parallel=model is gone since 1.0: a pipeline .* take owt, or engine.zero=3 for",
        ),
    ],
)
def test_what_does_not_go_with_split_layers_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        TrainSettings.parse({"members": SETTINGS["members"], **change})
    assert "\n" not in str(caught.value)


def test_a_network_that_cannot_be_split_so_is_refused_before_a_run_begins(
    small_dataset: Path,
) -> None:
    engine = {"accelerator": "cpu", "ranks": 2, "parallel": {"kind": "tensor3d"}}
    settings = TrainSettings.parse({**SETTINGS, "engine": engine})
    taxonomy = Taxonomy.load(small_dataset / "taxonomy.yaml")
    said = "side=2 makes a cube of 8 ranks, and there are 2"
    with pytest.raises(UserError, match=said) as caught:
        check(settings, read_manifest(small_dataset), taxonomy)
    assert "\n" not in str(caught.value)
