"""Layers placed in stages, a rank each: a pipeline of micro-batches in GPipe's order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from skindx.comm.fused import FusedSettings
from skindx.core.cost.assignment import cut, divisors
from skindx.core.cost.events import Feeding, Flow, Span, Step, StepTask
from skindx.core.cost.network import UNMEASURED, Network, Timed
from skindx.core.cost.placing import Ground, Operator
from skindx.core.cost.pricing import Load
from skindx.core.cost.step import StepSchedule
from skindx.core.errors import UserError
from skindx.training.forms.parallel_form import (
    ParallelForm,
    ParallelSettings,
    not_held_bytes,
    update_s_per_byte,
)

_NOTHING = Timed(0.0, 0.0)


@dataclass(frozen=True)
class PipelineStage:
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
class PipelineFlow(Flow):
    """Stages in forward order (Huang et al. 2019, arXiv 1811.06965).

    Micro-batches are alike, so that their times are known in closed form: the m-th one has passed
    the first k machines (stages, and the links between them) after the sum of these plus (m - 1)
    times the slowest of these.
    """

    stages: tuple[PipelineStage, ...]
    micro_batches: int

    @property
    def border_bytes(self) -> int:
        """The most that a rank sends over its borders."""
        return self.micro_batches * max(stage.sent_bytes for stage in self.stages)

    @property
    def gradient_bytes(self) -> int:
        """The most that a rank sums with other pipelines."""
        return max(stage.summed_bytes for stage in self.stages)

    def slower(
        self, *, compute: float = 1.0, wire: float = 1.0, update: float = 1.0
    ) -> "PipelineFlow":
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
            done_s[-1] + stage.summed.alone_s + stage.update_s
            for done_s, stage in zip(backwards, self.stages, strict=True)
        ]
        last = end_s.index(max(end_s))
        stage, earlier_s = self.stages[last], (pieces - 1) * max(done_s[-1] for done_s in backwards)
        tasks, spans = [], []
        for name, ends, took_s in (
            ("forward", forwards[last], stage.forward_s),
            ("backward", backwards[last], stage.backward_s),
        ):
            tasks += [StepTask(name, "device", took_s)] * len(ends)
            spans += [Span(earlier_s + at_s - took_s, earlier_s + at_s) for at_s in ends]
        whole_s = earlier_s + end_s[last]
        if stage.summed.alone_s:
            until_s = whole_s - stage.update_s
            tasks.append(StepTask("gradients", "link", stage.summed.alone_s))
            spans.append(Span(until_s - stage.summed.alone_s, until_s))
        tasks.append(StepTask("update", "device", stage.update_s))
        spans.append(Span(whole_s - stage.update_s, whole_s))
        busy_s = {
            "forward": pieces * self.micro_batches * stage.forward_s,
            "backward": pieces * self.micro_batches * stage.backward_s,
        }
        read_s = len(self.stages) * feeding.read_s
        if device == "cpu":
            first = self.stages[0]
            read_s += pieces * self.micro_batches * (first.forward_s + first.backward_s)
        wait_s = max(0.0, read_s - whole_s)
        if wait_s:
            tasks.append(StepTask("read", "cores", read_s))
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
        longest_s = max(done_s[-1] for done_s in backwards)
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
    for job_s, sent_s in machines:
        total_s, slowest_s = total_s + job_s, max(slowest_s, job_s)
        ends.append([total_s + number * slowest_s for number in range(count)])
        total_s, slowest_s = total_s + sent_s, max(slowest_s, sent_s)
    return ends


# Layers placed in stages, a rank each: a pipeline of micro-batches.

MICRO_BATCHES = 4
"""For each stage, where the images suffice: the bubble is then a fifth of a step at most."""
MOST_STAGES = 256
"""That are looked at, where the settings give no number of them."""


def _auto_micro_batches(stages: int, images: int) -> int:
    return max(1, min(MICRO_BATCHES * stages, images // 2))  # of two images, for batch norm


class PipelineForm(ParallelForm):
    """`engine.parallel.kind: model` (GPipe, Huang et al. 2019, arXiv 1811.06965)."""

    name: ClassVar[str] = "model"

    def schedule(self, load: Load, network: Network) -> StepSchedule:
        """Return the fastest number of stages as a flow. Raises UserError where none is possible.

        Ranks beyond the stages are further pipelines, whose gradients are summed.
        """
        flow, _, _ = self._piped(load, network)
        return StepSchedule(
            flow=flow,
            spread=max(UNMEASURED, network.price("all_reduce").spread),
            local_spread=FusedSettings().local(load).spread,
            measured=False,
        )

    def memory_bytes(self, load: Load, network: Network, images: int) -> int:
        """Count the stage that needs most: its weights, and its activations of all micro-batches.

        What the strategy adds to a rank that holds all weights and its own images' activations.
        """
        _, ground, stages = self._piped(load, network)
        weights = max(1, load.profile.parameter_bytes)
        kept = sum(operator.kept_bytes for operator in ground.operators)
        needed = (
            images * (len(stages) * sum(operator.kept_bytes for operator in stage) - kept)
            - not_held_bytes(load, sum(operator.parameter_bytes for operator in stage) / weights)
            for stage in stages
        )
        return round(max(needed))

    def _piped(
        self, load: Load, network: Network
    ) -> tuple[PipelineFlow, Ground, list[list[Operator]]]:
        key = (self.label, network.nodes, network.per_node)
        if key not in load.memo:
            ground = self.ground(load, network)
            counts = self._counts(ground)
            result = [(self._flow(ground, load, count), count) for count in counts]
            flow, count = min(result, key=lambda pair: _seconds(pair[0]))
            load.memo[key] = (flow, ground, self._stages(ground, count))
        piped: tuple[PipelineFlow, Ground, list[list[Operator]]] = load.memo[key]
        return piped

    def _counts(self, ground: Ground) -> list[int]:
        given, most = self.options.get("stages"), len(ground.operators)
        counts = [int(given)] if given else [n for n in divisors(ground.ranks) if n <= MOST_STAGES]
        result = [count for count in counts if ground.ranks % count == 0 and 1 < count <= most]
        if not result:
            raise UserError(
                f"model places {most} layers in {given or 'equal'} stages on {ground.ranks} ranks, "
                "which cannot be: stages divide the ranks, and are no more than the layers."
            )
        return result

    def _flow(self, ground: Ground, load: Load, count: int) -> PipelineFlow:
        stages, images = self._stages(ground, count), count * ground.images
        auto = _auto_micro_batches(count, images)
        micro = min(int(self.options.get("micro_batches", auto)), images)
        scale = ground.scale(images / micro)
        per_byte = update_s_per_byte(load)
        made = []
        for number, stage in enumerate(stages):
            weights = sum(operator.parameter_bytes for operator in stage)
            onward = round(stage[-1].passed_bytes * images / micro) if number + 1 < count else 0
            back = round(stages[number - 1][-1].passed_bytes * images / micro) if number else 0
            made.append(
                PipelineStage(
                    forward_s=scale * sum(operator.forward_s for operator in stage),
                    backward_s=scale * sum(operator.backward_s for operator in stage),
                    update_s=per_byte * weights,
                    onward=_sent(ground.network, number, onward),
                    back=_sent(ground.network, number - 1, back),
                    summed=ground.summed(count, weights),
                    sent_bytes=onward + back,
                    summed_bytes=weights if count < ground.ranks else 0,
                    begins=stage[0].name,
                )
            )
        return PipelineFlow(tuple(made), micro)

    def _stages(self, ground: Ground, count: int) -> list[list[Operator]]:
        operators = list(ground.operators)
        starts, names = self.options.get("starts", ()), [operator.name for operator in operators]
        if starts and all(name in names for name in starts):
            places = [0, *(names.index(name) for name in starts), len(names)]
            counts = [end - begin for begin, end in pairwise(places)]
        else:  # also where stages begin inside of what a trace has as one
            seconds = [operator.forward_s + operator.backward_s for operator in operators]
            counts = cut(seconds, count)
        stages = []
        for size in counts:
            stages.append(operators[:size])
            operators = operators[size:]
        return stages

    def settings_of(self, flows: Sequence[Flow]) -> dict[str, Any]:
        """Name the number of stages, and where they begin if that is the same for all members."""
        pipelines = [flow for flow in flows if isinstance(flow, PipelineFlow)]
        starts = {tuple(stage.begins for stage in flow.stages[1:]) for flow in pipelines}
        settings = {"stages": len(pipelines[0].stages)}
        return {**settings, "starts": list(starts.pop())} if len(starts) == 1 else settings


def _seconds(flow: PipelineFlow) -> float:
    return flow.run(device="cuda", slots=1, pieces=1, feeding=Feeding()).seconds


def _sent(network: Network, number: int, size_bytes: int) -> Timed:
    """Return a message from a rank to the next one, which may be on the next node."""
    if not size_bytes:
        return Timed(0.0, 0.0)
    leaves = network.nodes > 1 and (number + 1) % network.per_node == 0
    link = network.between if leaves else network.inside
    return Timed(link.alpha_s, link.beta_s_per_byte * size_bytes)


class ModelSettings(ParallelSettings):
    """Layers are placed in stages, a rank each: a pipeline of micro-batches.

    GPipe (Huang et al. 2019, arXiv 1811.06965, section 2): all micro-batches of a step go forward
    before the first goes backward, and the weights move once.
    """

    kind: Literal["model"] = "model"
    stages: int = Field(2, ge=2, le=4096)
    """Ranks of a pipeline, which follow each other; the number of ranks is a multiple of it."""
    micro_batches: Annotated[int, Field(ge=1, le=10**6)] | Literal["auto"] = "auto"
    """Parts of a pipeline's images that are under way at once; auto: four a stage, of two images or
    more."""
    starts: tuple[str, ...] = ()
    """A layer of each stage but the first, where it begins; none: stages of equal operations."""

    by_peers: ClassVar[bool] = True
    layer_on_one_rank: ClassVar[bool] = True
    price: ClassVar[type[ParallelForm] | None] = PipelineForm

    def group_size(self, ranks: int) -> int:
        """Return the number of stages. Raises UserError."""
        return self._group_of(self.stages, ranks, f"stages={self.stages}")

    @property
    def together(self) -> int:
        """A pipeline takes the images of all its ranks."""
        return self.stages

    def images_at_once(self, shares: Sequence[int], pieces: int, batch: int) -> int:
        """Return the images of the smallest micro-batch."""
        rows = super().images_at_once(shares, pieces, batch)
        pipelines = max(1, len(shares) // self.stages)
        micro = micro_batches_of(self, batch // pieces // pipelines)
        return rows // max(1, min(micro, rows))

    def divisors(self) -> Mapping[str, int]:
        """Return the micro-batches, of which there may be fewer."""
        return {"engine.parallel.micro_batches": 2}

    @model_validator(mode="after")
    def _one_a_stage(self) -> Self:
        if self.starts and len(self.starts) != self.stages - 1:
            raise ValueError(
                f"starts names {len(self.starts)} layers, and {self.stages} stages have "
                f"{self.stages - 1} borders; name a layer for each stage but the first, or none"
            )
        return self


PIPELINED = "engine.parallel.kind=model"


def micro_batches_of(parallel: ModelSettings, images: int) -> int:
    """Return how many micro-batches a pipeline's images make. Raises UserError for too many."""
    if parallel.micro_batches == "auto":
        return _auto_micro_batches(parallel.stages, images)
    if parallel.micro_batches > images:
        raise UserError(
            f"{PIPELINED}: micro_batches={parallel.micro_batches} are more than the {images} "
            "images of a pipeline in a step; lower them, or raise recipe.batch."
        )
    return parallel.micro_batches
