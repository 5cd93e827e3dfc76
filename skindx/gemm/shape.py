"""The shape of a product C = A B^T, with A m x k and B n x k, and what a tree sees of it."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

Feature = Literal["m", "n", "k", "blocks", "m_over_n", "n_over_k", "dtype", "threads"]
"""Sizes and their ratios as logarithms to base 2; the dtype as its place in `DTYPES`."""
Dtype = Literal["float32", "bfloat16", "float16"]

FEATURES: tuple[Feature, ...] = get_args(Feature)
DTYPES: tuple[Dtype, ...] = get_args(Dtype)


@dataclass(frozen=True, slots=True)
class Shape:
    """`blocks` such products in a stack, or a single one of matrices (0), on so many threads."""

    m: int
    n: int
    k: int
    blocks: int = 0
    dtype: Dtype = "float32"
    threads: int = 1

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.n * self.k * max(1, self.blocks)

    @property
    def matrices(self) -> tuple[int, int, int, int]:
        """The shape alone: m, n, k, blocks."""
        return self.m, self.n, self.k, self.blocks

    def features(self) -> dict[Feature, float]:
        """Return the value of each feature; sizes are at least 1."""
        m, n, k = math.log2(self.m), math.log2(self.n), math.log2(self.k)
        return {
            "m": m,
            "n": n,
            "k": k,
            "blocks": math.log2(self.blocks) if self.blocks else -1.0,
            "m_over_n": m - n,
            "n_over_k": n - k,
            "dtype": float(DTYPES.index(self.dtype)),
            "threads": float(self.threads),
        }
