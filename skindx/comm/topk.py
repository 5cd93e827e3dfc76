"""Top-k: every rank gets every other's k largest elements (all-gather) and adds them up."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from skindx.comm.exchange_settings import ExchangeSettings
from skindx.core.cost.pricing import Load, Network, StepSchedule, Timed, after_backward

Density = Annotated[float, Field(gt=0, le=1)]

DENSITY = 0.001


class SparseSettings(ExchangeSettings):
    """Settings of an exchange that sends the largest elements alone."""

    density: Density = DENSITY
    """Share of the gradient's elements that is sent."""
    warmup: tuple[Density, ...] = (0.25, 0.0725, 0.015, 0.004)
    """Density in the first epochs, one each (Lin et al. 2017, arXiv 1712.01887, section 3)."""
    momentum: float = Field(0, ge=0, lt=1)
    """Momentum correction (there, eq. 4): momentum is applied before the selection, so give the
    optimizer none. 0: the optimizer's own momentum."""

    local_s_per_element: ClassVar[float] = 2.5e-9
    shrinks: ClassVar[bool] = True
    # Clipping would cut what an update has saved up.
    engine: ClassVar[Mapping[str, Any]] = {"zero": 0, "gradient_clip": 0.0}

    @property
    def lossy(self) -> bool:
        """Return True: what is not sent now is sent in a later step."""
        return True

    @abstractmethod
    def agree(self, size_bytes: int, network: Network) -> tuple[Timed, int, float, bool]:
        """Return what messages of one size take, merges a rank, spread; and: it was measured."""

    def schedule(self, load: Load, network: Network, rule: str = "") -> StepSchedule:
        """Send one message, or one a round, after all of backward; at the last density."""
        local = self.local(load)
        if network.ranks == 1:
            return StepSchedule(finish_s=local.base_s)
        k = math.ceil(self.density * load.size_bytes / 4)
        timed, merges, spread, measured = self.agree(8 * k, network)
        merge_s = merges * local.merge_s * self.density / (local.density or DENSITY)
        message = after_backward(load, 8 * k, timed, before_s=local.base_s, after_s=merge_s)
        return StepSchedule((message,), spread=spread, local_spread=local.spread, measured=measured)

    def memory_bytes(self, load: Load, network: Network) -> int:
        """Count the residual, and the velocity."""
        return (1 + bool(self.momentum)) * load.size_bytes

    def saved_bytes(self, load: Load, network: Network) -> int:
        return self.memory_bytes(load, network)


class TopKSettings(SparseSettings):
    """Each rank sends its largest elements to all others; the rest is kept and added later.

    Top-k S-SGD (Aji and Heafield 2017, arXiv 1704.05021), with the corrections of Deep Gradient
    Compression (Lin et al. 2017, arXiv 1712.01887).
    """

    kind: Literal["topk"] = "topk"

    code: ClassVar[str] = "skindx.comm.sparse_exchange:TopK"
    local_as: ClassVar[str] = "gtopk"

    def agree(self, size_bytes: int, network: Network) -> tuple[Timed, int, float, bool]:
        price = network.price("all_gather")
        return price(size_bytes), network.ranks - 1, price.spread, price.measured
