"""A decision tree over the shape of a product A B^T: directly (NT) or by a transposed copy of B."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

Feature = Literal["m", "n", "k", "blocks", "m_over_n", "n_over_k", "dtype", "threads"]
"""Sizes and their ratios as logarithms to base 2; the dtype as its place in `DTYPES`."""
Dtype = Literal["float32", "bfloat16", "float16"]
Device = Literal["cpu", "cuda"]
FEATURES: tuple[Feature, ...] = get_args(Feature)
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
MOST_THREADS = 4096


@dataclass(frozen=True, slots=True)
class ProductShape:
    """`blocks` such products in a stack, or a single one of matrices (0), on so many threads."""

    m: int
    n: int
    k: int
    blocks: int = 0
    dtype: Dtype = "float32"
    threads: int = 1

    @property
    def operations(self) -> int:
        return 2 * self.m * self.n * self.k * max(1, self.blocks)

    @property
    def matrices(self) -> tuple[int, int, int, int]:
        """The shape alone: m, n, k, blocks."""
        return self.m, self.n, self.k, self.blocks

    def features(self) -> dict[Feature, float]:
        """Return the value of each feature; sizes are at least 1."""
        m, n, k = math.log2(self.m), math.log2(self.n), math.log2(self.k)
        blocks = math.log2(self.blocks) if self.blocks else -1.0
        dtype, threads = float(DTYPES.index(self.dtype)), float(self.threads)
        return dict(zip(FEATURES, (m, n, k, blocks, m - n, n - k, dtype, threads), strict=True))


@dataclass(frozen=True)
class TreeLeaf:
    """What is done with shapes that come here."""

    transposed: bool
    """True: by a transposed copy; False: NT."""
    products: int
    """Timed products that came here."""
    gain: float
    """Mean over them of log(time of NT / time with the copy)."""


@dataclass(frozen=True)
class TreeSplit:
    """Shapes whose feature is at most `at` go on at the node `below`, others at `above`."""

    feature: Feature
    at: float
    below: int
    above: int


@dataclass(frozen=True)
class ShapeTree:
    """Nodes, the root first. Shapes outside of what was timed are left to NT."""

    nodes: tuple[TreeSplit | TreeLeaf, ...]
    dtypes: tuple[Dtype, ...]
    least: dict[Feature, float]
    most: dict[Feature, float]
    """Of each feature, among the products that were timed."""

    @property
    def always_nt(self) -> bool:
        """True where no shape is multiplied by a transposed copy."""
        return not any(isinstance(node, TreeLeaf) and node.transposed for node in self.nodes)

    @property
    def leaves(self) -> int:
        return sum(isinstance(node, TreeLeaf) for node in self.nodes)

    def transposes(self, shape: ProductShape) -> bool:
        """Return whether a product of this shape is to be computed by a transposed copy."""
        values = shape.features()
        timed = all(self.least[name] <= values[name] <= self.most[name] for name in FEATURES)
        if shape.dtype not in self.dtypes or not timed:
            return False
        node = self.nodes[0]
        while isinstance(node, TreeSplit):
            node = self.nodes[node.below if values[node.feature] <= node.at else node.above]
        return node.transposed
