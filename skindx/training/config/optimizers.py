"""Kinds of optimizers, and of schedules of their learning rate after its warm-up.

An optimizer says what it reads of a recipe, keeps of a weight, and which code makes it. No torch
here: `tasks/optimizer.py` has the code.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from skindx.core.kinds import Family
from skindx.core.settings_base import Settings

OPTIMIZERS = Family(
    "optimizer",
    "skindx.optimizers",
    {
        "adamw": "skindx.training.config.optimizers:AdamW",
        "sgd": "skindx.training.config.optimizers:Sgd",
        "lars": "skindx.training.config.optimizers:Lars",
        "lamb": "skindx.training.config.optimizers:Lamb",
        "muon": "skindx.training.config.optimizers:Muon",
    },
)


class OptimizerKind:
    """An optimizer of a recipe."""

    builds: ClassVar[str]
    """Code that makes it of a recipe: (groups, recipe, rate) -> class and options."""
    moments: ClassVar[int]
    """Number of copies of the weights that it keeps."""
    reads: ClassVar[tuple[str, ...]] = ()
    """Settings of a recipe that only this optimizer reads."""
    layerwise: ClassVar[bool] = False
    """Whether it adapts its rate to the norm of each layer."""
    linear_rate: ClassVar[bool] = False
    """Whether rates scale with the batch and not its root, as steps are as long as gradients."""
    preconditioned: ClassVar[bool] = True
    """Whether it can take a gradient that was changed after its reduction."""
    matrices: ClassVar[bool] = False
    """Whether it multiplies each layer's gradient, except the last, as one matrix."""

    @classmethod
    def options_of(cls, shape: Sequence[int], *, last: bool) -> dict[str, Any]:
        """Return the options of a weight's group; `last`: it is of a network's last layer."""
        return {"always_adapt": len(shape) > 1} if cls.layerwise else {}


class AdamW(OptimizerKind):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2017, arXiv 1711.05101)."""

    builds = "skindx.training.tasks.optimizer:adamw"
    moments = 2


class Sgd(OptimizerKind):
    """Stochastic gradient descent with Nesterov's momentum."""

    builds = "skindx.training.tasks.optimizer:sgd"
    moments = 1
    reads = ("momentum",)
    linear_rate = True


class Lars(OptimizerKind):
    """Layer-wise adaptive rates (You et al. 2017, arXiv 1708.03888)."""

    builds = "skindx.training.tasks.optimizer:lars"
    moments = 1
    reads = ("momentum", "trust_coefficient")
    layerwise = linear_rate = True


class Lamb(OptimizerKind):
    """Adam with layer-wise adaptive rates (You et al. 2019, arXiv 1904.00962)."""

    builds = "skindx.training.tasks.optimizer:lamb"
    moments = 2
    layerwise = True
    preconditioned = False


def optimizer_kinds() -> dict[str, type[OptimizerKind]]:
    """Return all kinds by name, without entry points that are none."""
    kinds = OPTIMIZERS.loaded().items()
    return {name: kind for name, kind in kinds if issubclass(kind, OptimizerKind)}


def readers_of(setting: str) -> list[str]:
    """Return the kinds that read a setting which others do not."""
    return [name for name, kind in optimizer_kinds().items() if setting in kind.reads]


def special_settings() -> list[str]:
    """Return the settings of a recipe that some kinds alone read."""
    reads = [setting for kind in optimizer_kinds().values() for setting in kind.reads]
    return list(dict.fromkeys(reads))


# Muon: a step along the orthogonalised momentum of each matrix; AdamW for all other weights.
#
# Jordan et al. 2024 (https://kellerjordan.github.io/posts/muon): M = 0.95 M + 0.05 G; five steps of
# Newton and Schulz make all singular values of M nearly 1, by timm's `quintic` coefficients, other
# ones in each step (You 2025, https://leloykun.github.io/ponder/muon-opt-coeffs), not by Jordan's;
# W moves by the rate times 0.2 sqrt(the longer side), which has the root mean square of AdamW's
# steps (Liu et al. 2025, arXiv 2502.16982, section 2.2). timm has the code.

_NARROWEST, _LONGEST = 4, 128
"""Rows or columns at least, and the larger number of them over the smaller one at most."""


class Muon(OptimizerKind):
    """Momentum of each matrix, its singular values made alike (Liu et al. 2025, arXiv 2502.16982).

    Biases, norms, depthwise kernels and the last layer are left to AdamW. A step has the length of
    AdamW's, so that rate, decay and their scaling with the batch are those of AdamW.
    """

    builds = "skindx.training.tasks.optimizer:muon"
    moments = 1  # AdamW keeps one more of the few weights that are left to it
    preconditioned = False
    matrices: ClassVar[bool] = True

    @classmethod
    def options_of(cls, shape: Sequence[int], *, last: bool) -> dict[str, Any]:
        """Leave the last layer, and what is no matrix, to AdamW."""
        return {"use_fallback": last or not is_matrix(shape)}


def is_matrix(shape: Sequence[int]) -> bool:
    """Tell whether weights are a matrix of outputs x inputs, positions of a kernel with the inputs.

    Biases, norms, depthwise kernels (one input each), tokens and position embeddings (one output)
    are none, and what has few rows or columns is not worth it; timm draws the same line.
    """
    if len(shape) < 2 or 1 in shape[:2]:
        return False
    narrow, wide = sorted((shape[0], math.prod(shape[1:])))
    return narrow >= _NARROWEST and wide <= _LONGEST * narrow


RATE_SCHEDULES = Family(
    "learning-rate schedule",
    "skindx.rate_schedules",
    {
        "cosine": "skindx.training.config.optimizers:Cosine",
        "steps": "skindx.training.config.optimizers:Steps",
    },
)


class RateSchedule(Settings):
    """Course of the learning rate after its warm-up."""

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
            raise ValueError("`epochs` must have different epochs in ascending order")
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
