"""Settings of the hop bench."""

from typing import Literal

from pydantic import Field

from skindx.core.settings_base import Settings


class Config(Settings):
    """`members` equal members on as many `ranks`, each rank in a network namespace of its own."""

    parts: tuple[Literal["cluster", "makespan"], ...] = ("cluster", "makespan")
    model: str = "mobilenetv2_100"
    size: int = Field(96, ge=32)
    batch: int = Field(32, ge=2)
    images: int = Field(2560, ge=16)
    """Of the training split."""
    validation: int = Field(256, ge=4)
    members: int = Field(4, ge=1)
    ranks: int = Field(4, ge=2, le=16)
    rate_mbit: float = Field(100, gt=0)
    """Of each rank's link, and of the storage's."""
    epochs: int = Field(2, ge=1)
    """Of a hopping run; its time is divided by them."""
    rounds: int = Field(3, ge=2)
    density: float = Field(0.001, gt=0, le=1)
    """Of gTop-k."""
    makespan_members: int = Field(8, ge=1)
    makespan_model: str = "test_resnet"
    makespan_epochs: int = Field(3, ge=1)
    makespan_images: int = Field(2560, ge=16)
    simulations: int = Field(200, ge=2)
