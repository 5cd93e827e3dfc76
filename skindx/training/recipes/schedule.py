"""Schedules of a recipe by step and epoch: learning rate, side of the images, mixing."""

import math

from skindx.training.config.recipe import Cosine, Mix, Recipe, Steps

SIDE_STEP = 32
"""Networks halve their images up to five times."""


def peak_rate(recipe: Recipe) -> float:
    """Return the learning rate at the end of the warm-up, scaled from `base_batch` to `batch`.

    Linearly where a step is as long as its gradient (Goyal et al. 2017, arXiv 1706.02677, section
    2.1; Jia et al. 2018, arXiv 1807.11205, for LARS), by the square root where Adam's second
    moments divide by the gradient's noise (You et al. 2019, arXiv 1904.00962, for LAMB; Malladi et
    al. 2022, arXiv 2205.10287). Scaled rates need `warmup_epochs`.
    """
    if recipe.base_batch is None:
        return recipe.learning_rate
    larger = recipe.batch / recipe.base_batch
    linear = recipe.optimizer in ("sgd", "lars") or recipe.preconditioner is not None
    return recipe.learning_rate * (larger if linear else math.sqrt(larger))


def rate_of(recipe: Recipe, step: int, per_epoch: int) -> float:
    """Return the learning rate of a step, counted from the first of the run."""
    peak, warmup = peak_rate(recipe), int(per_epoch * recipe.warmup_epochs)
    match recipe.schedule:
        case Cosine(minimum=minimum):
            return rate_at(step, per_epoch * recipe.epochs, warmup, peak, peak * minimum)
        case Steps(epochs=epochs, factor=factor):
            fallen = factor ** sum(step >= epoch * per_epoch for epoch in epochs)
            return peak * min(1.0, (step + 1) / max(1, warmup)) * fallen


def rate_at(step: int, steps: int, warmup: int, peak: float, low: float = 0.0) -> float:
    """Return the rate of step 0..steps-1: linear warm-up, then a cosine to `low` (SGDR, 2016)."""
    if step < warmup:
        return peak * ((step + 1) / warmup)
    fall = math.cos(math.pi * (step - warmup) / max(1, steps - warmup))
    return low + (peak - low) * 0.5 * (1 + fall)


def side_at(recipe: Recipe, side: int, epoch: int) -> int:
    """Return the side of the training images of an epoch, at most the member's own `side`."""
    if recipe.resize is None:
        return side
    growing = math.ceil(recipe.epochs * recipe.resize.until)
    if epoch >= growing or recipe.resize.start >= side:
        return side
    grown = recipe.resize.start + (side - recipe.resize.start) * epoch / growing
    return min(side, round(grown / SIDE_STEP) * SIDE_STEP)


def mix_at(recipe: Recipe, epoch: int) -> Mix | None:
    """Return how the images of an epoch are mixed."""
    if recipe.mix is None or epoch >= recipe.epochs - recipe.mix.clean_epochs:
        return None
    return recipe.mix
