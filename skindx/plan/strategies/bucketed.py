"""Exchanges of buckets of a fixed size, one after the other beside backward."""

from typing import Any, ClassVar

from skindx.comm.grouping import fixed_buckets
from skindx.core.cost.cluster import Kind
from skindx.core.cost.network import Network
from skindx.core.cost.step import Schedule
from skindx.plan.strategies.strategy import Load, Strategy, in_groups


class Bucketed(Strategy):
    """Base of `hierarchical` and `multicolor`."""

    kind: ClassVar[Kind]
    usual_chunks: ClassVar[int]

    def schedule(self, load: Load, network: Network) -> Schedule:
        """Send a bucket when it is complete and the one before is through."""
        if network.ranks == 1:
            return Schedule()
        options = self.pricing()
        price, local = network.price(self.kind, **options), load.local(self.name)
        groups = fixed_buckets(load.trace.sizes_bytes, float(self.options.get("bucket_mb", 25)))
        messages = in_groups(load, groups, load.trace.sizes_bytes, network, self.kind, **options)
        return Schedule(
            messages,
            serial=True,
            finish_s=local.base_s,
            spread=price.spread,
            local_spread=local.spread,
            measured=price.measured,
        )

    def pricing(self) -> dict[str, int]:
        """Return what its price depends on."""
        return {"chunks": int(self.options.get("chunks", self.usual_chunks))}

    def fragment(self) -> dict[str, Any]:
        """Name the kind."""
        return {"exchange": {"kind": self.name, **self.options}, "engine": {"zero": 0}}
