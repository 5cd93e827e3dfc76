"""Base of the strategies that split layers over ranks: `engine.parallel`."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from skindx.comm.fused import FusedSettings
from skindx.core.cost.cells import Cell, chain_of
from skindx.core.cost.events import Flow
from skindx.core.cost.network import UNMEASURED, Network, Timed
from skindx.core.cost.placing import Ground
from skindx.core.cost.pricing import Load, Strategy
from skindx.core.cost.step import Schedule
from skindx.core.errors import UserError
from skindx.core.settings_base import Settings


class ParallelForm(Strategy):
    """Layers are shared out over ranks, and not their images alone."""

    parallel: ClassVar[bool] = True

    def ground(self, load: Load, network: Network) -> Ground:
        """Return what operators are placed on. Raises UserError for a single rank."""
        if network.ranks < 2:
            raise UserError(f"{self.name} shares layers out over ranks, and there is only one.")
        return Ground(load.profile, network, load.images, load.factor, load.pieces)

    def fragment(self) -> dict[str, Any]:
        """Name the kind."""
        own = {key: value for key, value in self.options.items() if key != "wire"}
        wire = {"wire": self.options["wire"]} if "wire" in self.options else {}
        return {
            "exchange": {"kind": "fused", **wire},
            "engine": {"zero": 0, "parallel": {"kind": self.name, **own}},
        }

    def found(self, flows: Sequence[Flow]) -> dict[str, Any]:
        """Return what a search has found, as settings of the kind; `flows` are the members'."""
        return {}

    @property
    def lossy(self) -> bool:  # type: ignore[override]
        """16 bits round the sums of gradients on their way."""
        return self.options.get("wire") == "bf16"


class PlacedForm(ParallelForm):
    """All ranks alike: each operator is data-parallel, or split over some of them."""

    def schedule(self, load: Load, network: Network) -> Schedule:
        """Return the cells of a step as a flow. Raises UserError where the network has none."""
        ground, cells = self._placed(load, network)
        half = self.lossy

        def summed(split: int, size_bytes: int) -> Timed:
            return ground.summed(split, size_bytes // 2 if half else size_bytes)

        own_s = own_s_per_byte(load, cast=half)
        return Schedule(
            flow=chain_of(cells, summed, own_s),
            spread=max(UNMEASURED, network.price("all_reduce").spread),
            local_spread=FusedSettings().local(load).spread,
            measured=False,
        )

    def _placed(self, load: Load, network: Network) -> tuple[Ground, Sequence[Cell]]:
        key = (self.label, network.nodes, network.per_node)
        if key not in load.memo:
            ground = self.ground(load, network)
            load.memo[key] = (ground, self.cells(ground, own_s_per_byte(load)))
        found: tuple[Ground, Sequence[Cell]] = load.memo[key]
        return found

    @abstractmethod
    def cells(self, ground: Ground, own_s_per_byte: float) -> Sequence[Cell]:
        """Return the operators as they are placed. Raises UserError where none can be."""

    def more_bytes(self, ground: Ground, cells: Sequence[Cell]) -> float:
        """Return what a rank keeps for backward beside its own images' activations, an image."""
        return 0.0

    def memory_bytes(self, load: Load, network: Network, images: int) -> int:
        """Count activations of others' images, less the weights that other ranks hold."""
        ground, cells = self._placed(load, network)
        held = sum(cell.weight_bytes for cell in cells) / max(1, load.profile.parameter_bytes)
        return round(images * self.more_bytes(ground, cells) - not_held_bytes(load, held))


def own_s_per_byte(load: Load, *, cast: bool = False) -> float:
    """Return what a byte of weights takes: the update, and copies into the gradients' buffer.

    With `cast` its gradient is made 16 bits and back.
    """
    local_s = FusedSettings().local(load).base_s + (load.cast().base_s if cast else 0.0)
    return (load.trace.update_s + local_s) / max(1, load.profile.parameter_bytes)


def not_held_bytes(load: Load, held: float) -> float:
    """Return what a rank saves of weights, gradients and optimizer when it holds a part of them."""
    own = load.profile
    return (1 - held) * (2 * own.parameter_bytes + own.optimizer_bytes)


# How the ranks of one training share out its network, by `engine.parallel.kind`.


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
