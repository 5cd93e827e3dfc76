"""How one member is optimised: the part of the settings that decides its weights."""

from typing import Literal

from pydantic import Field

from skindx.config import Settings


class Augment(Settings):
    """Random changes of a training picture, drawn anew in each epoch."""

    scale: tuple[float, float] = (0.5, 1.0)
    """Smallest and largest share of the picture that the random crop shows."""
    flip: bool = True
    """Mirror and quarter turns: skin has no upright."""
    colour: float = Field(0.15, ge=0, le=0.5)
    """Strength of the change of brightness, contrast and saturation; hue by a tenth of it."""


class Recipe(Settings):
    """How one member is optimised."""

    epochs: int = Field(12, ge=1)
    batch: int = Field(32, ge=2)
    """Pictures a step, over all ranks."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float = Field(1e-3, gt=0)
    head_learning_rate: float | None = Field(None, gt=0)
    """Rate of the new head when the body starts from given weights; none: the same."""
    weight_decay: float = Field(0.05, ge=0)
    warmup_epochs: float = Field(1.0, ge=0)
    """The rate climbs linearly for so long, then falls along a cosine to zero."""
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    class_weights: Literal["none", "sqrt", "balanced"] = "none"
    """Weigh rare classes up: balanced = N / (C n_c), sqrt = its square root."""
    augment: Augment = Augment()
