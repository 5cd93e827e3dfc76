"""How much of a training's time its checkpoints take, written behind its steps and waited for."""

import os
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from skindx.core.machine import free_port
from skindx.core.measurement import interleave
from skindx.core.settings_base import Settings
from skindx.training.checkpoint.keeper import At, Keeper
from skindx.training.checkpoint.resume import keeper_of
from skindx.training.config.engine import CheckpointSettings
from skindx_bench.harness.result import Figure, Result, median
from skindx_bench.harness.training import describe, noisy_jpegs

SMALLEST = ("model=test_resnet", "size=32", "batch=4", "every=4", "steps=2", "rounds=3")

_ARMS = ("behind", "waited for")


class Config(Settings):
    """A checkpoint every `every` steps; each arm takes the first `steps` after one in a round."""

    model: str = "mobilenetv2_100"
    size: int = Field(96, ge=32)
    batch: int = Field(32, ge=2)
    every: int = Field(50, ge=2)
    steps: int = Field(5, ge=2)
    """So many are timed: by their end a checkpoint has been written."""
    rounds: int = Field(40, ge=3)


class _TimedKeeper(Keeper):
    """Counts the processor time of what writes, and how long the step waits."""

    written_s, waited_s = 0.0, 0.0

    def save(self, at: At, *, wait: bool = True) -> bool:
        started = time.perf_counter()
        try:
            return super().save(at, wait=wait)
        finally:
            self.waited_s = time.perf_counter() - started

    def _write(self, *parts: Any) -> None:
        started = time.thread_time()
        super()._write(*parts)
        behind = threading.current_thread() is not threading.main_thread()
        self.written_s = time.thread_time() - started if behind else 0.0


def run(settings: Config) -> Result:
    """Time the arms in turn, in one process: without checkpoints, behind the steps, waited for."""
    from skindx.training.deepspeed.ranks import join
    from skindx.training.parallel.mesh import leave
    from skindx_bench.train.trainer_loops import TrainerLoop, job

    costs: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory(prefix="skindx-bench-") as name:
        files = noisy_jpegs(settings.steps * settings.batch)
        recipe = {"epochs": 1000, "batch": settings.batch, "ema": {"decay": 0.99}}
        work = job(Path(name), files, settings.model, settings.size, settings.batch, recipe=recipe)
        os.environ["MASTER_PORT"] = str(free_port())
        loop = TrainerLoop(work, join(work.settings.engine))
        folder = Path(name) / "checkpoints"
        keeper = keeper_of(loop.training, folder, "bench", CheckpointSettings(), _fail)
        keeper.__class__ = _TimedKeeper
        assert isinstance(keeper, _TimedKeeper)

        def saved(*, wait: bool) -> None:
            assert keeper.save(At(loop.training.position.epoch, 0), wait=wait)
            waited_s = keeper.waited_s
            loop.epoch()
            keeper.settle()
            costs[wait].append(waited_s + keeper.written_s)

        loop.epoch()
        seconds = interleave(
            {
                "without": loop.epoch,
                _ARMS[0]: lambda: saved(wait=False),
                _ARMS[1]: lambda: saved(wait=True),
            },
            settings.rounds,
            0,
        )
        size = sum(file.stat().st_size for file in folder.rglob("*.*"))
        loop.close()
        leave()
    run_s = [took / settings.steps * settings.every for took in seconds["without"]]
    over = [[a - b for a, b in zip(seconds[arm], seconds["without"], strict=True)] for arm in _ARMS]
    figures = {
        "checkpoint_stall_share": _share(over[0], run_s),
        "checkpoint_stall_share_waited_for": _share(over[1], run_s),
        "checkpoint_cost_share": _share(costs[False], run_s),
        "checkpoint_cost_share_waited_for": _share(costs[True], run_s),
    }
    baselines = {
        f"{arm}, step": median([took / settings.steps for took in samples], "s")
        for arm, samples in seconds.items()
    }
    note = (
        f"{settings.model}, {settings.size} px, batch {settings.batch}, AdamW and EMA, one rank, a "
        f"checkpoint every {settings.every} steps (two of them are {size / 1e6:.0f} MB). "
        "checkpoint_stall_share: (wall time with - without) / without. Timed are the first "
        f"{settings.steps} steps after a checkpoint until it is on the disk, and as many without, "
        "in turn; the others are alike. "
        "checkpoint_cost_share: seconds that the step waits and processor seconds of the thread "
        "that writes, over the wall time without."
    )
    return Result("checkpoint-stall", figures, baselines, notes=(note, describe(files)))


def _share(costs: Sequence[float], run_s: Sequence[float]) -> Figure:
    return median([cost / all_s for cost, all_s in zip(costs, run_s, strict=True)], "of a run")


def _fail(text: str) -> None:
    raise AssertionError(text)
