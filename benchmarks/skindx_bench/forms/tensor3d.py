"""Settings of 3-D tensor parallelism, which no torch needs; its code is in `cubes`."""

from typing import ClassVar, Literal

from pydantic import Field

from skindx.core.errors import UserError
from skindx.training.config.parallel_form import ParallelSettings


class Tensor3dSettings(ParallelSettings):
    """Attention and MLPs of transformers, and MLP heads, on cubes of ranks.

    Bian et al. 2021, arXiv 2105.14450: each rank of a cube holds an equal part of both matrices of
    a product, and of what comes out.
    """

    kind: Literal["tensor3d"] = "tensor3d"
    side: int = Field(2, ge=2, le=8)
    """Of the cube of all ranks, of which there are side^3."""
    gather_again: bool = False
    """Gather the parts of both matrices again in the backward pass, instead of keeping them."""

    changes_network: ClassVar[str] = "skindx_bench.forms.cubes:split_network"

    def check_ranks(self, ranks: int) -> None:
        """Raise UserError for ranks that are no such cube."""
        if ranks != self.side**3:
            raise UserError(
                f"engine.parallel.side={self.side} makes a cube of {self.side**3} ranks, and there "
                f"are {ranks}; start {self.side**3}, or take another side."
            )
