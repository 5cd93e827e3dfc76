"""The workload of a plan: members, their images and epochs, and the given settings."""

from dataclasses import dataclass

from skindx.planning.profile import Profile
from skindx.planning.second_order import Kfac


@dataclass(frozen=True)
class Member:
    """One member of the ensemble."""

    name: str
    profile: Profile
    batch: int
    """Images of a step over all ranks."""
    accumulate: int = 1
    epochs: int = 1
    images: int = 0
    """Training images; 0: not known, and only steps are priced."""
    validation: int = 0
    kfac: Kfac | None = None
    """Its `recipe.preconditioner`."""
    whole_layers: bool = False
    """Its settings need all of a layer on each rank."""
    layer_norms: bool = False
    """Its optimizer goes by the norms of layers, which ZeRO's flat pieces do not have."""


@dataclass(frozen=True)
class Workload:
    """All members, in the order in which they are trained."""

    members: tuple[Member, ...]
    weak: bool = False
    """Each rank has `batch` images, however many ranks there are; else all ranks share them."""
    unpriced: tuple[str, ...] = ()
    """Further work of a training, in sentences."""
