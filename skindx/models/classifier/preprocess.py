"""Make the square that a classifier sees of a decoded image, and its flipped and turned views.

A network has square inputs. The frame `square` cuts the central one out of the image; `whole` puts
the whole image into it, with its aspect, between two bars of the mean colour, which the networks
see as zeros. Heat, boxes and what an answer says of a cut lesion are mapped back by the same frame.
"""

from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator
from torch import Tensor

from skindx.core.settings_base import Settings
from skindx.imaging.resize import letterbox, shrink

# B = batch, H, W = height, width, S = side of the square


Frame = Literal["square", "whole"]
"""What of an image a network sees: its central square, or all of it between bars."""

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
    """Share of the shorter side that the centre crop keeps; the frame `whole` crops nothing."""
    frame: Frame = "square"
    """`square`: the networks see the central square of an image, `crop` of its shorter side;
    `whole`: all of it, between bars of the mean colour."""

    @model_validator(mode="after")
    def _positive_std(self) -> Self:
        if min(self.std) < _LEAST_STD:
            raise ValueError(f"std must be positive, and at least {_LEAST_STD:g} in every channel")
        return self

    @model_serializer(mode="wrap")
    def _absent_is_square(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave the frame `square` out: runs and bundles of before keep their hashes."""
        fields: dict[str, Any] = written(self)
        if fields.get("frame") == "square":
            del fields["frame"]
        return fields

    @property
    def margin_size(self) -> int:
        """Shorter side in pixels before the crop; the frame `whole` needs no more than that."""
        return self.size if self.frame == "whole" else round(self.size / self.crop)

    @property
    def bars(self) -> tuple[int, int, int] | None:
        """Colour of what is beside the image in its square; None: the square is cut out of it."""
        if self.frame == "square":
            return None
        red, green, blue = (min(max(round(255 * mean), 0), 255) for mean in self.mean)
        return red, green, blue

    def square_of(self, height: float, width: float) -> tuple[float, float, float]:
        """Return top, left and side of the square in pixels of an image of this size.

        That of the frame `whole` stands out of an image that is not square.
        """
        whole = self.frame == "whole"
        side = max(height, width) if whole else self.crop * min(height, width)
        return (height - side) / 2, (width - side) / 2, side


def framed_square(image_HW3: NDArray[np.uint8], preprocess: Preprocess) -> NDArray[np.uint8]:
    """Return the square, S x S x 3 uint8, as evaluation and diagnosis see an image."""
    if preprocess.bars is not None:
        return letterbox(image_HW3, preprocess.size, preprocess.bars)
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
