"""From a decoded image to the square that a classifier sees, and its flipped and turned views."""

from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from skindx.core.settings_base import Settings
from skindx.imaging.resize import shrink

# B = batch, H, W = height, width, S = side of the square


Views = Literal[1, 2, 4, 8]
"""1: as it is; 2: and mirrored; 4: both mirrors and the half turn; 8: and all quarter turns.

Each set is a group: the mean over it is the same for every image of the set.
"""

_LEAST_STD = 1e-6
"""Half a billionth of what photos have: less would make numbers that fp32 does not hold."""

_Mean = Annotated[float, Field(ge=-1e3, le=1e3)]
_Std = Annotated[float, Field(le=1e3)]

_FLIPS: tuple[tuple[int, ...], ...] = ((), (2,), (1,), (1, 2))


class Preprocess(Settings):
    """How one member sees images: side in pixels, and channel statistics on the 0..1 scale."""

    size: int = Field(224, ge=32, le=1024)
    mean: tuple[_Mean, _Mean, _Mean] = (0.485, 0.456, 0.406)
    std: tuple[_Std, _Std, _Std] = (0.229, 0.224, 0.225)
    crop: float = Field(0.9, gt=0, le=1)
    """Share of the shorter side that the centre crop keeps."""

    @model_validator(mode="after")
    def _positive_std(self) -> Self:
        if min(self.std) < _LEAST_STD:
            raise ValueError(f"std must be positive, and at least {_LEAST_STD:g} in every channel")
        return self

    @property
    def margin_size(self) -> int:
        """Shorter side in pixels before the centre crop."""
        return round(self.size / self.crop)


def centre_square(image_HW3: NDArray[np.uint8], preprocess: Preprocess) -> NDArray[np.uint8]:
    """Return the central square, S x S x 3 uint8, as evaluation and diagnosis see an image."""
    height, width = image_HW3.shape[:2]
    # Cropped before it is resized: a strip of one pixel by thousands costs no more than a square.
    side = max(1, round(min(height, width) * preprocess.crop))
    top, left = (height - side) // 2, (width - side) // 2
    return shrink(image_HW3[top : top + side, left : left + side], preprocess.size)


def views_of(squares_BSS3: Tensor, views: Views) -> list[Tensor]:
    """Return the images as they are and in their other views, each B x S x S x 3."""
    flips = _FLIPS[: min(views, 4)]
    mirrored = [squares_BSS3.flip(flip) if flip else squares_BSS3 for flip in flips]
    return (
        mirrored if views < 8 else mirrored + [view_BSS3.transpose(1, 2) for view_BSS3 in mirrored]
    )
