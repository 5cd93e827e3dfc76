"""Random changes of a square picture that its boxes follow."""

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from skindx.models.detector import GREY
from skindx.offline import go_offline
from skindx.training.detection.settings import BoxAugment

# S = side, K = boxes

_LEAST_SIDE = 2
"""Pixels: what is smaller after a change is no lesion to learn from."""
_LEAST_VISIBLE = 0.1
"""Share of a box's area that must be left inside the square."""

Boxes = NDArray[np.float64]
Labels = NDArray[np.int64]
Change = Callable[
    [NDArray[np.uint8], Boxes, Labels, int], tuple[NDArray[np.uint8], Boxes, Labels]
]


def box_changer(augment: BoxAugment) -> Change:
    """Return (square, boxes_K4, labels_K, seed) -> the same, changed; for any thread.

    Boxes are x1, y1, x2, y2 in pixels of the square. The seed decides everything: neither the
    thread nor the order of calls does.
    """
    own = threading.local()  # a Compose carries the generator that it was seeded with last

    def change(
        square_SS3: NDArray[np.uint8], boxes_K4: Boxes, labels_K: Labels, seed: int
    ) -> tuple[NDArray[np.uint8], Boxes, Labels]:
        if not hasattr(own, "compose"):
            own.compose = _compose(augment)
        own.compose.set_random_seed(seed)
        changed = own.compose(image=square_SS3, bboxes=boxes_K4, labels=labels_K)
        boxes = np.asarray(changed["bboxes"], np.float64).reshape(-1, 4)
        return changed["image"], boxes, np.asarray(changed["labels"], np.int64)

    return change


def _compose(augment: BoxAugment) -> Callable[..., dict[str, NDArray[np.uint8]]]:
    go_offline()
    import albumentations as A

    steps: list[A.BasicTransform] = [A.D4(p=1)] if augment.flip else []
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
    if augment.hue or augment.saturation or augment.brightness:
        steps.append(
            A.ColorJitter(
                brightness=augment.brightness,
                contrast=0,
                saturation=augment.saturation,
                hue=augment.hue,
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
    composed: Callable[..., dict[str, NDArray[np.uint8]]] = A.Compose(steps, bbox_params=boxes)
    return composed
