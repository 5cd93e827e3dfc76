"""Settings of the parallel forms for transformers: `tensor` and `tensor3d`; no torch here."""

from typing import ClassVar, Literal

from pydantic import Field

from skindx.comm.exchange_kinds import EXCHANGES
from skindx.comm.exchange_settings import ExchangeSettings
from skindx.core.errors import UserError
from skindx.training.forms.parallel_form import ParallelSettings


class TensorSettings(ParallelSettings):
    """Attention and MLPs of transformers are split over groups of ranks.

    Megatron-LM (Shoeybi et al. 2019, arXiv 1909.08053, section 3): each rank of a group computes
    some heads and some hidden units for the images of the whole group.
    """

    kind: Literal["tensor"] = "tensor"
    size: int = Field(2, ge=2, le=4096)
    """Ranks of a group, which follow each other; the number of ranks is a multiple of it."""

    changes_network: ClassVar[str] = "skindx_bench.forms.transformer:split_network"

    def group_size(self, ranks: int) -> int:
        """Return its size. Raises UserError."""
        return _group_of(self.size, ranks, f"size={self.size}")

    @property
    def together(self) -> int:
        """A group sees the images of all its ranks."""
        return self.size

    def check_exchange(self, exchange: ExchangeSettings) -> None:
        """Raise ValueError for one that goes by all gradients, or by all ranks."""
        super().check_exchange(exchange)
        if not exchange.among_peers:
            kinds = EXCHANGES.loaded().items()
            peers = ", ".join(kind for kind, settings in kinds if settings.among_peers)
            raise ValueError(
                f"exchange.kind={exchange.kind} goes by all gradients, or by all ranks, and under "
                f"engine.parallel.kind={self.kind} only ranks with the same parts exchange theirs; "
                f"take one of {peers}"
            )


class Tensor3dSettings(ParallelSettings):
    """Attention and MLPs of transformers, and MLP heads, on cubes of ranks.

    Bian et al. 2021, arXiv 2105.14450: each rank of a cube holds an equal part of both matrices of
    a product, and of what comes out.
    """

    kind: Literal["tensor3d"] = "tensor3d"
    side: int = Field(2, ge=2, le=8)
    """Of a cube, whose side^3 ranks follow each other; the number of ranks is a multiple of it."""
    gather_again: bool = False
    """Gather the parts of both matrices again in the backward pass, instead of keeping them."""

    changes_network: ClassVar[str] = "skindx_bench.forms.cubes:split_network"

    def group_size(self, ranks: int) -> int:
        """Return the ranks of a cube. Raises UserError."""
        size = self.side**3
        return _group_of(size, ranks, f"side={self.side} makes cubes of {size} ranks, which")


def _group_of(size: int, ranks: int, what: str) -> int:
    """Return a group's size. Raises UserError where it does not divide the ranks."""
    if ranks % size:
        raise UserError(
            f"engine.parallel.{what} must divide the number of ranks, which is {ranks}; change "
            f"engine.ranks or engine.parallel.{what.partition('=')[0]}."
        )
    return size
