"""Hierarchical: sum inside each node, then across nodes, then send back, chunk after chunk."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from skindx.comm.exchange_settings import BucketedSettings
from skindx.core.cost.collectives import Cost, pipelined, ring
from skindx.core.cost.pricing import Network, Price
from skindx.core.cost.profile import Profile
from skindx.core.errors import UserError

PAPER = (
    "Hierarchical all-reduce and large batches | Jia et al., Highly Scalable Deep Learning "
    "Training System with Mixed-Precision, arXiv 1807.11205, 2018 | "
    "tests/comm/test_exchanges.py | docs/measured/exchange.json"
)


class HierarchicalSettings(BucketedSettings):
    """Sums inside each node, then across nodes, then sends back, chunk after chunk.

    Hierarchical all-reduce (Jia et al. 2018, arXiv 1807.11205), pipelined.
    """

    kind: Literal["hierarchical"] = "hierarchical"
    ranks_per_node: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] = "auto"
    """Neighbouring ranks that share a network link; auto: those of one host name."""
    chunks: int = Field(8, ge=1, le=4096)
    """Pieces of a bucket that follow one another through the phases; without them a ring wins."""
    bucket_mb: float = Field(25, gt=0, le=100_000)
    """Tensors are sent together, once backward has made so much."""

    code: ClassVar[str] = "skindx.comm.bucketed_exchange:Hierarchical"
    local_s_per_element: ClassVar[float] = 0.3e-9
    collective: ClassVar[str] = "hierarchical"

    def check_ranks(self, ranks: int, per_host: int | None) -> None:
        """Refuse ranks that make no two levels."""
        wanted = self.ranks_per_node
        if wanted == "auto":
            if per_host != ranks:
                return
            count = "the only rank is" if ranks == 1 else f"all {ranks} ranks are"
            raise UserError(
                f"exchange.kind=hierarchical needs ranks on several hosts, but {count} on one "
                "host; set exchange.ranks_per_node to the number of ranks with a fast link "
                "between them, or set exchange.kind=dense."
            )
        if ranks % wanted:
            what = "more than" if wanted > ranks else "not a divisor of"
            raise UserError(
                f"exchange.ranks_per_node={wanted} is {what} the number of ranks ({ranks}); set "
                "it to the number of ranks that share a network link, or set exchange.kind=dense."
            )

    def price(self, network: Network) -> Price:
        """Return what its three phases take, as measured or by their links."""
        return network.price("hierarchical", self._line, f"{self.chunks} chunks")

    def _line(self, network: Network) -> Cost:
        inside = _inside_sum(network.inside, network.per_node)
        return pipelined([inside, ring(network.between, network.nodes), inside], self.chunks)

    def differs(self, nodes: int, per_node: int, networks: Sequence[tuple[Profile, int]]) -> bool:
        """Return whether ranks share a node and there are several nodes."""
        return nodes > 1 and per_node > 1

    @classmethod
    def probed(cls, nodes: int, per_node: int) -> Self | None:
        return cls(ranks_per_node=per_node) if nodes > 1 and per_node > 1 else None


def _inside_sum(inside: Cost, ranks: int) -> Cost:
    """Sum to one rank of a node, or send back from it: as along a chain, piece after piece."""
    return Cost((ranks - 1) * inside.alpha_s, inside.beta_s_per_byte if ranks > 1 else 0.0)
