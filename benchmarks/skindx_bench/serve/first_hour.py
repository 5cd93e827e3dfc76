"""From a folder of images to the page: seconds and memory of each command, beside the estimate.

Synthetic images are written into class folders. `skindx new` looks at them and estimates; then the
three commands that it prints are run as a user runs them, and the page is served until it answers.
"""

import os
import resource
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field

from skindx.core.errors import JobError
from skindx.core.machine import cpu_count, python_command
from skindx.core.settings_base import Settings
from skindx.data.synthetic.lesions import RECIPES
from skindx.data.synthetic.painter import encode_jpeg, paint
from skindx.start.first_estimate import Estimated, estimates, time_network
from skindx.start.first_files import (
    Effort,
    FirstAnswers,
    batch_of,
    commands,
    effort_of,
    write_first_files,
)
from skindx.start.image_folder import look
from skindx_bench.harness.conditions import Conditions, ProcessTree
from skindx_bench.harness.result import Figure, Result, median
from skindx_bench.serve.server import running

SMALLEST = ("images=[60]", "rounds=1", "effort=quick", "network=test_resnet")
STEPS = ("build", "train", "evaluate")
_EVERY_S = 0.5
_ONCE = 1000
"""Folders with more images are run once."""


class Config(Settings):
    """Folders of painted images, and how their networks are trained."""

    images: tuple[int, ...] = (100, 1000, 10_000)
    rounds: int = Field(3, ge=1)
    """Of folders of up to 1,000 images; larger ones are run once."""
    computed: tuple[int, ...] = ()
    """Larger folders for which `skindx new` is run and its estimates stand for the rest."""
    effort: Effort | None = None
    """null: as `skindx new` chooses by the number of images."""
    network: str | None = None
    """Of timm; null: as `skindx new` chooses."""


@dataclass(frozen=True)
class Step:
    """One command, measured, and what was expected of it."""

    name: str
    seconds: float
    cpu_s: float
    memory_bytes: float
    expected: Estimated | None = None
    trains: str = ""


def run(settings: Config) -> Result:
    """Run each folder's commands, the smallest folder first."""
    figures: dict[str, Figure] = {}
    parts: dict[str, dict[str, Any]] = {}
    estimated: list[tuple[Step, Estimated]] = []
    with Conditions() as conditions:
        for images in settings.images:
            rounds = settings.rounds if images <= _ONCE else 1
            done = [_one(images, settings) for _ in range(rounds)]
            estimated += [(step, step.expected) for each in done for step in each if step.expected]
            for steps in zip(*done, strict=True):
                figures |= _figures(f"{images}_{steps[0].name}", steps)
                parts[f"{images} {steps[0].name}"] = _part(steps[0])
            whole = [sum(step.seconds for step in steps) for steps in done]
            figures[f"{images}_total_s"] = _figure(whole, "s")
        for images in settings.computed:
            new, expected = _looked_at(images, settings)
            parts[f"{images} new"] = _part(new)
            for name, one in zip(STEPS, expected, strict=True):
                gb = one.memory_bytes / 1e9
                parts[f"{images} {name}"] = {"expected_s": one.seconds, "expected_gb": gb}
    busy = conditions.others_share
    notes = (
        "Synthetic images of 0.05 to 0.08 megapixels in ten class folders, made before the "
        "clock starts; larger photos take longer to decode. Every command is a process with its "
        "own start; memory is the sum over its processes (PSS).",
        _beside(estimated),
        f"Other processes used {100 * busy:.0f} % of the cores."
        if busy is not None
        else "How busy other processes were is not known.",
    )
    return Result("first-hour", figures, parts=parts, notes=notes)


def _beside(estimated: Sequence[tuple[Step, Estimated]]) -> str:
    """Return how near the estimates of `skindx new` came."""
    times = sorted(step.seconds / one.seconds for step, one in estimated)
    memory = sorted(step.memory_bytes / one.memory_bytes for step, one in estimated)
    return (
        f"The {len(times)} commands took {times[0]:.2f} to {times[-1]:.2f} times the seconds that "
        f"`skindx new` expected, and {memory[0]:.2f} to {memory[-1]:.2f} times the memory."
    )


