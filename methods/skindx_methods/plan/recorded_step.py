"""One real step of a training as tasks, to be laid beside what a plan has predicted."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch import Tensor

from skindx.comm.clocks import Mark, mark
from skindx.training.deepspeed.engine import Engine
from skindx.training.gradient_sync import GRADIENTS
from skindx.training.loop import take_step
from skindx.training.state import Batch, Training
from skindx_methods.plan.events import Span, Step, StepTask
from skindx_methods.plan.layer_clock import LayerClock
from skindx_methods.plan.timeline import write_chrome


class TimedEngine:
    """Stands in for an engine in the training loop; all else is the engine's own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.forward_begin: Mark | None = None
        self.backward_begin: Mark | None = None
        self.backward_end: Mark | None = None
        self.end: Mark | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Forward."""
        self.forward_begin = mark(self._engine.mesh.device)
        return self._engine(inputs)

    def backward(self, loss_sum: Tensor, global_count: int, *, last: bool = True) -> None:
        """Backward."""
        self.backward_begin = mark(self._engine.mesh.device)
        self._engine.backward(loss_sum, global_count, last=last)
        self.backward_end = mark(self._engine.mesh.device)

    def step(self, learning_rate: float) -> bool:
        """Update."""
        taken = self._engine.step(learning_rate)
        self.end = mark(self._engine.mesh.device)
        return taken


NUMBER = 4
"""The step since a start that is recorded: the ones before open connections and take memory."""


def timeline_file(run: Path, member: str) -> Path:
    """Return where a member's recorded step is."""
    return run / f"timeline-{member}.json"


class RecordedStep:
    """Takes the steps of a training, and records one of them in a file."""

    def __init__(self, file: Path, take: Callable[..., float | None] = take_step) -> None:
        """Write a trace of step `NUMBER`, or of the first after it that is `complete`."""
        self._file, self._take, self._taken, self._done = file, take, 0, False

    def __call__(self, training: Training[Any], batch: Batch) -> float | None:
        """Take a step."""
        self._taken += 1
        wanted = self._taken >= NUMBER and training.guard.complete(training.engine)
        if self._done or not wanted:
            return self._take(training, batch)
        self._done = True
        recorder = _Recorder(training)
        loss = self._take(recorder.training, batch)
        recorder.close()
        if loss is not None:
            write_chrome(self._file, recorder.step(), "measured: the main rank, one step")
        return loss


def recording(run: Path, key: str) -> RecordedStep:
    """Return what takes the steps of a run's training, and records one of them."""
    return RecordedStep(timeline_file(run, key))


class _Recorder:
    def __init__(self, training: Training[Any]) -> None:
        engine: Any = TimedEngine(training.engine)
        self._engine, self._device = engine, training.mesh.device
        self.training = replace(training, engine=engine)
        self._clock = LayerClock(training.engine.module)
        self._waits: list[tuple[str, Mark, Mark]] = []
        self._start = mark(self._device)
        training.engine.watch(self._waiting)

    @contextmanager
    def _waiting(self, name: str) -> Iterator[None]:
        begin = mark(self._device)
        yield
        self._waits.append((name, begin, mark(self._device)))

    def close(self) -> None:
        """Take everything off the network."""
        self._clock.close()
        self._engine.watch(None)

    def step(self) -> Step:
        """Return the tasks: layers forward and backward, what was waited for, the update."""
        engine, compute = self._engine, "cores" if self._device.type == "cpu" else "device"
        start = self._start
        result: list[tuple[str, str, float, float]] = []

        def add(name: str, resource: str, begin: Mark, end: Mark) -> None:
            result.append((name, resource, begin.seconds_since(start), end.seconds_since(start)))

        entered = [*self._clock.entered, ("", engine.backward_begin)]
        for (name, begin), (_, end) in pairwise(entered):
            add(f"forward {name}", compute, begin, end)
        before = engine.backward_begin
        for name, at in self._gradients(start):
            add(f"backward {name}", compute, before, at)
            before = at
        moved, updated = engine.backward_end, engine.end
        exchange = engine.exchange
        for name, begin, end in self._waits:
            add(name, "link", begin, end)
            if name == GRADIENTS:
                moved = end
            elif exchange and name == exchange.after_update:
                updated = begin
        add("update", compute, moved, updated)
        tasks = tuple(
            StepTask(name, resource, end - begin) for name, resource, begin, end in result
        )
        return Step(tasks, tuple(Span(begin, end) for *_, begin, end in result))

    def _gradients(self, start: Mark) -> list[tuple[str, Mark]]:
        """Return layers with the time of their last gradient, in the order of these."""
        last: dict[str, Mark] = {}
        for name, at in self._clock.ready.items():
            layer = name.rpartition(".")[0]
            if layer not in last or at.seconds_since(last[layer]) > 0:
                last[layer] = at
        return sorted(last.items(), key=lambda item: item[1].seconds_since(start))
