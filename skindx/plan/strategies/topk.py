"""Top-k: every rank gets every other's largest elements."""

from skindx.core.cost.network import Network, Timed
from skindx.plan.strategies.sparse import SparseStrategy


class TopK(SparseStrategy):
    """`exchange.kind: topk`."""

    name = "topk"

    def agree(self, size_bytes: int, network: Network) -> tuple[Timed, int, float, bool]:
        """Gather all ranks' messages."""
        price = network.price("all_gather")
        return price(size_bytes), network.ranks - 1, price.spread, price.measured
