"""What is done outside and inside of a container, and how the benchmark asks for it."""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, get_args

import numpy as np

from skindx.core.errors import JobError
from skindx_bench.harness.answering import answer_commands


@dataclass(frozen=True)
class Amounts:
    """How much each task does."""

    disk_mb: int
    memory_mb: int
    matrix: int
    images: int
    batch: int


Task = Callable[[], object]


TaskName = Literal[
    "disk write",
    "disk read",
    "cpu",
    "memory bandwidth",
    "loader",
    "train step",
    "server answer",
    "start-up",
]
START: TaskName = "start-up"
"""Timed from outside; all others are tasks of a process that stays."""
TASKS: tuple[TaskName, ...] = get_args(TaskName)


def prepare(
    folder: Path, amounts: Amounts, chosen: Sequence[str], stack: ExitStack
) -> Mapping[str, Task]:
    """Make the tasks' inputs in `folder`, which is on the disk, and return the chosen tasks.

    `stack` ends what a task started.
    """
    block = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8).tobytes()
    file = folder / "disk.bin"

    def write() -> None:
        with file.open("wb") as written:
            for _ in range(amounts.disk_mb):
                written.write(block)
            written.flush()
            os.fsync(written.fileno())

    def read() -> None:
        with file.open("rb") as opened:
            # What the cache holds is not read from the disk.
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while opened.read(1 << 20):
                pass

    makers: dict[str, Callable[[], Task]] = {
        "disk write": lambda: write,
        "disk read": lambda: read,
        "cpu": lambda: _product(amounts.matrix),
        "memory bandwidth": lambda: _copy(amounts.memory_mb),
        "loader": lambda: _loader(folder, amounts.images),
        "train step": lambda: _train_step(amounts.batch),
        "server answer": lambda: serving(folder, stack),
    }
    write()
    return {name: makers[name]() for name in chosen}


def _product(side: int) -> Task:
    matrix = np.ones((side, side), dtype=np.float32)
    return lambda: matrix @ matrix


def _copy(memory_mb: int) -> Task:
    source = np.zeros(memory_mb << 17)  # of 8 bytes
    target = np.empty_like(source)
    return lambda: np.copyto(target, source)


def timed(task: Task, slow: float, repeats: int) -> float:
    """Return the seconds of `repeats` calls; `slow` plants so much of them as more work.

    A call before is not timed: it brings back the caches that another process has used, and lets
    threads end that still spin there.
    """
    task()
    start = time.perf_counter()
    for _ in range(repeats):
        task()
    end = time.perf_counter()
    until = end + slow * (end - start)
    while time.perf_counter() < until:
        pass
    return time.perf_counter() - start


def _loader(folder: Path, images: int) -> Task:
    """Decode painted JPEGs strictly, from files, as the loader does."""
    from skindx.data.synthetic.painter import CLASSES, encode_jpeg, paint
    from skindx.imaging.decode import decode

    files = []
    labels = list(CLASSES)
    for index in range(images):
        file = folder / f"{index}.jpg"
        file.write_bytes(encode_jpeg(paint(labels[index % len(labels)], index).pixels))
        files.append(file)

    def load() -> None:
        for file in files:
            decode(file.read_bytes())

    return load


def _train_step(batch: int) -> Task:
    import timm
    import torch

    torch.manual_seed(0)
    model = timm.create_model("resnet18", num_classes=9).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    images = torch.randn(batch, 3, 96, 96)
    labels = torch.zeros(batch, dtype=torch.long)

    def step() -> None:
        torch.nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def serving(folder: Path, stack: ExitStack) -> Task:
    """Start `skindx serve` with random weights, and return the request for one answer."""
    import httpx

    from skindx_bench.serve.server import photo_jpeg, random_bundle, running

    bundle = random_bundle(
        folder / "bundle", ("mobilenetv2_100",), side=224, detector_side=320, gallery=8
    ).path
    server = stack.enter_context(running(bundle, "--workers", "1"))
    client = stack.enter_context(httpx.Client(base_url=server.url, timeout=300, trust_env=False))
    photo = photo_jpeg(800, 600, 0)

    def ask() -> None:
        client.post("/v1/diagnose", files={"photo": photo}).raise_for_status()

    return ask


_END_S = 30
_SHOWN_LINES = 5


class Agent:
    """A worker that runs a task when it is asked. Raises JobError when the worker ends."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        job: Mapping[str, Any],
    ) -> None:
        self.name, self._log = name, log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._write(job)

    def seconds(self, task: str, slow: float, repeats: int) -> float:
        """Return the seconds that the worker took for `repeats` calls of a task."""
        self._write({"do": "run", "task": task, "slow": slow, "repeats": repeats})
        return float(self._read()["seconds"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._write({"do": "end"})
                self._read()
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(_END_S if kind is None else 5)
        except (JobError, OSError, subprocess.TimeoutExpired):
            pass  # it is ended below, whatever it still does
        finally:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):  # the reader has closed its end
                        stream.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._ended() from None

    def _read(self) -> Mapping[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        found: Mapping[str, Any] = json.loads(line)
        return found

    def _ended(self) -> JobError:
        text = self._log.read_text(encoding="utf-8", errors="replace").strip()
        said = " | ".join(text.splitlines()[-_SHOWN_LINES:]) or "no message"
        return JobError(f"the worker {self.name} of bench container ended: {said}")


class ContainerWorker:
    """The process that does the tasks of a job, outside of a container or inside."""

    def __init__(self, folder: str, amounts: dict[str, int], tasks: Sequence[str]) -> None:
        self._stack = ExitStack()
        self._tasks = prepare(Path(folder), Amounts(**amounts), tasks, self._stack)

    def run(self, task: str, slow: float, repeats: int) -> dict[str, Any]:
        """Return the seconds of so many calls of a task."""
        return {"seconds": timed(self._tasks[task], slow, repeats)}

    def end(self) -> dict[str, Any]:
        """End what the tasks started."""
        self._stack.close()
        return {}


if __name__ == "__main__":
    answer_commands(lambda job: ContainerWorker(**job))
