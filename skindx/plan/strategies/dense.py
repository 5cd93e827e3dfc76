"""DeepSpeed's own reduction: one buffer, after backward."""

from typing import Any

from skindx.core.cost.network import Network
from skindx.core.cost.step import Schedule
from skindx.plan.strategies.strategy import Load, Strategy, after_backward


class Dense(Strategy):
    """`exchange.kind: dense` under ZeRO 0."""

    name = "dense"

    def schedule(self, load: Load, network: Network) -> Schedule:
        """Copy into one buffer, sum it, copy back."""
        if network.ranks == 1:
            return Schedule()
        price, local = network.price("all_reduce"), load.local("dense")
        message = after_backward(
            load,
            load.size_bytes,
            price(load.size_bytes),
            before_s=local.base_s / 2,
            after_s=local.base_s / 2,
        )
        return Schedule(
            (message,), spread=price.spread, local_spread=local.spread, measured=price.measured
        )

    def fragment(self) -> dict[str, Any]:
        """Name the kind."""
        return {"exchange": {"kind": "dense"}, "engine": {"zero": 0}}

    def memory_bytes(self, load: Load, network: Network, images: int) -> int:
        """Count the one buffer."""
        return load.size_bytes if network.ranks > 1 else 0
