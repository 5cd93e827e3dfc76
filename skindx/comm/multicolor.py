"""Multi-color: parts of the gradient are summed along different trees, all at once."""

from typing import ClassVar, Literal, Self

from pydantic import Field

from skindx.comm.exchange_settings import BucketedSettings
from skindx.core.cost.collectives import Cost, trees
from skindx.core.cost.pricing import Network, Price

PAPER = (
    "Multi-color all-reduce | Kumar et al., Efficient Training of Convolutional Neural Nets "
    "on Large Distributed Systems, arXiv 1711.00705, 2017 | tests/comm/test_trees.py | "
    "docs/measured/exchange.json"
)


class MulticolorSettings(BucketedSettings):
    """Parts of the gradient are summed along different trees, all at once.

    Multi-color all-reduce (Kumar et al. 2017, arXiv 1711.00705): no rank is an internal node of two
    trees.
    """

    kind: Literal["multicolor"] = "multicolor"
    colors: int = Field(2, ge=1, le=4096)
    """Parts and trees; at most as many as ranks are used."""
    chunks: int = Field(4, ge=1, le=4096)
    """Pieces of a part that follow one another along its tree."""
    bucket_mb: float = Field(25, gt=0, le=100_000)
    """Tensors are sent together, once backward has made so much."""

    code: ClassVar[str] = "skindx.comm.bucketed_exchange:Multicolor"
    local_s_per_element: ClassVar[float] = 0.6e-9
    collective: ClassVar[str] = "multicolor"

    def price(self, network: Network) -> Price:
        """Return what its trees take, as measured or by their links."""
        variant = f"{self.colors} colors, {self.chunks} chunks"
        return network.price("multicolor", self._line, variant)

    def _line(self, network: Network) -> Cost:
        return trees(network.step, network.ranks, self.colors, self.chunks)

    @classmethod
    def probed(cls, nodes: int, per_node: int) -> Self | None:
        """Return settings for more than two ranks; two are served as well by a ring."""
        return cls() if nodes * per_node > 2 else None
