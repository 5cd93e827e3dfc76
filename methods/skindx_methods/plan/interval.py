"""The 90 % interval of a prediction.

What a spread does to a step depends on what hides what: a slower network costs nothing where
backward hides it, and all of its seconds where the network is the bottleneck. So each thing that
was measured is made slower by one standard deviation, the step is simulated once more, and
independent ones add as squares.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from skindx.core.cost.pricing import StepSchedule
from skindx.core.cost.profile import Trace
from skindx_methods.plan.cluster import Cluster
from skindx_methods.plan.estimate import Estimate, PlanOutcome, Simulated, messages_slower

Z90 = 1.645
"""Standard deviations to either side that hold 90 % of a normal distribution."""

MODEL = 0.035
"""Standard deviation, over the mean, of what the model itself leaves out."""
FOREIGN = 0.06
"""Standard deviation where the trace comes from another program."""
UNSEEN = 0.25
"""Standard deviation added for each factor e by which something is beyond the measured range."""
_SHARED = frozenset({"compute", "update", "wire", "read"})
"""Measured quantities that all choices rest on; an exchange's own work is measured by itself."""


def half_width(result: Estimate) -> float:
    """Return the half width of the interval of a step, over the prediction."""
    model = MODEL if result.simulated.profiles.source == "measured" else FOREIGN
    moved = sum(change**2 for change in _changes(result).values())
    return Z90 * math.sqrt(model**2 + moved + _unseen(result))


def is_surely_slower(one: PlanOutcome, best: PlanOutcome, ratio: float) -> bool:
    """Tell whether `one`, which costs `ratio` times what `best` does, costs more for 9 in 10.

    What both rest on moves both: a network that is slower than believed is so under each exchange.
    Only what it does to one of them and not to the other makes their ratio uncertain, beside what
    the model leaves out of each.
    """
    estimates = {member.name: member.estimate for member in best.members}
    pairs = {
        (id(member.estimate), id(estimates[member.name])): (
            member.estimate,
            estimates[member.name],
        )
        for member in one.members
        if member.name in estimates
    }
    variance = max(_apart(*pair) for pair in pairs.values())
    return math.log(ratio) > Z90 * math.sqrt(variance)


def _apart(one: Estimate, other: Estimate) -> float:
    """Return the variance of the logarithm of the ratio of two steps."""
    first, second = _changes(one), _changes(other)
    variance = 2 * MODEL**2 + _unseen(one) + _unseen(other)
    for what in {*first, *second}:
        changes = first.get(what, 0.0), second.get(what, 0.0)
        if what in _SHARED:
            variance += math.log((1 + changes[0]) / (1 + changes[1])) ** 2
        else:
            variance += changes[0] ** 2 + changes[1] ** 2
    return variance


def _changes(result: Estimate) -> dict[str, float]:
    """Return what each thing that was measured adds to a step when it is slower, over the step."""
    step_s = max(result.step_s, 1e-12)
    return {
        what: other.run().seconds / step_s - 1 for what, other in _each_slower(result.simulated)
    }


def _unseen(result: Estimate) -> float:
    return sum((UNSEEN * math.log(far)) ** 2 for far in result.outside.values() if far > 1)


def bounds_s(result: Estimate) -> tuple[float, float]:
    """Return the ends of the interval of a step."""
    width = 1 + half_width(result)
    return result.step_s / width, result.step_s * width


def width_of_all(outcome: PlanOutcome) -> float:
    """Return the half width of the whole, over the prediction: of the least sure member."""
    different = {id(member.estimate): member.estimate for member in outcome.members}
    return max(half_width(result) for result in different.values())


def _each_slower(step: Simulated) -> Iterator[tuple[str, Simulated]]:
    """Yield the step with each thing that was measured slower by its deviation, by its name."""
    cluster, profile, schedule = step.network.cluster, step.profile, step.schedule
    spread = max((point.spread for point in profile.at), default=0.0)
    compute = math.hypot(spread, _learnt(cluster, "compute"))
    if compute:
        slow = _flow_slower(schedule, compute=1 + compute)
        yield "compute", replace(step, trace=_slower(step.trace, compute), schedule=slow)
    if profile.update_spread and step.trace.update_s:
        update = 1 + profile.update_spread
        trace = step.trace.model_copy(update={"update_s": step.trace.update_s * update})
        slow = _flow_slower(schedule, update=update)
        yield "update", replace(step, trace=trace, schedule=slow)
    wire = math.hypot(schedule.spread, _learnt(cluster, "communicate"))
    if wire:
        yield "wire", replace(step, schedule=messages_slower(schedule, 1 + wire))
    if schedule.local_spread and schedule.local_s:
        yield "local", replace(step, schedule=_local_slower(schedule))
    if profile.read_spread and step.feeding.read_s:
        read_s = step.feeding.read_s * (1 + profile.read_spread)
        yield "read", replace(step, feeding=replace(step.feeding, read_s=read_s))


def _slower(trace: Trace, spread: float) -> Trace:
    return trace.model_copy(
        update={
            "forward_s": trace.forward_s * (1 + spread),
            "backward_s": tuple(seconds * (1 + spread) for seconds in trace.backward_s),
        }
    )


def _flow_slower(schedule: StepSchedule, **slower: float) -> StepSchedule:
    """Return the schedule with what its flow computes and updates taking so many times as long."""
    return replace(schedule, flow=schedule.flow.slower(**slower)) if schedule.flow else schedule


def _local_slower(schedule: StepSchedule) -> StepSchedule:
    """Return the schedule whose work of the cores is slower by its standard deviation."""
    factor = 1 + schedule.local_spread
    messages = tuple(
        replace(message, before_s=message.before_s * factor, after_s=message.after_s * factor)
        for message in schedule.messages
    )
    return replace(schedule, messages=messages, finish_s=schedule.finish_s * factor)


def _learnt(cluster: Cluster, part: str) -> float:
    known = cluster.corrections.get(part)
    return known.spread if known else 0.0
