"""A small decision tree over the shape of a product, as plain values that a JSON file holds."""

from typing import Self

from pydantic import Field, model_validator

from skindx.core.settings_base import Settings
from skindx.gemm.shape import FEATURES, Dtype, Feature, Shape

MOST_NODES = 63
MOST_THREADS = 4096


class Leaf(Settings):
    """What is done with shapes that come here."""

    transposed: bool
    """True: by a transposed copy; False: NT."""
    products: int = Field(ge=0)
    """Timed products that came here."""
    gain: float
    """Mean over them of log(time of NT / time with the copy)."""


class Split(Settings):
    """Shapes whose feature is at most `at` go on at the node `below`, others at `above`."""

    feature: Feature
    at: float
    below: int = Field(ge=1)
    above: int = Field(ge=1)


class Tree(Settings):
    """Nodes, the root first. Shapes outside of what was timed are left to NT."""

    nodes: tuple[Split | Leaf, ...] = Field(min_length=1, max_length=MOST_NODES)
    dtypes: tuple[Dtype, ...] = Field(min_length=1)
    least: dict[Feature, float]
    most: dict[Feature, float]
    """Of each feature, among the products that were timed."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        reached = [0]
        for number, node in enumerate(self.nodes):
            if isinstance(node, Split):
                if min(node.below, node.above) <= number:
                    raise ValueError("a node of the tree leads back")
                reached += [node.below, node.above]
        if sorted(reached) != list(range(len(self.nodes))):
            raise ValueError("the nodes are no tree")
        for bounds in (self.least, self.most):
            if set(bounds) != set(FEATURES):
                raise ValueError("least and most must name every feature")
        if any(self.least[name] > self.most[name] for name in FEATURES):
            raise ValueError("least is above most")
        if self.most["threads"] > MOST_THREADS:
            raise ValueError(f"no machine has more than {MOST_THREADS} threads")
        return self

    @property
    def always_nt(self) -> bool:
        """True where no shape is multiplied by a transposed copy."""
        return not any(isinstance(node, Leaf) and node.transposed for node in self.nodes)

    @property
    def leaves(self) -> int:
        """How many leaves it has."""
        return sum(isinstance(node, Leaf) for node in self.nodes)

    def transposes(self, shape: Shape) -> bool:
        """Return whether a product of this shape is to be computed by a transposed copy."""
        if shape.dtype not in self.dtypes:
            return False
        values = shape.features()
        if any(not self.least[name] <= values[name] <= self.most[name] for name in FEATURES):
            return False
        node = self.nodes[0]
        while isinstance(node, Split):
            node = self.nodes[node.below if values[node.feature] <= node.at else node.above]
        return node.transposed
