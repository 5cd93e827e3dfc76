"""How one member is optimised: the part of the settings that decides its weights."""

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from skindx.core.kinds import METHODS, Family
from skindx.core.settings_base import Settings
from skindx.data.loader.settings import Augment
from skindx.models.classifier.head_kinds import Head, LinearHead
from skindx.training.config.method_settings import PreconditionerSettings, name_in
from skindx.training.config.optimizers import (
    OPTIMIZERS,
    AnyRateSchedule,
    Cosine,
    OptimizerKind,
    optimizer_kinds,
    readers_of,
    special_settings,
)

PRECONDITIONERS = Family(
    "preconditioner", "skindx.preconditioners", {}, elsewhere={"kfac": METHODS}
)

if TYPE_CHECKING:
    OptimizerName = str
    AnyPreconditioner = PreconditionerSettings | None
else:
    OptimizerName = name_in(OPTIMIZERS)
    AnyPreconditioner = PRECONDITIONERS.union(optional=True)


# C = classes

SIDE_STEP = 32
"""Networks halve their images up to five times."""


class CrossEntropy(Settings):
    """Cross-entropy."""

    kind: Literal["cross_entropy"] = "cross_entropy"


class Focal(Settings):
    """Focal loss (Lin et al. 2017, arXiv 1708.02002, eq. 4): easy images count less."""

    kind: Literal["focal"] = "focal"
    gamma: float = Field(2.0, ge=0, le=1e3)


class LogitAdjusted(Settings):
    """Logit-adjusted cross-entropy (Menon et al. 2020, arXiv 2007.07314, eq. 10).

    The logits learn what remains when the classes' frequencies are known, so that their largest
    one aims at balanced accuracy.
    """

    kind: Literal["logit_adjusted"] = "logit_adjusted"
    tau: float = Field(1.0, gt=0, le=1e3)


Loss = Annotated[CrossEntropy | Focal | LogitAdjusted, Field(discriminator="kind")]


class Mix(Settings):
    """Blend pairs of images and their labels, by mixup, CutMix or either."""

    mixup: float = Field(0.2, ge=0, le=1e3)
    """Alpha of the Beta distribution that blends whole images; 0: never."""
    cutmix: float = Field(1.0, ge=0, le=1e3)
    """Alpha of the one that sizes the rectangle which changes hands; 0: never."""
    probability: float = Field(1.0, gt=0, le=1)
    """How often a pair is mixed at all."""
    cutmix_share: float = Field(0.5, ge=0, le=1)
    """How often it is by cutmix where both are on."""
    clean_epochs: int = Field(0, ge=0, le=10**6)
    """Number of last epochs in which nothing is mixed in."""

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.mixup and not self.cutmix:
            raise ValueError(
                "mix.mixup or mix.cutmix must be above 0; set one of them, or remove `mix`"
            )
        return self


class Ema(Settings):
    """Validate and keep a moving average of the weights instead of the last ones."""

    decay: float = Field(0.9998, gt=0, lt=1)
    """Share that the average keeps in each step, once it is warm."""
    warmup: bool = True
    """Let the decay climb as 1 - k^(-2/3) over the steps k, so that the start is forgotten."""


class Resize(Settings):
    """Train on small images first: the side grows linearly, in multiples of 32."""

    start: int = Field(ge=32, le=10_000, multiple_of=32)
    """Side in pixels in the first epoch."""
    until: float = Field(0.75, gt=0, le=1)
    """Share of the epochs after which the side is the member's own."""


