"""A rank is killed, hangs, leaves or comes back: the others go on, and all hold the same."""

import hashlib
import re
import shutil
import signal
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from elastic_ranks import (
    Ranks,
    elastic_ranks,
    elastic_settings,
    hand_over,
    train_plainly,
)
from ranks import run_ranks
from safetensors.torch import load_file

from skindx.training.checkpoint.keeper import At, saved_in
from skindx.training.config.engine import EngineSettings
from skindx_methods.elastic.elastic_run import identity

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]

STEPS = [[epoch, step] for epoch in range(2) for step in range(6)]


def _check(ranks: Ranks, *, alike: bool = True) -> dict[tuple[int, int], dict[int, Any]]:
    """Check that every step was taken once by a whole group; return its rows by slot."""
    taken: dict[tuple[int, int], dict[int, Any]] = defaultdict(dict)
    for slot in ranks.processes:
        for row in ranks.steps(slot):
            taken[tuple(row["at"])][slot] = row
    assert [list(at) for at in sorted(taken)] == STEPS
    for at, rows in taken.items():
        assert {row["ranks"] for row in rows.values()} == {len(rows)}, at
        assert sum(row["images"] for row in rows.values()) == 9
        if alike:
            assert len({row["weights"] for row in rows.values()}) == 1, at
    return taken


def test_the_others_go_on_when_one_is_killed_in_a_step(small_dataset: Path, tmp_path: Path) -> None:
    """Each step's images are those of an undisturbed training, and all ranks hold the same."""
    settings = elastic_settings(3)
    with elastic_ranks(tmp_path / "run", small_dataset, settings, {(1, 4): "kill"}) as ranks:
        ranks.start(0, 1, 2)
        assert ranks.join(0, 1, 2) == [0, -signal.SIGKILL, 0]
        taken = _check(ranks)
        assert [len(taken[epoch, step]) for epoch, step in STEPS] == [3] * 3 + [2] * 9
        _, event = ranks.events()
        assert event["left"] == {"1": "its process ended"}
        assert (event["epoch"], event["step"], event["ranks"]) == (1, 3, [0, 2])
        assert event["state_from"] == [0, 2]
        assert event["seconds_since_last_step"] < 3
    weights = load_file(tmp_path / "run" / "members" / "a" / "model.safetensors")
    assert all(bool(value.isfinite().all()) for value in weights.values())


@pytest.mark.long
def test_a_rank_that_was_stopped_comes_back_and_one_that_is_preempted_leaves(
    small_dataset: Path, tmp_path: Path
) -> None:
    """The exchange's residuals stay with their ranks, and a newcomer's weights are the others'."""
    exchange = {"kind": "gtopk", "density": 0.05, "warmup": [0.5]}
    settings = elastic_settings(3, exchange=exchange)
    plan = {(2, 3): "stop", (0, 6): "gate", (1, 10): "leave"}
    with elastic_ranks(tmp_path / "run", small_dataset, settings, plan) as ranks:
        ranks.start(0, 1, 2)
        ranks.wait(lambda: len(ranks.events()) == 2)
        assert ranks.events()[1]["left"] == {"2": "it was silent for 1.5 s"}
        ranks.signal(2, signal.SIGCONT)
        ranks.wait(lambda: ranks.waits(2))
        ranks.open_gate()
        assert ranks.join(0, 1, 2) == [0, 128 + signal.SIGTERM, 0]
        taken = _check(ranks)
        came, left = ranks.events()[2:]
        assert (came["came"], came["ranks"], came["state_from"]) == ([2], [0, 1, 2], [0, 1])
        assert left["left"] == {"1": "SIGTERM came to it"}
        assert left["error_feedback_lost"] == ["1"]
        sizes = [len(taken[epoch, step]) for epoch, step in STEPS]
        assert sizes[:2] + sizes[-1:] == [3, 3, 2]
        assert 2 in taken[came["epoch"] - 1, came["step"]]


