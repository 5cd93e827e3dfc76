"""Settings of the bench of frameworks."""

from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field

from skindx.core.settings_base import Settings

ArmName = Literal[
    "plain",
    "ddp",
    "fsdp2",
    "deepspeed",
    "skindx dense",
    "skindx fused",
    "skindx factored",
    "skindx gtopk",
    "fabric",
    "jax",
    "tensorflow",
]


class Config(Settings):
    """The same training by each framework, each rank in a network namespace of its own."""

    arms: tuple[ArmName, ...] = Field(get_args(ArmName), min_length=1)
    networks: tuple[Literal["alexnet", "googlenet", "resnet50", "mobilenetv2"], ...] = Field(
        ("alexnet", "googlenet", "resnet50", "mobilenetv2"), min_length=1
    )
    ranks: int = Field(4, ge=1, le=16)
    """Of each framework, one a node."""
    fewer_ranks: tuple[Annotated[int, Field(ge=1, le=16)], ...] = (1, 2)
    """For scaling; each divides `ranks`."""
    rate_mbit: float = Field(1000, gt=0)
    """Of each rank's link."""
    batch: int = Field(8, ge=1)
    """Images of a rank in a step, at `ranks` and in weak scaling."""
    side: int = Field(64, ge=32)
    classes: int = Field(10, ge=2)
    rounds: int = Field(3, ge=2)
    """Turns of each framework; in each it sets the network up again."""
    steps: int = Field(3, ge=1)
    """Timed in each round, after one that is not."""
    loss_steps: int = Field(10, ge=2)
    """Of the round before, in which losses are compared; not timed."""
    opening: bool = True
    """Start each framework once alone, for its time to the first step and its memory."""
    learning_rate: float = Field(0.0001, gt=0)
    """Small: rounding alone moves the losses of ResNet-50 apart at 0.001, on few images a rank."""
    tolerance: float = Field(1e-5, gt=0)
    """Relative difference up to which two losses are equal; gTop-k's is larger on each network."""
    density: float = Field(0.001, gt=0, le=1)
    """Of gTop-k."""
    shrink: int = Field(1, ge=1)
    """Divides the widths of all networks, for tests."""
    environments: Path | None = None
    """Folder of the other frameworks' environments; none: `skindx/frameworks` in the user's cache.

    What is missing there is installed from the package index.
    """
    limit_s: float = Field(600, gt=0)
    """Seconds after which a framework that gives no answer is left out."""
    kept: Path | None = None
    """A file of all turns: a run with the same one goes on from there, also with other arms and
    networks."""
    html: Path | None = None