class Recipe(Settings):
    """How one member is optimised."""

    epochs: int = Field(12, ge=1, le=10**6)
    batch: int = Field(32, ge=2, le=10**7)
    """Images in a step, over all ranks."""
    base_batch: int | None = Field(None, ge=1, le=10**7)
    """Batch for which the learning rates are meant; scaled to `batch`. null: not scaled."""
    accumulate: int = Field(1, ge=1, le=10**6)
    """Number of pieces of each rank's part of a step: more need less memory, for the same gradient.

    Only batch norm sees a difference, which takes its statistics from one piece.
    """
    optimizer: OptimizerName = "adamw"
    """muon takes matrices and kernels, and leaves biases, norms, depthwise kernels and the last
    layer to AdamW, at the same rate and decay; it needs whole layers: `zero: 0`."""
    preconditioner: AnyPreconditioner = None
    """Changes the reduced gradient before the optimizer takes it, by its `kind`.

    adamw then keeps its momentum and decoupled decay, without the second moment, which would undo
    the change."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Nesterov's, of sgd and lars; 0 where an exchange brings momentum of its own."""
    trust_coefficient: float = Field(0.001, gt=0, le=1e3)
    """Eta of lars: a layer's rate is eta |w| / (|g| + weight_decay |w|) of the learning rate."""
    learning_rate: float = Field(1e-3, gt=0, le=1e6)
    head_learning_rate: float | None = Field(None, gt=0, le=1e6)
    """Learning rate of the new head when the body starts from given weights; null: the same."""
    layer_decay: float = Field(1, gt=0, le=1)
    """Each layer below the head learns by this factor more slowly than the one above it."""
    weight_decay: float = Field(0.05, ge=0, le=1e3)
    warmup_epochs: float = Field(1.0, ge=0, le=1e6)
    """Epochs in which the rate rises linearly; then it follows the schedule."""
    schedule: AnyRateSchedule = Cosine()
    loss: Loss = CrossEntropy()
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    class_weights: Literal["none", "sqrt", "balanced", "effective"] = "none"
    """Weigh rare classes up: balanced = N / (C n_c), sqrt = its square root, effective = by the
    effective number of samples (Cui et al. 2019)."""
    effective_beta: float = Field(0.999, gt=0, lt=1)
    """Beta of the effective number: 1 / (1 - beta) images of a class count as infinitely many."""
    augment: Augment = Augment()
    mix: Mix | None = None
    ema: Ema | None = None
    resize: Resize | None = None

    @property
    def optimizer_kind(self) -> type[OptimizerKind]:
        """What the optimizer reads of this recipe, and keeps."""
        kind: type[OptimizerKind] = OPTIMIZERS.load(self.optimizer)
        return kind

    @property
    def peak_rate(self) -> float:
        """Learning rate at the end of the warm-up, scaled from `base_batch` to `batch`.

        Linearly where a step is as long as its gradient (Goyal et al. 2017, arXiv 1706.02677,
        section 2.1; Jia et al. 2018, arXiv 1807.11205, for LARS), by the square root where Adam's
        second moments divide by the gradient's noise (You et al. 2019, arXiv 1904.00962, for LAMB;
        Malladi et al. 2022, arXiv 2205.10287). Scaled rates need `warmup_epochs`.
        """
        if self.base_batch is None:
            return self.learning_rate
        larger = self.batch / self.base_batch
        linear = self.optimizer_kind.linear_rate or self.preconditioner is not None
        return self.learning_rate * (larger if linear else math.sqrt(larger))

    def rate_at(self, step: int, per_epoch: int) -> float:
        """Return the learning rate of a step, counted from the first of the run.

        By default it rises linearly in the first epoch, then falls along half a cosine to 0.
        """
        warmup = int(per_epoch * self.warmup_epochs)
        return self.schedule.rate(step, per_epoch, self.epochs, warmup, self.peak_rate)

    def side_at(self, side: int, epoch: int) -> int:
        """Return the side of the training images of an epoch, at most the member's own `side`."""
        if self.resize is None:
            return side
        growing = math.ceil(self.epochs * self.resize.until)
        if epoch >= growing or self.resize.start >= side:
            return side
        grown = self.resize.start + (side - self.resize.start) * epoch / growing
        return min(side, round(grown / SIDE_STEP) * SIDE_STEP)

    def weights_of(self, counts_C: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return the loss weight of each class for its number of training images.

        N / (C n_c), its square root, or one; or (1 - beta) / (1 - beta^n_c), scaled to sum to C:
        the effective number of samples of Cui et al. 2019, arXiv 1901.05555, eq. 3.
        A class without images counts as if it had one.
        """
        images, counts_C = counts_C.sum(), np.maximum(counts_C, 1)
        if self.class_weights == "effective":
            beta = self.effective_beta
            effective_C = (1 - beta) / (1 - beta**counts_C)
            return np.asarray(effective_C * (len(counts_C) / effective_C.sum()))
        balanced_C = images / (len(counts_C) * counts_C)
        power = {"none": 0.0, "sqrt": 0.5, "balanced": 1.0}[self.class_weights]
        return np.asarray(balanced_C**power)

    def log_bias(self, counts_C: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return by how much each class's logit is to be off, for its number of training images.

        A loss with weights w_c has its minimum at w_c p(c|x), up to a factor of the image; logits
        that learned with tau log prior_c beside them lack it afterwards (Menon et al. 2020, eq.
        10). Focal loss and smoothed labels bend probabilities alike for all classes, and count for
        nothing here. The mean over the classes is 0: what is added to all changes nothing.
        """
        bias_C = np.log(self.weights_of(counts_C))
        if isinstance(self.loss, LogitAdjusted):
            bias_C = bias_C - self.loss.tau * np.log(np.maximum(counts_C, 1))
        return np.asarray(bias_C - bias_C.mean())

    def mix_at(self, epoch: int) -> Mix | None:
        """Return how the images of an epoch are mixed; None: they are not."""
        if self.mix is None or epoch >= self.epochs - self.mix.clean_epochs:
            return None
        return self.mix

    @model_validator(mode="after")
    def _of_the_optimizer(self) -> Self:
        for key in special_settings():
            if key not in self.optimizer_kind.reads and getattr(self, key) != _default(key):
                raise ValueError(
                    f"{key} applies only to the optimizers {' and '.join(readers_of(key))}; "
                    f"remove {key} for optimizer={self.optimizer}"
                )
        return self

    @model_validator(mode="after")
    def _one_second_moment(self) -> Self:
        if self.preconditioner and not self.optimizer_kind.preconditioned:
            takes = [name for name, kind in optimizer_kinds().items() if kind.preconditioned]
            raise ValueError(
                f"optimizer={self.optimizer} cancels the effect of "
                f"preconditioner.kind={self.preconditioner.kind}; set optimizer to "
                f"{', '.join(takes[:-1])} or {takes[-1]}, or remove preconditioner"
            )
        return self

    @model_validator(mode="after")
    def _within_the_epochs(self) -> Self:
        if self.warmup_epochs > self.epochs:
            raise ValueError(
                f"warmup_epochs={self.warmup_epochs:g} is longer than the training of "
                f"epochs={self.epochs}, so the learning rate would never reach its peak; lower "
                "warmup_epochs"
            )
        if self.mix and self.mix.clean_epochs >= self.epochs:
            raise ValueError(
                f"mix.clean_epochs={self.mix.clean_epochs} leaves no epoch of "
                f"epochs={self.epochs} for mixing; lower mix.clean_epochs, or remove `mix`"
            )
        return self

    def fingerprint_fields(self) -> dict[str, Any]:
        """Return what decides the weights; later settings are in it only where they are used.

        So the fingerprint of a member that was trained before they existed stays the same.
        """
        parts = self.model_dump(mode="json")
        younger = ("base_batch", "preconditioner", *special_settings())
        unused = {key for key in younger if parts[key] == _default(key)}
        if self.preconditioner:
            parts["preconditioner"] = self.preconditioner.fingerprint_fields()
        return {key: value for key, value in parts.items() if key not in unused}


def _default(key: str) -> Any:
    return Recipe.model_fields[key].default


def check_head(head: Head, trunk: str) -> None:
    """Raise ValueError for a head that its trunk cannot have."""
    if head.solved and trunk != "frozen":
        name = "head.solver=exact" if isinstance(head, LinearHead) else f"head={head.kind}"
        raise ValueError(f"{name} needs features that stay the same; set trunk=frozen")


def check_frozen_recipe(name: str, recipe: Recipe) -> None:
    """Raise ValueError for what of a recipe needs images, which a frozen trunk saw before."""
    if recipe.resize:
        raise ValueError(
            f"{name}: recipe.resize has no use with a frozen trunk, which reads each image only "
            "once; remove recipe.resize"
        )
    if recipe.layer_decay < 1:
        raise ValueError(
            f"{name}: recipe.layer_decay has no use with a frozen trunk, which trains no layers; "
            "remove recipe.layer_decay"
        )
    if recipe.optimizer_kind.matrices:
        raise ValueError(
            f"{name}: recipe.optimizer={recipe.optimizer} cannot train the head, and a frozen "
            "trunk trains only the head; set recipe.optimizer=adamw"
        )
    if recipe.mix and not recipe.mix.mixup:
        raise ValueError(
            f"{name}: a frozen trunk works with mixup but not with cutmix; set recipe.mix.mixup "
            "above 0"
        )
