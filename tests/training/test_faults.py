"""Accidents in training, with real ranks: nothing is lost, nobody hangs, the cause is told."""

import random
import shutil
import time
from pathlib import Path

import faults
import pytest
from faults import Accident
from safetensors.torch import load_file

from skindx.data.manifest import read_manifest
from skindx.training.config.run import TrainSettings

pytestmark = pytest.mark.distributed

SETTINGS = {
    "engine": {"accelerator": "cpu", "timeout_s": 60},
    "recipe": {"epochs": 2, "batch": 9, "ema": {"decay": 0.9}},
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
STEPS = 6  # an epoch: 54 images, 9 a step


def _settings(**change: object) -> TrainSettings:
    return TrainSettings.parse({**SETTINGS, **change})


def _weights(run: Path) -> dict:
    return load_file(run / "members" / "a" / "model.safetensors")


def _same(run: Path, other: Path) -> bool:
    ours, theirs = _weights(run), _weights(other)
    assert ours.keys() == theirs.keys()
    return all(ours[name].equal(theirs[name]) for name in ours)


def _history(run: Path) -> list[dict[str, str]]:
    rows = (run / "members" / "a" / "history.csv").read_text().splitlines()
    return [dict(zip(rows[0].split(","), row.split(","), strict=True)) for row in rows[1:]]


def _checkpoints(run: Path) -> list[str]:
    return sorted(file.name for file in (run / "checkpoints" / "a").iterdir())


@pytest.fixture(scope="module")
def whole(small_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training on two ranks that met with no accident."""
    run = tmp_path_factory.mktemp("whole") / "run"
    assert faults.wait(faults.start(2, run, small_dataset, _settings())) == [0, 0]
    assert not (run / "checkpoints" / "a").exists()
    return run


def test_a_killed_rank_costs_nothing(whole: Path, small_dataset: Path, tmp_path: Path) -> None:
    """Killed in the second epoch between two checkpoints; the same start gives the same bits."""
    run = tmp_path / "run"
    ranks = faults.start(2, run, small_dataset, _settings(), Accident("kill", STEPS + 5))
    assert faults.wait(ranks) == [1, -9]
    assert faults.printed(run, 0).endswith("rank 0 lost another rank and ends\n")
    # The last one may still have been on its way to the disk; the one before was there by then.
    saved = _checkpoints(run)
    assert "epoch-0002-step-000002" in saved
    assert faults.wait(faults.start(2, run, small_dataset, _settings())) == [0, 0]
    newest = 4 if "epoch-0002-step-000004" in saved else 2
    assert f"1 of 2 epochs and {newest} steps done" in faults.printed(run, 0)
    assert _same(run, whole)
    assert [row["loss"] for row in _history(run)] == [row["loss"] for row in _history(whole)]


@pytest.mark.long
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_killed_while_it_writes_costs_nothing(
    victim: int, whole: Path, small_dataset: Path, tmp_path: Path
) -> None:
    run, accident = tmp_path / "run", Accident(f"kill{faults.WRITING}", STEPS + 5, victim)
    codes = faults.wait(faults.start(2, run, small_dataset, _settings(), accident))
    assert (codes[victim], codes[1 - victim]) == (-9, 1)
    assert max(_checkpoints(run)) == "epoch-0002-step-000002"
    assert faults.wait(faults.start(2, run, small_dataset, _settings())) == [0, 0]
    assert "1 of 2 epochs and 2 steps done" in faults.printed(run, 0)
    assert _same(run, whole)


@pytest.mark.long
def test_sigterm_while_a_checkpoint_is_written_saves_after_it(
    whole: Path, small_dataset: Path, tmp_path: Path
) -> None:
    run, accident = tmp_path / "run", Accident(f"terminate{faults.WRITING}", STEPS + 5)
    began = time.monotonic()
    assert faults.wait(faults.start(2, run, small_dataset, _settings(), accident)) == [0, 0]
    assert time.monotonic() - began < 30
    assert _checkpoints(run) == ["epoch-0002-step-000004", "epoch-0002-step-000005"]
    assert faults.wait(faults.start(2, run, small_dataset, _settings())) == [0, 0]
    assert _same(run, whole)


def test_sigterm_of_one_rank_stops_all_and_another_number_of_ranks_goes_on(
    whole: Path, small_dataset: Path, tmp_path: Path
) -> None:
    run, settings = tmp_path / "run", _settings(checkpoint={"every_minutes": None})
    ranks = faults.start(2, run, small_dataset, settings, Accident("terminate", STEPS + 3))
    assert faults.wait(ranks) == [0, 0]
    assert _checkpoints(run) == ["epoch-0002-step-000000", "epoch-0002-step-000003"]
    alone = shutil.copytree(run, tmp_path / "alone")

    assert faults.wait(faults.start(2, run, small_dataset, settings)) == [0, 0]
    assert _same(run, whole)

    # A truncated checkpoint is told and passed over.
    file = alone / "checkpoints" / "a" / "epoch-0002-step-000003" / "shared" / "tensors.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert faults.wait(faults.start(1, alone, small_dataset, settings)) == [0]
    said = faults.printed(alone, 0)
    assert "epoch-0002-step-000003 is damaged" in said
    assert "the one before is taken" in said
    assert "1 of 2 epochs done" in said
    # One process sums in another order than two; the epochs are the same.
    assert _history(alone)[0]["loss"] == _history(whole)[0]["loss"]
    assert float(_history(alone)[1]["loss"]) == pytest.approx(
        float(_history(whole)[1]["loss"]), rel=0.05
    )


def test_a_loss_that_is_not_finite_is_skipped_on_all_ranks(
    small_dataset: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    once = faults.start(2, run, small_dataset, _settings(), Accident("nan", 3))
    assert faults.wait(once) == [0, 0]
    assert "epoch 1, step 3: the loss is not finite, the step is skipped" in faults.printed(run, 0)
    assert [row["skipped_steps"] for row in _history(run)] == ["1", "0"]
    assert all(value.isfinite().all() for value in _weights(run).values())

    run = tmp_path / "lost"
    settings = _settings(checkpoint={"every_steps": 1, "bad_steps": 2})
    ranks = faults.start(2, run, small_dataset, settings, Accident("always nan", 1))
    assert faults.wait(ranks) == [2, 2]
    said = "a diverged: the loss was not finite in 3 consecutive steps up to epoch 1, step 3, at a "
    assert said in faults.printed(run, 0)
    assert _checkpoints(run)[-1] == "epoch-0001-step-000002"


def test_an_image_that_spoils_ends_all_ranks(small_dataset: Path, tmp_path: Path) -> None:
    dataset, run = shutil.copytree(small_dataset, tmp_path / "data"), tmp_path / "run"
    record = next(image for image in read_manifest(dataset) if image.split == "train")
    file = dataset / record.path
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:50])
    settings = _settings(loader={"threads": 1, "cache": {"kind": "none"}})
    codes = faults.wait(faults.start(2, run, dataset, settings))
    assert sorted(codes) == [1, 2]
    refusing = codes.index(2)
    assert record.path in faults.printed(run, refusing)
    assert "Traceback" not in faults.printed(run, 0) + faults.printed(run, 1)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_kills_at_random_times_cost_nothing(
    seed: int, whole: Path, small_dataset: Path, tmp_path: Path
) -> None:
    """One rank or all, at any moment: while they start, train, save, validate or finish."""
    rng, run = random.Random(seed), tmp_path / "run"
    for _ in range(4):
        ranks = faults.start(2, run, small_dataset, _settings())
        time.sleep(rng.uniform(0.5, 5))
        for victim in rng.choice([ranks, ranks[:1], ranks[1:]]):
            victim.kill()
        faults.wait(ranks)
    assert faults.wait(faults.start(2, run, small_dataset, _settings())) == [0, 0]
    assert _same(run, whole)
