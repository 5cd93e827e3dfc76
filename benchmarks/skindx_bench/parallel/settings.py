"""Settings of the bench of parallel forms."""

from typing import Literal

from pydantic import Field

from skindx.core.settings_base import Settings


class Config(Settings):
    """AlexNet on `ranks`, each in a network namespace of its own."""

    parts: tuple[Literal["speed", "small", "accuracy", "cube"], ...] = (
        "speed",
        "small",
        "accuracy",
        "cube",
    )
    ranks: int = Field(4, ge=2, le=16)
    precision: Literal["fp32", "bf16"] = "fp32"
    """In which all forms compute; weights stay fp32."""
    rate_mbit: float = Field(1000, gt=0)
    """Of each rank's link."""
    batch: int = Field(32, ge=2)
    """Images of a rank in a step."""
    width: int = Field(4096, ge=16)
    """Of the two hidden linear layers."""
    side: int = Field(128, ge=32)
    classes: int = Field(2, ge=2)
    small_side: int = Field(56, ge=32)
    """Side at which convolutions are cheap, and one rank may win."""
    small_classes: int = Field(200, ge=2)
    rounds: int = Field(3, ge=2)
    plan_s: float = Field(30, gt=0)
    """Seconds for the links, and for the times of each network, that a plan is made of."""
    steps: int = Field(3, ge=1)
    """Timed in each round, after one that is not."""
    density: float = Field(0.001, gt=0, le=1)
    """Of gTop-k."""
    rank: int = Field(4, ge=1)
    """Of PowerSGD."""
    epochs: int = Field(8, ge=1)
    """Of the trainings whose accuracy is compared."""
    images: int = Field(2560, ge=32)
    """Painted images to learn from."""
    accuracy_batch: int = Field(16, ge=2)
    """Images of a rank in a step of these trainings."""
    accuracy_width: int = Field(256, ge=16)
    accuracy_side: int = Field(64, ge=32)
    seeds: int = Field(3, ge=2)
    """Trainings of each form."""
    cube_side: Literal[2, 3] = 2
    """Of the cube of ranks: eight, or 27."""
    cube_rows: int = Field(3600, ge=36, multiple_of=36)
    """Images times tokens that two products take."""
    cube_width: int = Field(1008, ge=36, multiple_of=36)
    """Of what goes in, of what is between the two and of what comes out."""
