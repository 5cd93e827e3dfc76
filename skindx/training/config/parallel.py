"""How the ranks of one training share out its network, by `engine.parallel.kind`."""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from skindx.config import Settings


class ParallelSettings(Settings):
    """What ranks hold of the network; each kind has settings of its own."""

    kind: str


class DataSettings(ParallelSettings):
    """Every rank holds the whole network and works on its part of each batch."""

    kind: Literal["data"] = "data"


class OwtSettings(ParallelSettings):
    """One weird trick (Krizhevsky 2014, arXiv 1404.5997): wide linear layers are split over ranks.

    Everything else stays data-parallel. A layer counts as linear when an image passes it once: a
    linear layer on pooled features, or a convolution as large as its map.
    """

    kind: Literal["owt"] = "owt"
    min_weights: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Split layers with at least so many weights; auto: those whose gradients would be more bytes
    than what goes in and out of them for a whole batch."""


class TensorSettings(ParallelSettings):
    """Attention and MLPs of transformers are split over groups of ranks.

    Megatron-LM (Shoeybi et al. 2019, arXiv 1909.08053, section 3): each rank of a group computes
    some heads and some hidden units for the images of the whole group.
    """

    kind: Literal["tensor"] = "tensor"
    size: int = Field(2, ge=2)
    """Ranks of a group, which follow each other; the number of ranks is a multiple of it."""


PARALLEL: tuple[type[ParallelSettings], ...] = (DataSettings, OwtSettings, TensorSettings)
"""Settings of every kind."""

if TYPE_CHECKING:
    AnyParallel = ParallelSettings
else:
    AnyParallel = Annotated[reduce(or_, PARALLEL), Field(discriminator="kind")]
