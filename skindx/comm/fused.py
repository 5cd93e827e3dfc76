"""Fused: dense all-reduce of groups of tensors, each as soon as backward has made it."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from skindx.comm.exchange_settings import ExchangeSettings
from skindx.comm.grouping import Plan, ddp_buckets, rules
from skindx.core.cost.pricing import Load, Network, StepSchedule, in_groups
from skindx.core.cost.profile import Trace


class FusedSettings(ExchangeSettings):
    """Groups of tensors are summed while backward still computes the earlier layers.

    Merged-gradient wait-free backpropagation (Shi et al. 2018, arXiv 1811.11141).
    """

    kind: Literal["fused"] = "fused"
    tune: bool = True
    """Measure some steps, plan the groups by a cost model, time the best plans, keep the fastest.

    The order in which floating-point numbers are added depends on the plan, so switch this off
    where two trainings must be equal to the bit; a resumed one keeps its plan in any case.
    """
    bucket_mb: float = Field(25, gt=0, le=100_000)
    """Size of a group until there is a plan; the first is closed at 1 MB (as PyTorch's DDP)."""
    wire: Literal["fp32", "bf16"] = "fp32"
    """bf16: half the bytes; sums are rounded to eight bits on their way."""
    profile_steps: int = Field(5, ge=2, le=100_000)
    """Steps in which backward is timed."""
    trial_steps: int = Field(5, ge=3, le=100_000)
    """Steps in which each of the best plans is timed."""

    code: ClassVar[str] = "skindx.comm.fused_exchange:Fused"
    local_s_per_element: ClassVar[float] = 0.3e-9
    shrinks: ClassVar[bool] = True
    beside_parts: ClassVar[bool] = True
    searched: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"wire": "bf16"})
    also: ClassVar[Mapping[str, str]] = {"per-tensor": "per tensor", "one-buffer": "one buffer"}

    @property
    def lossy(self) -> bool:
        """Whether 16 bits round the sums on their way."""
        return self.wire == "bf16"

    @classmethod
    def timed(cls) -> Self:
        """Return groups of a fixed size."""
        return cls(tune=False)

    def schedules(self, load: Load, network: Network, rule: str = "") -> list[StepSchedule]:
        """Return the grouping of the rule; without one, the groupings that the tuner times."""
        if network.ranks == 1:
            return [StepSchedule()]
        trace = self._sent(load)
        if not self.tune:
            # The trainer cuts by the gradient's own bytes, whatever travels.
            plan = ddp_buckets(load.trace, self.bucket_mb)
            return [self._schedule(load, plan, network, trace.sizes_bytes)]
        line = network.price("all_reduce").line
        plans = rules(trace, line, [rule]) if rule else rules(trace, line)
        return [self._schedule(load, plan, network, trace.sizes_bytes) for plan in plans.values()]

    def _sent(self, load: Load) -> Trace:
        """Return the trace with the bytes that travel."""
        if not self.lossy:
            return load.trace
        halves = tuple(size // 2 for size in load.trace.sizes_bytes)
        return load.trace.model_copy(update={"sizes_bytes": halves})

    def _schedule(
        self, load: Load, plan: Plan, network: Network, sizes_bytes: Sequence[int]
    ) -> StepSchedule:
        price, local = network.price("all_reduce"), self.local(load)
        cast_s = load.cast().base_s / 2 if self.lossy else 0.0
        return StepSchedule(
            in_groups(plan, sizes_bytes, price, before_s=cast_s, after_s=cast_s),
            finish_s=local.base_s,
            spread=price.spread_of(len(plan)),
            local_spread=local.spread,
            measured=price.measured,
        )

    def memory_bytes(self, load: Load, network: Network) -> int:
        """Count what is cast; the gradients themselves lie in the one buffer."""
        return load.size_bytes // 2 if self.lossy else 0
