"""Local: ranks train apart for some steps, then agree on the mean of what they moved by."""

import math
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from skindx.comm.exchange_settings import ExchangeSettings
from skindx.comm.topk import Density
from skindx.core.cost.pricing import Load, Network, StepSchedule, after_backward
from skindx.core.errors import UserError

CHUNK = 512
"""Elements of a chunk; the largest are selected within each chunk."""
INDEX_BITS = 9
"""Number of bits of a position in a chunk."""
HEAD_BYTES = 12
"""Size of a message's head: number of elements, round, and whose message was unfit."""
AGREED_BYTES = 48
"""Size of what a rank tells the others of a round: skipped steps, a stop, a checkpoint."""


class LocalSettings(ExchangeSettings):
    """Each rank takes steps of its own, then all take an outer step on their mean change.

    DiLoCo (Douillard et al. 2023, arXiv 2311.08105); with `density` and `bits` as SparseLoCo
    (Sarfi et al. 2025, arXiv 2508.15706).
    """

    kind: Literal["local"] = "local"
    steps: int = Field(20, ge=1, le=100_000)
    """Steps of a round, after which the outer step comes; the end of an epoch ends it too."""
    density: Density = 1.0
    """Share of the change's elements that is sent: the largest of each 512."""
    bits: Literal[2, 4, 8, 32] = 2
    """Bits of an element that is sent; below 32 with two numbers for each 512 elements."""
    overlap: int = Field(0, ge=0, le=100_000)
    """Steps of the next round that ranks take while the message is under way; below `steps`.

    0: they wait for it (streaming DiLoCo, Douillard et al. 2025, arXiv 2501.18512)."""
    outer_rate: float = Field(1.0, gt=0, le=10)
    """Learning rate of the outer step: 1 applies the mean change as it is."""
    outer_momentum: float = Field(0.0, ge=0, lt=1)
    """Nesterov momentum of the outer step; DiLoCo takes 0.9 with an outer rate of 0.7."""

    code: ClassVar[str] = "skindx_methods.local_steps.local_steps:LocalSteps"
    guard: ClassVar[str] = "skindx_methods.local_steps.round_guard:RoundGuard"
    local_s_per_element: ClassVar[float] = 15e-9
    together: ClassVar[bool] = False
    shrinks: ClassVar[bool] = True
    searched: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"overlap": 2})
    needs: ClassVar[str] = "local takes steps by the optimizer alone, without recipe.preconditioner"

    @model_validator(mode="after")
    def _overlaps_one_round(self) -> Self:
        if self.overlap >= self.steps:
            raise ValueError(
                f"exchange.overlap={self.overlap} must be less than exchange.steps={self.steps}; "
                "lower exchange.overlap"
            )
        return self

    @property
    def lossy(self) -> bool:
        """Return True, as ranks train apart."""
        return True

    def check_training(self, *, whole_layers: bool, preconditioned: bool) -> None:
        """Raise ValueError for K-FAC, whose factors are sums over all ranks."""
        if preconditioned:
            raise ValueError(
                "exchange.kind=local does not exchange in each step, but recipe.preconditioner "
                "needs this; remove one of these two settings"
            )

    def check_engine(self, engine: Any) -> None:
        """Raise ValueError for an engine whose ranks need each other in each step."""
        apart = f"exchange.kind={self.kind} lets ranks train apart, and"
        if setting := engine.lockstep:
            raise ValueError(
                f"{apart} {setting} needs all ranks in each step; remove one of these two settings"
            )
        if engine.parallel.splits:
            raise ValueError(
                f"{apart} engine.parallel.kind={engine.parallel.kind} splits layers over the "
                "ranks; remove one of these two settings"
            )

    def check_epoch(self, name: str, steps: int) -> None:
        """Raise UserError for a round that no epoch reaches the end of."""
        if self.steps > steps:
            raise UserError(
                f"{name}: exchange.steps={self.steps} is more than the {steps} steps of an epoch; "
                f"set exchange.steps to at most {steps}."
            )

    def schedule(self, load: Load, network: Network, rule: str = "") -> StepSchedule:
        """Send a round's messages, shared out over its steps, and what ranks tell one another.

        Of the messages what the steps of the overlap take is hidden.
        """
        local, share = self.local(load), 1 / self.steps
        if network.ranks == 1:
            return StepSchedule(finish_s=local.base_s * share)
        gather, trace = network.price("all_gather"), load.trace
        price = network.price("all_reduce") if self.whole else gather
        size, times = self.part_bytes(load.size_bytes // 4, network.ranks), 2 - self.whole
        once = price(size).scaled(times)
        step_s = load.pieces * (trace.forward_s + sum(trace.backward_s)) + trace.update_s
        waited = share * max(0.0, 1 - self.overlap * step_s / max(once.alone_s, 1e-12))
        message = after_backward(
            load,
            round(times * size * share),
            replace(once.scaled(waited), cpu_s=once.cpu_s * share),
            before_s=local.base_s * share,
        )
        agreed = gather(AGREED_BYTES)
        agreement = replace(agreed.scaled(share), cpu_s=agreed.cpu_s * share)
        return StepSchedule(
            (after_backward(load, round(AGREED_BYTES * share), agreement), message),
            serial=True,
            spread=price.spread,
            local_spread=local.spread,
            measured=price.measured,
        )

    def memory_bytes(self, load: Load, network: Network) -> int:
        """Count the weights before the round, residual, change, momentum, and the overlap's."""
        return (3 + bool(self.outer_momentum) + 2 * bool(self.overlap)) * load.size_bytes

    def saved_bytes(self, load: Load, network: Network) -> int:
        """Count the same, but this rank's weights instead of the change."""
        return self.memory_bytes(load, network)

    @property
    def whole(self) -> bool:
        """Whether everything is sent as it is, so that ranks sum it."""
        return self.density == 1 and self.bits == 32

    @property
    def sent(self) -> int:
        """Number of elements of a chunk that are sent."""
        return math.ceil(self.density * CHUNK)

    def part_elements(self, elements: int, ranks: int) -> int:
        """Return the elements of a rank's part: whole chunks."""
        return math.ceil(math.ceil(elements / CHUNK) / ranks) * CHUNK

    def part_bytes(self, elements: int, ranks: int) -> int:
        """Return the bytes of a message: head, places (or a mask), values, two numbers a chunk.

        A rank sends one to each peer, of the peer's part of the elements, and then one to all, of
        its own part.
        """
        if self.whole:
            return 4 * elements
        chunks, k = self.part_elements(elements, ranks) // CHUNK, self.sent
        places = 0 if k == CHUNK else min(INDEX_BITS * k, CHUNK)
        scales = 0 if self.bits == 32 else 4
        return (
            HEAD_BYTES
            + math.ceil(chunks * places / 8)
            + math.ceil(chunks * k * self.bits / 8)
            + (chunks * scales)
        )