def _figures(key: str, steps: Sequence[Step]) -> dict[str, Figure]:
    return {
        f"{key}_s": _figure([step.seconds for step in steps], "s"),
        f"{key}_cpu_s": _figure([step.cpu_s for step in steps], "s"),
        f"{key}_gb": _figure([step.memory_bytes / 1e9 for step in steps], "GB"),
    }


def _figure(samples: Sequence[float], unit: str) -> Figure:
    if len(samples) > 1:
        return median(samples, unit)
    return Figure(samples[0], unit, 1, (samples[0], samples[0]))


def _part(step: Step) -> dict[str, Any]:
    """Return what a command of the first round took beside what was expected of it."""
    part: dict[str, Any] = {"seconds": step.seconds, "gb": step.memory_bytes / 1e9}
    if step.trains:
        part["trains"] = step.trains
    if one := step.expected:
        part |= {"expected_s": one.seconds, "expected_gb": one.memory_bytes / 1e9}
    return part


def _one(images: int, settings: Config) -> list[Step]:
    with tempfile.TemporaryDirectory(prefix="skindx-first-hour-") as name:
        folder, out = Path(name) / "images", Path(name) / "run"
        paint_folder(folder, images)
        new, expected = _new(folder, out, settings)
        *lines, _ = commands(out)
        steps = [
            _timed(step, partial(_verb, words), one)
            for step, words, one in zip(STEPS, lines, expected, strict=True)
        ]
        return [new, *steps, _page(out / "bundle")]


def _looked_at(images: int, settings: Config) -> tuple[Step, Sequence[Estimated]]:
    with tempfile.TemporaryDirectory(prefix="skindx-first-hour-") as name:
        paint_folder(Path(name) / "images", images)
        return _new(Path(name) / "images", Path(name) / "run", settings)


def _new(folder: Path, out: Path, settings: Config) -> tuple[Step, Sequence[Estimated]]:
    """Do what `skindx new --yes` does."""
    expected: list[Estimated] = []
    trains: list[str] = []

    def new() -> None:
        seen = look(folder)
        effort = settings.effort or effort_of(seen.images)
        answers = FirstAnswers(None, {}, "clinical", "", effort)
        batch, side = batch_of(seen.images), answers.side(seen)
        timed = time_network(settings.network, side, batch, len(seen.counts))
        write_first_files(out, seen, answers, timed.member, pretrained=timed.pretrained)
        frozen, epochs = answers.frozen(timed.pretrained), answers.epochs(timed.pretrained)
        expected.extend(
            estimates(seen, timed, batch=batch, epochs=epochs, frozen=frozen, cores=cpu_count())
        )
        learns = "its last layer" if frozen else "all layers"
        start = "pretrained" if timed.pretrained else "random weights"
        trains.append(f"{timed.member['model']}, {start}, {side} pixels, {learns}, {epochs} epochs")

    step = _timed("new", new)
    return replace(step, trains=trains[0]), expected


def _verb(words: Sequence[str]) -> None:
    done = subprocess.run(python_command("-m", *words), capture_output=True, text=True, check=False)
    if done.returncode:
        raise JobError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr[-2000:]}")


def _page(bundle: Path) -> Step:
    began = time.monotonic()
    with running(bundle) as server:
        seconds = time.monotonic() - began
        return Step("page", seconds, server.cpu_s(), server.memory_bytes())


def _timed(name: str, work: Callable[[], None], expected: Estimated | None = None) -> Step:
    """Run `work`, and sample the memory of all below this process meanwhile."""
    here = ProcessTree(os.getpid())
    base, peak, over = here.memory_bytes(), [0.0], threading.Event()

    def sample() -> None:
        while not over.wait(_EVERY_S):
            peak[0] = max(peak[0], here.memory_bytes() - base)

    watcher = threading.Thread(target=sample, daemon=True)
    cpu_s, began = _children_s(), time.monotonic()
    with ExitStack() as ended:
        watcher.start()
        ended.callback(watcher.join)
        ended.callback(over.set)
        work()
    seconds = time.monotonic() - began
    return Step(name, seconds, _children_s() - cpu_s, peak[0], expected)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def paint_folder(folder: Path, images: int) -> None:
    """Write so many painted images into a folder a class."""
    labels = sorted(RECIPES)
    for number in range(images):
        label = labels[number % len(labels)]
        file = folder / label / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encode_jpeg(paint(label, number, seed=1).pixels))
