"""Hierarchical all-reduce: inside the nodes, across their first ranks, inside the nodes."""

from typing import Any

from skindx.core.cost.network import Network
from skindx.plan.strategies.bucketed import Bucketed


class Hierarchical(Bucketed):
    """`exchange.kind: hierarchical` (Jia et al. 2018, arXiv 1807.11205)."""

    name = "hierarchical"
    kind = "hierarchical"
    usual_chunks = 8

    def fits(self, network: Network) -> bool:
        """Only where ranks share a node, and there are several."""
        return network.nodes > 1 and network.per_node > 1

    def fragment(self) -> dict[str, Any]:
        """Name the kind."""
        return super().fragment()
