"""What a recipe says of each step and epoch: learning rate, side of the pictures, mixing."""

import math

from skindx.training.recipes.recipe import Cosine, Mix, Recipe, Steps

SIDE_STEP = 32
"""Networks halve their pictures up to five times."""


def rate_of(recipe: Recipe, step: int, per_epoch: int) -> float:
    """Return the learning rate of a step, counted from the first of the run."""
    peak, warmup = recipe.learning_rate, int(per_epoch * recipe.warmup_epochs)
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
    """Return the side of the training pictures of an epoch, at most the member's own `side`."""
    if recipe.resize is None:
        return side
    growing = math.ceil(recipe.epochs * recipe.resize.until)
    if epoch >= growing or recipe.resize.start >= side:
        return side
    grown = recipe.resize.start + (side - recipe.resize.start) * epoch / growing
    return min(side, round(grown / SIDE_STEP) * SIDE_STEP)


def mix_at(recipe: Recipe, epoch: int) -> Mix | None:
    """Return how the pictures of an epoch are mixed."""
    if recipe.mix is None or epoch >= recipe.epochs - recipe.mix.clean_epochs:
        return None
    return recipe.mix
