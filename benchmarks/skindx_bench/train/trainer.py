"""Overhead of the trainer over a bare PyTorch loop, and how long its steps wait for images."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from pydantic import Field

from skindx.core.machine import free_port, python_command
from skindx.core.measurement import interleave
from skindx.core.settings_base import Settings
from skindx_bench.harness.result import Result, median, ratio
from skindx_bench.harness.training import describe, noisy_jpegs

SMALLEST = ("model=test_resnet", "size=32", "batch=4", "steps=2", "rounds=3")


class Config(Settings):
    """The model of configs/isic9.yaml; a round is an epoch of `steps` steps for each candidate."""

    model: str = "mobilenetv2_100"
    size: int = Field(160, ge=32)
    batch: int = Field(32, ge=2)
    steps: int = Field(8, ge=2)
    rounds: int = Field(7, ge=3)
    gpu_batch: int = Field(256, ge=2)
    """Batch of the ResNet-50 that is trained where there is a GPU."""
    gpu_steps: int = Field(30, ge=2)
    gpu_model: str = "resnet50"
    gpu_size: int = Field(224, ge=32)
    gpu_peers: tuple[Literal["timm", "torchvision"], ...] = ("timm", "torchvision")
    fake_gpu: bool = False
    """Let the CPU stand in for the GPU, to see that its part runs; choose tiny sizes."""


def run(settings: Config) -> Result:
    """Time the trainer and a bare loop in turn, in one process: same threads, memory, page cache.

    Memory settings hold for a process, so the loop without them has a process of its own.
    """
    from skindx.training.deepspeed.ranks import join
    from skindx.training.parallel.mesh import leave
    from skindx_bench.train.trainer_loops import BareLoop, TrainerLoop, job

    with tempfile.TemporaryDirectory(prefix="skindx-bench-") as name:
        files = noisy_jpegs(settings.steps * settings.batch)
        work = job(Path(name), files, settings.model, settings.size, settings.batch)
        os.environ["MASTER_PORT"] = str(free_port())
        mesh = join(work.settings.engine)
        on_gpu = mesh.device.type == "cuda"
        with ExitStack() as stack:
            ours, bare = TrainerLoop(work, mesh), BareLoop(work, mesh.device)
            candidates: dict[str, Callable[[], object]] = {
                "trainer": ours.epoch,
                "bare loop": bare.epoch,
            }
            if not on_gpu:
                untuned = stack.enter_context(_untuned(settings, Path(name)))
                candidates["bare loop, untuned"] = untuned
            seconds = interleave(candidates, settings.rounds)
            ours.close()
        waits = [
            waited / took
            for waited, took in zip(ours.waits[-settings.rounds :], seconds["trainer"], strict=True)
        ]
        figures = {
            "bare_loop_over_step": ratio(seconds["trainer"], seconds["bare loop"]),
            "loader_wait_share": median(waits, "of a step"),
        }
        rates = {
            f"{name}, step": median([elapsed / settings.steps for elapsed in samples], "s")
            for name, samples in seconds.items()
        }
        parts: dict[str, dict[str, list[float]]] = {}
        gpu_note = "ResNet-50 against timm's and torchvision's scripts: not measured, no GPU here."
        if on_gpu or settings.fake_gpu:
            from skindx_bench.train.trainer_loops import measure

            more, rounds, gpu_note = measure(
                Path(name),
                mesh,
                model=settings.gpu_model,
                side=settings.gpu_size,
                batch=settings.gpu_batch,
                steps=settings.gpu_steps,
                rounds=settings.rounds,
                peers=settings.gpu_peers,
            )
            figures |= more
            parts = {"gpu_rounds_s": rounds}
        leave()
    notes = (*_notes(settings, files), gpu_note)
    return Result("trainer", figures, rates, notes=notes, parts=parts)


@contextmanager
def _untuned(settings: Config, folder: Path) -> Iterator[Callable[[], None]]:
    """Yield a function that lets the bare loop of another process run one epoch."""
    command = python_command("-m", "skindx_bench.train.trainer_loops", str(folder))
    arguments = [settings.model, str(settings.size), str(settings.batch)]
    with subprocess.Popen(
        [*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        turn, done = process.stdin, process.stdout

        def epoch() -> None:
            turn.write("\n")
            turn.flush()
            if not done.readline():
                raise RuntimeError(f"{command} ended with {process.wait()}")

        try:
            yield epoch
        finally:
            turn.close()


def _notes(settings: Config, files: list[bytes]) -> tuple[str, ...]:
    return (
        f"{settings.model}, 8 classes, {settings.size} px, batch {settings.batch}, fp32, AdamW, "
        f"gradient clip 1, one rank; {settings.steps} steps an epoch. {describe(files)}",
        "trainer: skindx train's own steps under DeepSpeed, images from memory. bare loop: the "
        "same model, loader, loss, clipping and update in plain PyTorch, on the same threads, "
        "with freed memory kept; untuned: with glibc's own settings, in a process of its own.",
        "bare_loop_over_step: the bare loop's step / the trainer's, 1 is no overhead. "
        "loader_wait_share: what the trainer waits for its next batch, also the first of an epoch.",
    )
