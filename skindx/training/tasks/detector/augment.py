"""Random changes of a square image that its boxes follow."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skindx.core.machine import go_offline
from skindx.models.detector.detector import GREY
from skindx.training.config.detector import BoxAugment
from skindx.training.feeding.augment import turn

if TYPE_CHECKING:
    from albumentations import Compose

# S = side, K = boxes

_LEAST_SIDE = 2
"""Pixels: what is smaller after a change is no lesion to learn from."""
_LEAST_VISIBLE = 0.1
"""Share of a box's area that must be left inside the square."""

Boxes = NDArray[np.float64]
Labels = NDArray[np.int64]
Change = Callable[[NDArray[np.uint8], Boxes, Labels, int], tuple[NDArray[np.uint8], Boxes, Labels]]


def box_changer(augment: BoxAugment) -> Change:
    """Return (square, boxes_K4, labels_K, seed) -> the same, changed; for any thread.

    Boxes are x1, y1, x2, y2 in pixels of the square. The seed decides everything: neither the
    thread nor the order of calls does.
    """
    own = threading.local()  # a Compose carries the generator that it was seeded with last

    def change(
        square_SS3: NDArray[np.uint8], boxes_K4: Boxes, labels_K: Labels, seed: int
    ) -> tuple[NDArray[np.uint8], Boxes, Labels]:
        if not hasattr(own, "colour"):
            own.place, own.colour = _place(augment), _colour(augment)
        if own.place:  # albumentations warns of boxes that no step could move
            own.place.set_random_seed(seed)
            moved = own.place(image=square_SS3, bboxes=boxes_K4, labels=labels_K)
            square_SS3 = moved["image"]
            boxes_K4 = np.asarray(moved["bboxes"], np.float64).reshape(-1, 4)
            labels_K = np.asarray(moved["labels"], np.int64)
        own.colour.set_random_seed(seed)
        return own.colour(image=square_SS3)["image"], boxes_K4, labels_K

    return change


def _place(augment: BoxAugment) -> "Compose | None":
    """Return what moves an image and its boxes; None when nothing does."""
    go_offline()
    import albumentations as A

    steps: list[A.BasicTransform] = [turn()] if augment.flip else []
    if augment.scale or augment.translate:
        steps.append(
            A.Affine(
                scale=(1 - augment.scale, 1 + augment.scale),
                translate_percent=(-augment.translate, augment.translate),
                keep_ratio=True,
                fill=GREY,
                p=1,
            )
        )
    boxes = A.BboxParams(
        format="pascal_voc",
        label_fields=["labels"],
        clip=True,
        min_width=_LEAST_SIDE,
        min_height=_LEAST_SIDE,
        min_visibility=_LEAST_VISIBLE,
    )
    return A.Compose(steps, bbox_params=boxes) if steps else None


def _colour(augment: BoxAugment) -> "Compose":
    """Return what changes an image's colours."""
    import albumentations as A

    jitter = A.ColorJitter(
        brightness=augment.brightness,
        contrast=0,
        saturation=augment.saturation,
        hue=augment.hue,
        p=1,
    )
    return A.Compose([jitter])
