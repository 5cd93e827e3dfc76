"""Axes of a mesh of ranks: who is on one, over which links, and what a collective takes there."""

from dataclasses import dataclass, replace

from skindx.planning.network import UNMEASURED, Network, Timed


@dataclass(frozen=True)
class Axis:
    """Ranks `stride` apart. All groups of an axis send at once, and share the links of a node."""

    network: Network
    """Of the ranks of one group."""
    sharing: int
    """Groups that send over the same node's link."""

    @property
    def ranks(self) -> int:
        """Of one group."""
        return self.network.ranks

    @property
    def measured(self) -> bool:
        """The collectives were measured among as many ranks of as many nodes."""
        return self.ranks == 1 or self.network.price("all_gather").measured

    @property
    def spread(self) -> float:
        """How sure a collective is: standard deviation over the mean."""
        if self.ranks == 1:
            return 0.0
        known = self.network.price("all_gather").spread
        return known if self.sharing == 1 else max(known, UNMEASURED)

    def all_gather(self, message_bytes: float) -> Timed:
        """Every rank gets the message of every other rank: (P - 1) messages come in."""
        return self._shared("all_gather", message_bytes)

    def reduce_scatter(self, message_bytes: float) -> Timed:
        """The mirror of a gather: every rank sends each other one its part, and sums what comes."""
        return self._shared("all_gather", message_bytes)

    def all_reduce(self, size_bytes: float) -> Timed:
        """Every rank gets the sum of a buffer."""
        return self._shared("all_reduce", size_bytes)

    def broadcast(self, size_bytes: float) -> Timed:
        """Every rank gets the buffer of one: along a tree with gloo, else along a chain in pieces.

        Never measured: from the link of two ranks.
        """
        if self.ranks == 1 or size_bytes <= 0:
            return Timed(0.0, 0.0)
        link = self.network.between if self.network.nodes > 1 else self.network.inside
        rounds = (self.ranks - 1).bit_length()
        gloo = self.network.cluster.backend == "gloo"
        wire_s = link.beta_s_per_byte * size_bytes * self.sharing
        return Timed(
            link.alpha_s * (rounds if gloo else self.ranks - 1), wire_s * (rounds if gloo else 1)
        )

    def _shared(self, collective: str, size_bytes: float) -> Timed:
        if self.ranks == 1 or size_bytes <= 0:
            return Timed(0.0, 0.0)
        timed = self.network.price(collective)(size_bytes)  # type: ignore[arg-type]
        return replace(timed, wire_s=timed.wire_s * self.sharing)


def axis_of(network: Network, ranks: int, stride: int = 1) -> Axis:
    """Return the axis on which `ranks` ranks lie `stride` apart, of neighbours that share nodes.

    Ranks are numbered node by node. Where a group leaves its node, as many groups as the node has
    ranks in different ones send over its link at the same time.
    """
    per_node = network.per_node
    if ranks == 1:
        return Axis(_part(network, 1, 1), 1)
    if stride * ranks <= per_node:  # inside a node
        return Axis(_part(network, 1, ranks), 1)
    here = max(1, per_node // stride)
    return Axis(_part(network, -(-ranks // here), here), max(1, per_node // here))


def _part(network: Network, nodes: int, per_node: int) -> Network:
    if (nodes, per_node) == (network.nodes, network.per_node):
        return network
    return Network(network.cluster, nodes, per_node)
