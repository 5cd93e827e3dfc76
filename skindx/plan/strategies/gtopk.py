"""gTop-k: the k largest elements of the sum, merged along a butterfly."""

from skindx.core.cost.network import Network, Timed
from skindx.plan.strategies.sparse import SparseStrategy


class GTopK(SparseStrategy):
    """`exchange.kind: gtopk` (Shi et al. 2019, arXiv 1901.04359, as a butterfly)."""

    name = "gtopk"

    def agree(self, size_bytes: int, network: Network) -> tuple[Timed, int, float, bool]:
        """Swap with one partner a round; ranks beyond a power of two take two rounds more."""
        price = network.price("exchange")
        rounds = network.ranks.bit_length() - 1
        rounds += 2 if network.ranks > 1 << rounds else 0
        once = price(size_bytes)
        timed = Timed(rounds * once.latency_s, rounds * once.wire_s, rounds * once.cpu_s)
        return timed, rounds, price.spread, price.measured
