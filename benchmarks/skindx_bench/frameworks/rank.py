"""One rank of the bench of frameworks, a process in a namespace: it answers commands.

Every framework answers by this code; it takes nothing but numpy and safetensors.
"""

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from skindx_bench.frameworks.graph import Graph, network
from skindx_bench.harness.answering import answer_commands

STAGES = ("read", "copy", "forward", "backward", "communicate", "update")
COMPILED = "compiled"
"""Forward, backward, communication and update, where a framework compiles them into one."""


class Stages:
    """Seconds of each stage, summed over some steps.

    Each stage is measured by a beginning and an end of its own: what lies between two stages counts
    in none, so that their sum shows what a step has been spent on besides.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def add(self, name: str, begin: float, end: float) -> None:
        """Add a time between two readings of `time.perf_counter`."""
        self.seconds[name] = self.seconds.get(name, 0.0) + end - begin

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of what is done here."""
        begin = time.perf_counter()
        yield
        self.add(name, begin, time.perf_counter())


Answer = dict[str, Any]
Arrays = dict[str, np.ndarray]

MOMENTUM = 0.9
MEAN, SCALE = 128.0, 64.0
"""Of the pixels: (pixel - mean) / scale goes into the network."""


class Framework(Protocol):
    """A framework's side of a rank: the same network, loss (mean cross entropy) and SGD.

    It is made of the job: `kinds` are what may be asked of it.
    """

    def join(self, rank: int, ranks: int, address: str, port: int) -> None:
        """Meet the other ranks."""

    def build(self, graph: Graph, weights: Arrays, batch: int, options: Answer) -> None:
        """Set up the network with these weights (PyTorch's layout), and its optimizer.

        `options` has the learning `rate`, and what the arm has.
        """

    def version(self) -> str:
        """Return name and version of what was built."""

    def copy(self, images_BSS3: np.ndarray, labels_B: np.ndarray) -> Any:
        """Return the framework's own tensors, normalised, where it computes."""

    def step(self, batch: Any, stages: Stages) -> float:
        """Take one step; return the mean loss of this rank's images, before the step."""

    def drop(self) -> None:
        """Give the network back."""


class FrameworkRank:
    """State of a rank between commands: one network at a time."""

    def __init__(self, framework: Framework, job: Answer) -> None:
        """Join the others."""
        self._framework = framework
        self._rank, self._ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        framework.join(self._rank, self._ranks, address, port)
        self._images = np.load(job["images"], mmap_mode="r")
        self._labels = np.load(job["labels"])

    def hello(self) -> Answer:
        """Say that this rank is there."""
        return {}

    def begin(
        self,
        *,
        name: str,
        weights: str,
        batch: int,
        side: int,
        classes: int,
        shrink: int,
        options: Answer,
        alone: bool = False,
    ) -> Answer:
        """Set up a network; `batch` images a rank, or of this one alone."""
        from safetensors.numpy import load_file

        self.end()
        reset_peak()
        graph = network(name, side, classes, shrink)
        self._framework.build(graph, load_file(weights), batch, options)
        self._batch, self._taken = batch, 0
        self._share = (0, 1) if alone else (self._rank, self._ranks)
        return {"version": self._framework.version()}

    def steps(self, *, count: int) -> Answer:
        """Take steps together with the others; all ranks begin within one round trip."""
        stages, losses = Stages(), []
        began = time.perf_counter()
        for _ in range(count):
            with stages.stage("read"):
                images, labels = self._read()
            with stages.stage("copy"):
                batch = self._framework.copy(images, labels)
            losses.append(self._framework.step(batch, stages))
        seconds = time.perf_counter() - began
        return {
            "seconds": seconds / count,
            "stages": {name: total / count for name, total in stages.seconds.items()},
            "losses": losses,
            "peak_mb": peak_mb(),
        }

    def _read(self) -> tuple[np.ndarray, np.ndarray]:
        """Return this rank's share of the next batch of all ranks."""
        rank, ranks = self._share
        every = self._batch * ranks
        first = self._taken * every % (len(self._labels) - every + 1) + rank * self._batch
        self._taken += 1
        span = slice(first, first + self._batch)
        return np.array(self._images[span]), np.array(self._labels[span])

    def end(self) -> Answer:
        """Give the network back, and its memory: the ranks of other frameworks are there too."""
        self._framework.drop()
        give_memory_back()
        return {}


def reset_peak() -> None:
    """Let the largest resident size count from now on."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def give_memory_back() -> None:
    """Let the C library return what is free to the system, where it can (glibc)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def peak_mb() -> float:
    """Return the largest resident size of this process since `reset_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def answer(framework: Callable[[Answer], Framework]) -> None:
    """Answer the bench's commands with the framework that is made for the job."""
    answer_commands(lambda job: FrameworkRank(framework(job), job))
