"""Layers placed in stages, a rank each: a pipeline of micro-batches."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

from skindx.comm.fused import FusedSettings
from skindx.core.cost.assignment import cut, divisors
from skindx.core.cost.events import Feeding, Flow
from skindx.core.cost.network import UNMEASURED, Network, Timed
from skindx.core.cost.placing import Ground, Operator
from skindx.core.cost.pricing import Load
from skindx.core.cost.step import Schedule
from skindx.core.errors import UserError
from skindx.plan.parallel.pipeline import Pipeline, Stage
from skindx.plan.strategies.parallel import Parallel, not_held_bytes, own_s_per_byte

MICRO_BATCHES = 4
"""For each stage, where the images suffice: the bubble is then a fifth of a step at most."""
MOST_STAGES = 256
"""That are looked at, where the settings give no number of them."""


class Model(Parallel):
    """`engine.parallel.kind: model` (GPipe, Huang et al. 2019, arXiv 1811.06965)."""

    name: ClassVar[str] = "model"

    def schedule(self, load: Load, network: Network) -> Schedule:
        """Return the fastest number of stages as a flow. Raises UserError where none is possible.

        Ranks beyond the stages are further pipelines, whose gradients are summed.
        """
        flow, _, _ = self._piped(load, network)
        return Schedule(
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
        kept = sum(own.kept_bytes for own in ground.operators)
        needed = (
            images * (len(stages) * sum(own.kept_bytes for own in stage) - kept)
            - not_held_bytes(load, sum(own.parameter_bytes for own in stage) / weights)
            for stage in stages
        )
        return round(max(needed))

    def _piped(self, load: Load, network: Network) -> tuple[Pipeline, Ground, list[list[Operator]]]:
        key = (self.label, network.nodes, network.per_node)
        if key not in load.memo:
            ground = self.ground(load, network)
            counts = self._counts(ground)
            found = [(self._flow(ground, load, count), count) for count in counts]
            flow, count = min(found, key=lambda pair: _seconds(pair[0]))
            load.memo[key] = (flow, ground, self._stages(ground, count))
        piped: tuple[Pipeline, Ground, list[list[Operator]]] = load.memo[key]
        return piped

    def _counts(self, ground: Ground) -> list[int]:
        given, most = self.options.get("stages"), len(ground.operators)
        counts = [int(given)] if given else [n for n in divisors(ground.ranks) if n <= MOST_STAGES]
        found = [count for count in counts if ground.ranks % count == 0 and 1 < count <= most]
        if not found:
            raise UserError(
                f"model places {most} layers in {given or 'equal'} stages on {ground.ranks} ranks, "
                "which cannot be: stages divide the ranks, and are no more than the layers."
            )
        return found

    def _flow(self, ground: Ground, load: Load, count: int) -> Pipeline:
        stages, images = self._stages(ground, count), count * ground.images
        # As `skindx train` does: two images or more, for batch norm.
        auto = max(1, min(MICRO_BATCHES * count, images // 2))
        micro = min(int(self.options.get("micro_batches", auto)), images)
        scale = ground.scale(images / micro)
        per_byte = own_s_per_byte(load)
        made = []
        for number, own in enumerate(stages):
            weights = sum(operator.parameter_bytes for operator in own)
            onward = round(own[-1].passed_bytes * images / micro) if number + 1 < count else 0
            back = round(stages[number - 1][-1].passed_bytes * images / micro) if number else 0
            made.append(
                Stage(
                    forward_s=scale * sum(operator.forward_s for operator in own),
                    backward_s=scale * sum(operator.backward_s for operator in own),
                    update_s=per_byte * weights,
                    onward=_sent(ground.network, number, onward),
                    back=_sent(ground.network, number - 1, back),
                    summed=ground.summed(count, weights),
                    sent_bytes=onward + back,
                    summed_bytes=weights if count < ground.ranks else 0,
                    begins=own[0].name,
                )
            )
        return Pipeline(tuple(made), micro)

    def _stages(self, ground: Ground, count: int) -> list[list[Operator]]:
        operators = list(ground.operators)
        starts, names = self.options.get("starts", ()), [own.name for own in operators]
        if starts and all(name in names for name in starts):
            places = [0, *(names.index(name) for name in starts), len(names)]
            counts = [end - begin for begin, end in pairwise(places)]
        else:  # also where stages begin inside of what a trace has as one
            seconds = [operator.forward_s + operator.backward_s for operator in operators]
            counts = cut(seconds, count)
        stages = []
        for own in counts:
            stages.append(operators[:own])
            operators = operators[own:]
        return stages

    def found(self, flows: Sequence[Flow]) -> dict[str, Any]:
        """Name the number of stages, and where they begin if that is the same for all members."""
        pipelines = [flow for flow in flows if isinstance(flow, Pipeline)]
        starts = {tuple(stage.begins for stage in own.stages[1:]) for own in pipelines}
        own = {"stages": len(pipelines[0].stages)}
        return {**own, "starts": list(starts.pop())} if len(starts) == 1 else own


def _seconds(flow: Pipeline) -> float:
    return flow.run(device="cuda", slots=1, pieces=1, feeding=Feeding()).seconds


def _sent(network: Network, number: int, size_bytes: int) -> Timed:
    """Return a message from a rank to the next one, which may be on the next node."""
    if not size_bytes:
        return Timed(0.0, 0.0)
    leaves = network.nodes > 1 and (number + 1) % network.per_node == 0
    link = network.between if leaves else network.inside
    return Timed(link.alpha_s, link.beta_s_per_byte * size_bytes)
