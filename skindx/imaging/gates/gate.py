"""Interface of every gate: a photo at one fixed scale in, a finding in one word out."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from skindx.imaging.shrink import shrink

Fault = Literal["dark", "dim", "glaring", "pale", "no-skin", "blurred", "soft"]
"""What to say of each is for who asked: a page gives advice, a dataset has a table."""

SIDE = 160
"""Pixels of the shorter side: less than the networks see, so what is lost here is lost to them."""


@dataclass(frozen=True)
class Reduced:
    """A photo whose shorter side measures 160 pixels, RGB uint8."""

    pixels_HWC: NDArray[np.uint8]

    @classmethod
    def of(cls, pixels_HWC: NDArray[np.uint8]) -> Self:
        """Reduce a photo; a smaller one is enlarged."""
        return cls(shrink(pixels_HWC, SIDE))

    @cached_property
    def luma(self) -> NDArray[np.float32]:
        """Brightness H x W on the 0..255 scale."""
        import cv2

        # In floating point: rounding it again would pass for detail in a dark photo.
        luma_HW: NDArray[np.float32] = cv2.cvtColor(
            self.pixels_HWC.astype(np.float32), cv2.COLOR_RGB2GRAY
        )
        return luma_HW


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of a photo."""

    fault: Fault
    fatal: bool
    """Whether no diagnosis should rest on the photo; otherwise it is a remark beside one."""
