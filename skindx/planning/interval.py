"""How sure a prediction is: the step once more, with each thing that was measured a little slower.

What a spread does to a step depends on what hides what: a slower network costs nothing where
backward hides it, and all of its seconds where the network is the bottleneck. So each of them is
simulated, one standard deviation up, and independent ones add as squares.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from skindx.planning.cluster import Cluster
from skindx.planning.flow import Feeding, Step
from skindx.planning.graph import simulate_step
from skindx.planning.network import Network
from skindx.planning.profile import Profile, Profiles
from skindx.planning.schedule import Schedule
from skindx.planning.trace import Trace

Z90 = 1.645
"""Standard deviations to either side that hold 90 % of a normal distribution."""

MODEL = 0.035
"""Standard deviation, over the mean, of what the model itself leaves out."""
FOREIGN = 0.06
"""And where the trace is another program's."""
UNSEEN = 0.25
"""Added for each factor e by which something lies beyond what was measured."""


@dataclass(frozen=True)
class Simulated:
    """A step, and all that it was simulated of."""

    trace: Trace
    schedule: Schedule
    network: Network
    profile: Profile
    profiles: Profiles
    pieces: int
    feeding: Feeding

    def run(self) -> Step:
        """Simulate it."""
        return simulate_step(
            self.trace,
            self.schedule,
            self.network,
            device=self.profiles.device,
            pieces=self.pieces,
            feeding=self.feeding,
        )

    def slower(self) -> Iterator["Simulated"]:
        """Yield it with each thing that was measured slower by its standard deviation."""
        cluster, profile, schedule = self.network.cluster, self.profile, self.schedule
        compute = math.hypot(profile.spread, _learnt(cluster, "compute"))
        if compute:
            slow = schedule.computing_slower(compute=1 + compute)
            yield replace(self, trace=_slower(self.trace, compute), schedule=slow)
        if profile.update_spread and self.trace.update_s:
            update = 1 + profile.update_spread
            trace = self.trace.model_copy(update={"update_s": self.trace.update_s * update})
            slow = schedule.computing_slower(update=update)
            yield replace(self, trace=trace, schedule=slow)
        wire = math.hypot(schedule.spread, _learnt(cluster, "communicate"))
        if wire:
            yield replace(self, schedule=schedule.scaled(1 + wire))
        if schedule.latency_sd_s:
            yield replace(self, schedule=schedule.later())
        if schedule.local_spread and schedule.local_s + schedule.precondition_s:
            yield replace(self, schedule=schedule.with_local(1 + schedule.local_spread))
        if profile.read_spread and self.feeding.read_s:
            read_s = self.feeding.read_s * (1 + profile.read_spread)
            yield replace(self, feeding=replace(self.feeding, read_s=read_s))

    def half_width(self, step_s: float, beyond: dict[str, float]) -> float:
        """Return the half width of the 90 % interval, over the prediction.

        `beyond`: what lies outside the calibration -> how far over what was measured.
        """
        model = MODEL if self.profiles.source == "measured" else FOREIGN
        variance = model**2
        for other in self.slower():
            variance += (other.run().seconds / max(step_s, 1e-12) - 1) ** 2
        variance += sum((UNSEEN * math.log(far)) ** 2 for far in beyond.values() if far > 1)
        return Z90 * math.sqrt(variance)


def _slower(trace: Trace, spread: float) -> Trace:
    return trace.model_copy(
        update={
            "forward_s": trace.forward_s * (1 + spread),
            "backward_s": tuple(seconds * (1 + spread) for seconds in trace.backward_s),
        }
    )


def _learnt(cluster: Cluster, part: str) -> float:
    known = cluster.corrections.get(part)
    return known.spread if known else 0.0
