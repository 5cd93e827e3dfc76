"""Merged-gradient wait-free backpropagation: groups that travel while backward still runs."""

from collections.abc import Sequence
from typing import Any, Literal

from skindx.comm import grouping
from skindx.core.cost.network import Network
from skindx.core.cost.step import Schedule, step_s
from skindx.plan.strategies.strategy import Load, Strategy, in_groups

Rule = Literal["best", "ddp", "optimum", "greedy", "one buffer", "per tensor"]

_ALIKE = 0.005
"""Groupings whose times differ by less are alike; the one with the fewest messages is taken."""


class Fused(Strategy):
    """`exchange.kind: fused`; its tuner times these very groupings and keeps the fastest."""

    name = "fused"
    rule: Rule = "best"

    def schedule(self, load: Load, network: Network) -> Schedule:
        """Take the grouping of the rule; `best`: what the simulation finds the fastest."""
        if network.ranks == 1:
            return Schedule()
        if "tune" in self.options and not self.options["tune"]:
            trace = self._on_wire(load)
            mb = float(self.options.get("bucket_mb", 25))
            # The trainer cuts by the gradient's own bytes, whatever travels.
            return self._schedule(
                load, grouping.ddp_buckets(load.trace, mb), network, trace.sizes_bytes
            )
        plans = self.plans(load, network)
        schedules = [
            self._schedule(load, plan, network, self._on_wire(load).sizes_bytes)
            for plan in plans.values()
        ]
        times = [step_s(load.trace, schedule, network) for schedule in schedules]
        best_s = min(times) * (1 + _ALIKE)
        as_fast = [
            schedule
            for schedule, seconds in zip(schedules, times, strict=True)
            if seconds <= best_s
        ]
        return min(as_fast, key=lambda schedule: len(schedule.messages))

    def plans(self, load: Load, network: Network) -> dict[str, grouping.Plan]:
        """Return the groupings of the rule, by name."""
        price, trace = network.price("all_reduce"), self._on_wire(load)
        if self.rule != "best":
            made = grouping.rules(trace, price.line, [self.rule])
            return {self.rule: made[self.rule]}
        return grouping.rules(trace, price.line)

    def _on_wire(self, load: Load) -> Any:
        if self.options.get("wire") != "bf16":
            return load.trace
        return load.trace.model_copy(
            update={"sizes_bytes": tuple(size // 2 for size in load.trace.sizes_bytes)}
        )

    def _schedule(
        self, load: Load, plan: Sequence[int], network: Network, sizes_bytes: Sequence[int]
    ) -> Schedule:
        price, local = network.price("all_reduce"), load.local("fused")
        cast_s = load.local("bf16").base_s if self.options.get("wire") == "bf16" else 0.0
        messages = in_groups(
            load, plan, sizes_bytes, network, "all_reduce", before_s=cast_s / 2, after_s=cast_s / 2
        )
        return Schedule(
            messages,
            finish_s=local.base_s,
            spread=price.spread_of(len(plan)),
            local_spread=local.spread,
            measured=price.measured,
            note=f"{len(plan)} group{'s' if len(plan) > 1 else ''}",
        )

    @property
    def lossy(self) -> bool:  # type: ignore[override]
        """16 bits round the sums on their way."""
        return self.options.get("wire") == "bf16"

    def fragment(self) -> dict[str, Any]:
        """Name the kind; the tuner finds the groups on the machines themselves."""
        return {"exchange": {"kind": "fused", **self.options}, "engine": {"zero": 0}}

    def memory_bytes(self, load: Load, network: Network, images: int) -> int:
        """Count what is cast; the gradients themselves lie in the one buffer."""
        return load.size_bytes // 2 if self.options.get("wire") == "bf16" else 0


class PerTensor(Fused):
    """Each tensor alone: one of the groupings that the tuner of `fused` times."""

    name = "per-tensor"
    rule = "per tensor"


class OneBuffer(Fused):
    """All tensors at once after backward: another of these groupings."""

    name = "one-buffer"
    rule = "one buffer"
