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

SMALLEST = ("model=test_resnet", "size=32", "batch=4", "steps=2", "passes=1", "rounds=3")


class Config(Settings):
    """A checkpoint after `steps` times `passes` steps; each arm takes them once in a round."""

    model: str = "mobilenetv2_100"
    size: int = Field(96, ge=32)
    batch: int = Field(32, ge=2)
    steps: int = Field(10, ge=2)
    """Of an epoch: there are so many batches of images."""
    passes: int = Field(5, ge=1)
    rounds: int = Field(4, ge=3)


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

        def steps() -> None:
            for _ in range(settings.passes):
                loop.epoch()

        def saved(*, wait: bool) -> None:
            assert keeper.save(At(loop.training.position.epoch, 0), wait=wait)
            waited_s = keeper.waited_s
            steps()
            keeper.settle()
            costs[wait].append(waited_s + keeper.written_s)

        steps()
        seconds = interleave(
            {
                "without": steps,
                "behind": lambda: saved(wait=False),
                "waited for": lambda: saved(wait=True),
            },
            settings.rounds,
            0,
        )
        size = sum(file.stat().st_size for file in folder.rglob("*.*"))
        loop.close()
        leave()
    bare = seconds["without"]
    figures = {
        "checkpoint_stall_share": _share(seconds["behind"], bare),
        "checkpoint_stall_share_waited_for": _share(seconds["waited for"], bare),
        "checkpoint_cost_share": _over(costs[False], bare),
        "checkpoint_cost_share_waited_for": _over(costs[True], bare),
    }
    every = settings.steps * settings.passes
    baselines = {
        f"{arm}, step": median([took / every for took in samples], "s")
        for arm, samples in seconds.items()
    }
    note = (
        f"{settings.model}, {settings.size} px, batch {settings.batch}, AdamW and EMA, one rank, a "
        f"checkpoint every {every} steps (two of them are {size / 1e6:.0f} MB). "
        "checkpoint_stall_share: (wall time with - without) / without, by rounds. "
        "checkpoint_cost_share: seconds that the step waits and processor seconds of the thread "
        "that writes, over the wall time without."
    )
    return Result("checkpoint-stall", figures, baselines, notes=(note, describe(files)))


def _share(arm: Sequence[float], bare: Sequence[float]) -> Figure:
    return median([a / b - 1 for a, b in zip(arm, bare, strict=True)], "of a run")


def _over(costs: Sequence[float], bare: Sequence[float]) -> Figure:
    return median([c / b for c, b in zip(costs, bare, strict=True)], "of a run")


def _fail(text: str) -> None:
    raise AssertionError(text)
