"""Random changes of a training image."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skindx.system import go_offline
from skindx.training.config.recipe import Augment

if TYPE_CHECKING:
    from albumentations import BasicTransform

# S = side


def changer(augment: Augment) -> Callable[[NDArray[np.uint8], int], NDArray[np.uint8]]:
    """Return a function (square, seed) -> turned and coloured square, for any thread.

    The seed decides everything: neither the thread nor the order of calls does.
    """
    go_offline()
    import albumentations as A

    strength = augment.colour

    def compose() -> A.Compose:
        steps: list[A.BasicTransform] = [turn()] if augment.flip else []
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


def turn() -> "BasicTransform":
    """Return albumentations' D4, drawn as there; its copies are OpenCV's, with the same pixels.

    To copy a view of turned pixels by NumPy takes longer than all else that happens to a square.
    """
    import albumentations as A

    class Turn(A.D4):  # type: ignore[misc] # which is untyped
        def apply(self, img: NDArray[np.uint8], group_element: str, **params: Any) -> Any:
            return turned(img, group_element)

    return Turn(p=1)


def turned(square_SS3: NDArray[np.uint8], turn: str) -> NDArray[np.uint8]:
    """Return the square after one of its eight symmetries, by albumentations' name."""
    import cv2

    if turn == "e":
        return square_SS3
    if turn == "hvt":
        square_SS3, turn = turned(square_SS3, "r180"), "t"
    if turn == "t":
        return np.asarray(cv2.transpose(square_SS3), np.uint8)
    if turn in ("v", "h"):
        return np.asarray(cv2.flip(square_SS3, int(turn == "h")), np.uint8)
    rotation = {
        "r90": cv2.ROTATE_90_COUNTERCLOCKWISE,
        "r180": cv2.ROTATE_180,
        "r270": cv2.ROTATE_90_CLOCKWISE,
    }[turn]
    return np.asarray(cv2.rotate(square_SS3, rotation), np.uint8)
