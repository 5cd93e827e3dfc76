"""Random changes of a training image."""

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from skindx.system import go_offline
from skindx.training.config.recipe import Augment

# S = side


def changer(augment: Augment) -> Callable[[NDArray[np.uint8], int], NDArray[np.uint8]]:
    """Return a function (square, seed) -> turned and coloured square, for any thread.

    The seed decides everything: neither the thread nor the order of calls does.
    """
    go_offline()
    import albumentations as A

    strength = augment.colour

    def compose() -> A.Compose:
        steps: list[A.BasicTransform] = [A.D4(p=1)] if augment.flip else []
        if strength:
            steps.append(A.ColorJitter(strength, strength, strength, strength / 10, p=0.8))
        if augment.blur:
            steps.append(A.GaussianBlur(sigma_limit=(0.3, 1.5), p=augment.blur))
        if augment.sharpen:
            steps.append(A.Sharpen(p=augment.sharpen))
        if augment.holes:
            share = (0.1, 0.3)
            hole = A.CoarseDropout((1, 3), share, share, fill="random_uniform", p=augment.holes)
            steps.append(hole)
        return A.Compose(steps)

    own = threading.local()  # a Compose carries the generator that it was seeded with last

    def change(square_SS3: NDArray[np.uint8], seed: int) -> NDArray[np.uint8]:
        if not hasattr(own, "compose"):
            own.compose = compose()
        own.compose.set_random_seed(seed)
        changed: NDArray[np.uint8] = own.compose(image=square_SS3)["image"]
        return changed

    return change
