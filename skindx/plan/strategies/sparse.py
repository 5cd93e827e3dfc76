"""Base of the sparse exchanges: k elements of 8 bytes a rank, selected after backward."""

import math
from abc import abstractmethod
from typing import Any, ClassVar

from skindx.core.cost.network import Network, Timed
from skindx.core.cost.step import Schedule
from skindx.plan.strategies.strategy import Load, Strategy, after_backward

DENSITY = 0.001


class SparseStrategy(Strategy):
    """Select, agree, and keep what was not sent; priced at the density after the warm-up."""

    lossy: ClassVar[bool] = True

    @property
    def density(self) -> float:
        """Share of the elements that is sent."""
        return float(self.options.get("density", DENSITY))

    @abstractmethod
    def agree(self, size_bytes: int, network: Network) -> tuple[Timed, int, float, bool]:
        """Return what messages of one size take, merges a rank, spread; and: it was measured."""

    def schedule(self, load: Load, network: Network) -> Schedule:
        """Send one message, or one a round, after all of backward."""
        if network.ranks == 1:
            return Schedule(finish_s=load.local(self.name).base_s)
        k = math.ceil(self.density * load.size_bytes / 4)
        timed, merges, spread, measured = self.agree(8 * k, network)
        local = load.local(self.name)
        merge_s = merges * local.merge_s * self.density / (local.density or DENSITY)
        message = after_backward(load, 8 * k, timed, before_s=local.base_s, after_s=merge_s)
        return Schedule((message,), spread=spread, local_spread=local.spread, measured=measured)

    def fragment(self) -> dict[str, Any]:
        """Name the kind; clipping would cut what an update has saved up."""
        return {
            "exchange": {"kind": self.name, **self.options},
            "engine": {"zero": 0, "gradient_clip": 0.0},
        }

    def memory_bytes(self, load: Load, network: Network, images: int) -> int:
        """Count the residual."""
        return load.size_bytes
