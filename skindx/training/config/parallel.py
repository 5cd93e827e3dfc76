"""How the ranks of one training share out its network, by `engine.parallel.kind`."""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from skindx.core.settings_base import Settings


class ParallelSettings(Settings):
    """Parallel form: the part of the network that each rank holds; kinds have own settings."""

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
    min_weights: Annotated[int, Field(ge=1, le=10**12)] | Literal["auto"] = "auto"
    """Split layers with at least so many weights; auto: those whose gradients would be more bytes
    than what goes in and out of them for a whole batch."""
    scheme: Literal["a", "b", "c"] = "a"
    """How the batch meets a split layer (section 4 of the paper): a: all at once; b: one rank's
    images after the other; c: a part of each rank's images after the other. In b and c the next
    images are sent while the last are computed."""


class TensorSettings(ParallelSettings):
    """Attention and MLPs of transformers are split over groups of ranks.

    Megatron-LM (Shoeybi et al. 2019, arXiv 1909.08053, section 3): each rank of a group computes
    some heads and some hidden units for the images of the whole group.
    """

    kind: Literal["tensor"] = "tensor"
    size: int = Field(2, ge=2, le=4096)
    """Ranks of a group, which follow each other; the number of ranks is a multiple of it."""


class ModelSettings(ParallelSettings):
    """Layers are placed in stages, a rank each: a pipeline of micro-batches.

    GPipe (Huang et al. 2019, arXiv 1811.06965, section 2): all micro-batches of a step go forward
    before the first goes backward, and the weights move once.
    """

    kind: Literal["model"] = "model"
    stages: int = Field(2, ge=2, le=4096)
    """Ranks of a pipeline, which follow each other; the number of ranks is a multiple of it."""
    micro_batches: Annotated[int, Field(ge=1, le=10**6)] | Literal["auto"] = "auto"
    """Parts of a pipeline's images that are under way at once; auto: four a stage, of two images or
    more."""
    starts: tuple[str, ...] = ()
    """A layer of each stage but the first, where it begins; none: stages of equal operations."""

    @model_validator(mode="after")
    def _one_a_stage(self) -> Self:
        if self.starts and len(self.starts) != self.stages - 1:
            raise ValueError(
                f"starts names {len(self.starts)} layers, and {self.stages} stages have "
                f"{self.stages - 1} borders; name a layer for each stage but the first, or none"
            )
        return self


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


class OperatorsSettings(ParallelSettings):
    """Each linear layer or convolution is split over as many ranks as it says, or data-parallel.

    `skindx plan` finds such an assignment (FlexFlow: Jia et al. 2018, arXiv 1807.05358); a layer
    is split by its outputs, as under owt, among groups of neighbours.
    """

    kind: Literal["operators"] = "operators"
    degrees: dict[str, Annotated[int, Field(ge=2, le=4096)]] = Field(min_length=1)
    """Layers by name -> ranks that share out their outputs, which divide the number of ranks; all
    others are data-parallel."""


PARALLEL: tuple[type[ParallelSettings], ...] = (
    DataSettings,
    OwtSettings,
    TensorSettings,
    ModelSettings,
    Tensor3dSettings,
    OperatorsSettings,
)
"""Settings of every kind."""

if TYPE_CHECKING:
    AnyParallel = ParallelSettings
else:
    AnyParallel = Annotated[reduce(or_, PARALLEL), Field(discriminator="kind")]
