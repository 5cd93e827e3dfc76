"""Schedules of the learning rate after its warm-up: settings and arithmetic of each kind."""

import math
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, field_validator

from skindx.core.kinds import Family
from skindx.core.settings_base import Settings

RATE_SCHEDULES = Family(
    "learning-rate schedule",
    "skindx.rate_schedules",
    {
        "cosine": "skindx.training.config.rate_schedules:Cosine",
        "steps": "skindx.training.config.rate_schedules:Steps",
    },
)


class RateSchedule(Settings):
    """How the learning rate of a training goes on after its warm-up."""

    kind: str

    def rate(self, step: int, per_epoch: int, epochs: int, warmup: int, peak: float) -> float:
        """Return the rate of a step, counted from 0, in `epochs` of so many steps each.

        It is `peak` after `warmup` steps.
        """
        raise NotImplementedError


class Cosine(RateSchedule):
    """The rate falls along one half of a cosine (SGDR, Loshchilov and Hutter 2016)."""

    kind: Literal["cosine"] = "cosine"
    minimum: float = Field(0, ge=0, lt=1)
    """Final learning rate, as a share of the peak."""

    def rate(self, step: int, per_epoch: int, epochs: int, warmup: int, peak: float) -> float:
        return rate_at(step, per_epoch * epochs, warmup, peak, peak * self.minimum)


class Steps(RateSchedule):
    """The rate is multiplied by a factor at given epochs."""

    kind: Literal["steps"] = "steps"
    epochs: tuple[Annotated[int, Field(ge=1, le=10**6)], ...]
    """Epochs that are done when it falls."""
    factor: float = Field(0.1, gt=0, lt=1)

    @field_validator("epochs")
    @classmethod
    def _ascending(cls, epochs: tuple[int, ...]) -> tuple[int, ...]:
        if list(epochs) != sorted(set(epochs)):
            raise ValueError("give each epoch once, in ascending order")
        return epochs

    def rate(self, step: int, per_epoch: int, epochs: int, warmup: int, peak: float) -> float:
        fallen: float = self.factor ** sum(step >= epoch * per_epoch for epoch in self.epochs)
        return peak * min(1.0, (step + 1) / max(1, warmup)) * fallen


def rate_at(step: int, steps: int, warmup: int, peak: float, low: float = 0.0) -> float:
    """Return the rate of step 0..steps-1: linear warm-up, then a cosine to `low` (SGDR, 2016)."""
    if step < warmup:
        return peak * ((step + 1) / warmup)
    fall = math.cos(math.pi * (step - warmup) / max(1, steps - warmup))
    return low + (peak - low) * 0.5 * (1 + fall)


if TYPE_CHECKING:
    AnyRateSchedule = RateSchedule
else:
    AnyRateSchedule = RATE_SCHEDULES.union()
