"""gTop-k: the k largest elements of the sum over all ranks, merged along a butterfly."""

from typing import ClassVar, Literal, Self

from skindx.comm.topk import DENSITY, SparseSettings
from skindx.core.cost.pricing import Network, Timed

PAPER = (
    "gTop-k | Shi et al., A Distributed Synchronous SGD Algorithm with Global Top-k "
    "Sparsification for Low Bandwidth Networks, arXiv 1901.04359, 2019 | "
    "tests/comm/test_exchanges.py | docs/measured/exchange.json"
)


class GTopKSettings(SparseSettings):
    """The largest elements of the sum over all ranks, merged in a butterfly.

    gTop-k S-SGD (Shi et al. 2019, arXiv 1901.04359), by recursive doubling.
    """

    kind: Literal["gtopk"] = "gtopk"

    code: ClassVar[str] = "skindx.comm.sparse_exchange:GTopK"

    @classmethod
    def timed(cls) -> Self:
        """Return the density after the warm-up."""
        return cls(density=DENSITY, warmup=())

    def agree(self, size_bytes: int, network: Network) -> tuple[Timed, int, float, bool]:
        """Swap with one partner a round; ranks beyond a power of two take two rounds more."""
        price = network.price("exchange")
        rounds = network.ranks.bit_length() - 1
        rounds += 2 if network.ranks > 1 << rounds else 0
        once = price(size_bytes)
        timed = Timed(rounds * once.latency_s, rounds * once.wire_s, rounds * once.cpu_s)
        return timed, rounds, price.spread, price.measured
