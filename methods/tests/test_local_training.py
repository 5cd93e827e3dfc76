"""Trainings whose ranks train apart: stopped, killed, resumed, on another number of ranks too."""

import json
import shutil
from pathlib import Path
from typing import Any

import faults
import pytest
from faults import Accident
from safetensors.torch import load_file

from skindx.training.config.run import TrainSettings
from skindx.training.registry import PLANNED
from skindx_methods.local_steps.local_steps import OUTER
from skindx_methods.plan.recorded_step import timeline_file

pytestmark = pytest.mark.distributed

LOCAL = {"kind": "local", "steps": 4, "density": 0.1, "outer_momentum": 0.5}
SETTINGS: dict[str, Any] = {
    "engine": {"accelerator": "cpu", "timeout_s": 60},
    "exchange": LOCAL,
    # Batch norms, dropout, LoRA on a frozen trunk, an average, two pieces a step.
    "recipe": {"epochs": 2, "batch": 9, "accumulate": 2, "ema": {"decay": 0.9}},
    "members": [
        {
            "name": "a",
            "model": "test_resnet",
            "model_args": {"drop_rate": 0.2},
            "preprocess": {"size": 64},
        }
    ],
    "loader": {"threads": 1},
    "checkpoint": {"every_steps": 2},
}
STEPS, PIECES = 6, 2  # an epoch: 54 images, 9 a step; losses that a rank looks at in a step


def _settings(**change: Any) -> TrainSettings:
    return TrainSettings.parse({**SETTINGS, **change})


def _same(run: Path, other: Path) -> bool:
    ours, theirs = (
        load_file(folder / "members" / "a" / "model.safetensors") for folder in (run, other)
    )
    assert ours.keys() == theirs.keys()
    return all(ours[name].equal(theirs[name]) for name in ours)


def _history(run: Path) -> list[dict[str, str]]:
    rows = (run / "members" / "a" / "history.csv").read_text().splitlines()
    return [dict(zip(rows[0].split(","), row.split(","), strict=True)) for row in rows[1:]]


def _check_saved(run: Path) -> None:
    """Names in a checkpoint are those of every version before."""
    newest = max((run / "checkpoints" / "a").glob("epoch-*"))
    for rank in range(2):
        parts = json.loads((newest / f"rank-{rank}" / "values.json").read_text())
        assert set(parts) == {"statistics", "loss", "random", "exchange", "moments"}
        assert {"taken", "anchor", "residual", "weights", "velocity"} <= set(
            parts["exchange"]["$dict"]
        )
    shared = json.loads((newest / "shared" / "values.json").read_text())
    assert set(shared) == {"engine", "position", "average"}


def _survives(
    settings: TrainSettings, dataset: Path, folder: Path, *, accidents: tuple[str, ...], alone: bool
) -> Path:
    """Interrupt a training and let it end: the bits are those of one left alone; return that."""
    whole, run = folder / "whole", folder / "run"
    whole.mkdir()
    (whole / PLANNED).write_text("{}")  # so that a step is recorded
    assert faults.wait(faults.start(2, whole, dataset, settings)) == [0, 0]
    for number, accident in enumerate(accidents):
        step = 2 if number else STEPS + 1
        ranks = faults.start(2, run, dataset, settings, Accident(accident, step * PIECES))
        ended = faults.wait(ranks)
        assert ended == ([0, 0] if accident == "terminate" else [1, -9]), faults.printed(run, 0)
    _check_saved(run)
    if alone:
        other = shutil.copytree(run, folder / "alone")
        assert faults.wait(faults.start(1, other, dataset, settings)) == [0]
        (*_, last), (*_, wanted) = _history(other), _history(whole)
        assert float(last["loss"]) == pytest.approx(float(wanted["loss"]), rel=0.2)
    assert faults.wait(faults.start(2, run, dataset, settings)) == [0, 0]
    assert "goes on from its checkpoint: 1 of 2 epochs and " in faults.printed(run, 0)
    assert _same(run, whole)
    assert [row["loss"] for row in _history(run)] == [row["loss"] for row in _history(whole)]
    return whole


def test_a_stop_is_agreed_on_and_the_training_goes_on_to_the_bit(
    small_dataset: Path, tmp_path: Path
) -> None:
    change = {**LOCAL, "overlap": 1}
    whole = _survives(
        _settings(exchange=change), small_dataset, tmp_path, accidents=("terminate",), alone=False
    )
    # The recorded step is the first from the fourth on that ends a round.
    spans = {
        event["name"]: event
        for event in json.loads(timeline_file(whole, "a").read_text())["traceEvents"]
        if event["ph"] == "X"
    }
    update, outer = spans["update"], spans[OUTER]
    assert update["ts"] + update["dur"] <= outer["ts"] + 1
    assert outer["dur"] > 0


@pytest.mark.long
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"exchange": {**LOCAL, "overlap": 2}},
        {"exchange": {**LOCAL, "density": 1, "bits": 32}},
        {"engine": {**SETTINGS["engine"], "precision": "bf16"}},
        {"recipe": {**SETTINGS["recipe"], "optimizer": "muon"}},
    ],
    ids=["statistics", "overlap", "whole", "bf16", "muon"],
)
def test_a_killed_training_goes_on_to_the_bit_and_on_one_rank(
    change: dict[str, Any], small_dataset: Path, tmp_path: Path
) -> None:
    settings = _settings(**change)
    _survives(
        settings, small_dataset, tmp_path, accidents=("terminate", "kill", "kill"), alone=True
    )


def test_a_rank_that_skips_steps_alone_is_counted_and_too_many_end_all(
    small_dataset: Path, tmp_path: Path
) -> None:
    run = tmp_path / "lost"
    settings = _settings(
        checkpoint={"bad_steps": 2}, recipe={**SETTINGS["recipe"], "accumulate": 1}
    )
    ranks = faults.start(2, run, small_dataset, settings, Accident("always nan", 1))
    assert faults.wait(ranks) == [2, 2]
    line = "a diverged: the loss was not finite in "
    (said,) = {
        row[row.index(line) :]
        for rank in range(2)
        for row in faults.printed(run, rank).splitlines()
        if line in row
    }
    assert " consecutive steps up to epoch 1, step " in said
