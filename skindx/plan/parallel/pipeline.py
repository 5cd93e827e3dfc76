"""A pipeline of stages in GPipe's order: all pieces forward, then all backward."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from skindx.core.cost.events import Feeding, Flow, Span, Step, Task
from skindx.core.cost.network import Timed

_NOTHING = Timed(0.0, 0.0)


@dataclass(frozen=True)
class Stage:
    """Work of one rank on a micro-batch, and the bytes that it sends on."""

    forward_s: float
    backward_s: float
    update_s: float
    onward: Timed = _NOTHING
    """Activations to the next stage; the last one sends none."""
    back: Timed = _NOTHING
    """Gradients to the stage before; the first one sends none."""
    summed: Timed = _NOTHING
    """Gradients of its weights, with the same stage of other pipelines."""
    sent_bytes: int = 0
    """Onward and back, of a micro-batch."""
    summed_bytes: int = 0
    begins: str = ""
    """Its first operator."""


@dataclass(frozen=True)
class Pipeline(Flow):
    """Stages in forward order (Huang et al. 2019, arXiv 1811.06965).

    Micro-batches are alike, so that their times are known in closed form: the m-th one has passed
    the first k machines (stages, and the links between them) after the sum of these plus (m - 1)
    times the slowest of these.
    """

    stages: tuple[Stage, ...]
    micro_batches: int

    @property
    def border_bytes(self) -> int:
        """The most that a rank sends over its borders."""
        return self.micro_batches * max(stage.sent_bytes for stage in self.stages)

    @property
    def gradient_bytes(self) -> int:
        """The most that a rank sums with other pipelines."""
        return max(stage.summed_bytes for stage in self.stages)

    def slower(self, *, compute: float = 1.0, wire: float = 1.0, update: float = 1.0) -> "Pipeline":
        """Return the pipeline with each of these taking so many times as long."""
        stages = tuple(
            replace(
                stage,
                forward_s=stage.forward_s * compute,
                backward_s=stage.backward_s * compute,
                update_s=stage.update_s * update,
                onward=stage.onward.scaled(wire),
                back=stage.back.scaled(wire),
                summed=stage.summed.scaled(wire),
            )
            for stage in self.stages
        )
        return replace(self, stages=stages)

    def run(
        self, *, device: Literal["cpu", "cuda"], slots: int, pieces: int, feeding: Feeding
    ) -> Step:
        """Return a step of the stage that ends last; the first stage reads the images of all."""
        forwards, backwards = self._ends()
        end_s = [
            own[-1] + stage.summed.alone_s + stage.update_s
            for own, stage in zip(backwards, self.stages, strict=True)
        ]
        last = end_s.index(max(end_s))
        stage, earlier_s = self.stages[last], (pieces - 1) * max(own[-1] for own in backwards)
        tasks, spans = [], []
        for name, ends, took_s in (
            ("forward", forwards[last], stage.forward_s),
            ("backward", backwards[last], stage.backward_s),
        ):
            tasks += [Task(name, "device", took_s)] * len(ends)
            spans += [Span(earlier_s + at_s - took_s, earlier_s + at_s) for at_s in ends]
        whole_s = earlier_s + end_s[last]
        if stage.summed.alone_s:
            until_s = whole_s - stage.update_s
            tasks.append(Task("gradients", "link", stage.summed.alone_s))
            spans.append(Span(until_s - stage.summed.alone_s, until_s))
        tasks.append(Task("update", "device", stage.update_s))
        spans.append(Span(whole_s - stage.update_s, whole_s))
        busy_s = {
            "forward": pieces * self.micro_batches * stage.forward_s,
            "backward": pieces * self.micro_batches * stage.backward_s,
        }
        read_s = len(self.stages) * (feeding.read_s + feeding.copy_s)
        if device == "cpu":
            first = self.stages[0]
            read_s += pieces * self.micro_batches * (first.forward_s + first.backward_s)
        wait_s = max(0.0, read_s - whole_s)
        if wait_s:
            tasks.append(Task("read", "cores", read_s))
            spans.append(Span(0.0, read_s))
        idle_s = self._idle_s(last, pieces) if len(self.stages) > 1 else 0.0
        known_s = wait_s + sum(busy_s.values()) + stage.update_s + idle_s
        sent_s = max(0.0, whole_s + wait_s - known_s)
        parts = {"read": wait_s, **busy_s, "communicate": sent_s, "update": stage.update_s}
        parts["idle"] = idle_s
        return Step(tuple(tasks), tuple(spans), parts)

    def _idle_s(self, last: int, pieces: int) -> float:
        """Return how long a stage waits for the others where nothing takes time to send."""
        silent = replace(
            self,
            stages=tuple(
                replace(stage, onward=_NOTHING, back=_NOTHING, summed=_NOTHING)
                for stage in self.stages
            ),
        )
        _, backwards = silent._ends()
        stage = self.stages[last]
        busy_s = self.micro_batches * (stage.forward_s + stage.backward_s)
        longest_s = max(own[-1] for own in backwards)
        return (pieces - 1) * (longest_s - busy_s) + backwards[last][-1] - busy_s

    def _ends(self) -> tuple[list[list[float]], list[list[float]]]:
        """Return when each stage is done with each micro-batch, forward and backward."""
        onward = [(stage.forward_s, stage.onward.alone_s) for stage in self.stages]
        forwards = _passed(onward, self.micro_batches, 0.0)
        back = [(stage.backward_s, stage.back.alone_s) for stage in reversed(self.stages)]
        backwards = _passed(back, self.micro_batches, forwards[-1][-1])
        return forwards, backwards[::-1]


def _passed(
    machines: Sequence[tuple[float, float]], count: int, begin_s: float
) -> list[list[float]]:
    """Return when each of `count` jobs has left each machine; after each it is sent on."""
    ends, total_s, slowest_s = [], begin_s, 0.0
    for own_s, sent_s in machines:
        total_s, slowest_s = total_s + own_s, max(slowest_s, own_s)
        ends.append([total_s + number * slowest_s for number in range(count)])
        total_s, slowest_s = total_s + sent_s, max(slowest_s, sent_s)
    return ends