def test_what_is_handed_over_is_checked_on_all_ranks(small_dataset: Path) -> None:
    for answers in run_ranks(2, hand_over, small_dataset, elastic_settings(2)):
        of_both, of_one, alike, nan, shape = answers
        # Together what was summed up; what a lost rank had is as much as the others'.
        assert (2 * of_both, 2 * of_one) == (16.0, 12.0)
        assert alike == {0: 0}
        assert re.fullmatch(r"rank 0 sent engine/.* with invalid values .*; start .*\.", nan)
        assert re.fullmatch(r"a: this rank received the state of another .*; start .*\.", shape)


def test_ranks_are_alike_in_code_data_and_settings(small_dataset: Path, tmp_path: Path) -> None:
    """And not in what each has for itself: device, threads, address."""
    settings, dataset = elastic_settings(2), tmp_path / "data"
    shutil.copytree(small_dataset, dataset)
    first = identity(dataset, settings)
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in first.values())
    empty = hashlib.sha256().hexdigest()
    assert empty not in first.values()
    others = {"loader": {"threads": 3}, "engine": {**settings.engine.model_dump(), "port": 4000}}
    assert identity(dataset, elastic_settings(2, **others)) == first
    changed = identity(dataset, elastic_settings(2, recipe={"epochs": 3, "batch": 9}))
    assert [name for name in first if changed[name] != first[name]] == ["settings"]
    with (dataset / "manifest.parquet").open("ab") as file:
        file.write(b"x")
    changed = identity(dataset, settings)
    assert [name for name in first if changed[name] != first[name]] == ["data"]


@pytest.mark.long
def test_a_lost_store_ends_the_run_at_a_checkpoint_that_resumes(
    small_dataset: Path, tmp_path: Path
) -> None:
    settings = elastic_settings(2)
    with elastic_ranks(tmp_path / "run", small_dataset, settings, {(1, 5): "gate"}) as ranks:
        ranks.start(0, 1)
        ranks.wait(lambda: len(ranks.steps(0)) == 4)
        time.sleep(0.3)
        ranks.store = None
        time.sleep(3)
        ranks.open_gate()
        assert ranks.join(0, 1) == [1, 1]
        log = (tmp_path / "run" / "log-0").read_text()
    assert "rank 0 ends: the store cannot be reached; its state is saved" in log
    assert saved_in(tmp_path / "run" / "checkpoints" / "a") == [At(0, 4)]
    plain = settings.model_copy(update={"engine": EngineSettings(accelerator="cpu", ranks=1)})
    run_ranks(1, train_plainly, tmp_path / "run", small_dataset, plain)
    assert (tmp_path / "run" / "members" / "a" / "model.safetensors").exists()


@pytest.mark.long
def test_the_others_go_on_as_from_a_checkpoint_of_all(small_dataset: Path, tmp_path: Path) -> None:
    """To the bit: three ranks up to a step, then two, with the same batches."""
    settings = elastic_settings(3, checkpoint={"every_steps": 3, "keep": 100})
    plan = {(1, 4): "kill once saved", (0, 5): "gate"}
    with elastic_ranks(tmp_path / "run", small_dataset, settings, plan) as ranks:
        ranks.start(0, 1, 2)
        ranks.wait(lambda: len(ranks.events()) == 2)
        shutil.copytree(tmp_path / "run" / "checkpoints", tmp_path / "copy")
        ranks.open_gate()
        assert ranks.join(0, 2) == [0, 0]
    plain = settings.model_copy(update={"engine": EngineSettings(accelerator="cpu", ranks=2)})
    (tmp_path / "again").mkdir()
    shutil.copytree(tmp_path / "copy", tmp_path / "again" / "checkpoints")
    run_ranks(2, train_plainly, tmp_path / "again", small_dataset, plain)
    ours, theirs = (
        load_file(tmp_path / name / "members" / "a" / "model.safetensors")
        for name in ("run", "again")
    )
    trained = [name for name in ours if "running" not in name]
    assert len(trained) > 10
    assert all(ours[name].equal(theirs[name]) for name in trained)
