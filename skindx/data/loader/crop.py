"""Random crops of training images, and their resampling."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.imaging.resize import resize_bilinear

# H, W = height, width; S = side of the square

_TRIES = 10


@dataclass(frozen=True, slots=True)
class Window:
    """A rectangle inside an image, as shares of its height and width.

    It is drawn before the image is decoded, which may then happen at a smaller scale.
    """

    top: float
    left: float
    height: float
    width: float

    def of(self, image_HW3: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return a view of the rectangle's pixels, at least one."""
        top, left, rows, columns = self.place(*image_HW3.shape[:2])
        return image_HW3[top : top + rows, left : left + columns]

    def place(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return top, left, rows, columns in pixels of an image of this size."""
        rows = max(1, min(height, round(self.height * height)))
        columns = max(1, min(width, round(self.width * width)))
        top = min(round(self.top * height), height - rows)
        left = min(round(self.left * width), width - columns)
        return top, left, rows, columns

    def needs(self, side: int) -> tuple[int, int]:
        """Return (height, width) of the smallest image whose window has `side` pixels a side."""
        return math.ceil(side / self.height), math.ceil(side / self.width)


def random_window(
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    rng: np.random.Generator,
) -> Window:
    """Draw a window of a share of the area in `scale` and an aspect (width / height) in `ratio`.

    The random-resized crop of GoogLeNet (Szegedy et al. 2014, arXiv 1409.4842): uniform in area
    and in the logarithm of the aspect; what does not fit is drawn again, after ten times the
    largest central window of an allowed aspect is taken.
    """
    low, high = math.log(ratio[0]), math.log(ratio[1])
    draws = rng.random((_TRIES + 1, 2)).tolist()
    down, right = draws.pop()
    for first, second in draws:
        area = height * width * (scale[0] + first * (scale[1] - scale[0]))
        aspect = math.exp(low + second * (high - low))
        rows, columns = math.sqrt(area / aspect), math.sqrt(area * aspect)
        if rows <= height and columns <= width:
            break
    else:
        aspect = min(max(width / height, ratio[0]), ratio[1])
        rows, columns = min(height, width / aspect), min(width, height * aspect)
        down = right = 0.5
    tall, wide = rows / height, columns / width
    return Window(down * (1 - tall), right * (1 - wide), tall, wide)


def resize_into(image_HW3: NDArray[np.uint8], out_SS3: NDArray[np.uint8]) -> None:
    """Resize to the size of `out`, which is contiguous, in place.

    Bilinear up to a factor of two, below which it leaves no pixel out; area averaging above,
    which costs five times as much and does not alias.
    """
    height, width = out_SS3.shape[:2]
    if image_HW3.shape[0] <= 2 * height and image_HW3.shape[1] <= 2 * width:
        resize_bilinear(image_HW3, out_SS3)
        return
    import cv2

    cv2.resize(image_HW3, (width, height), dst=out_SS3, interpolation=cv2.INTER_AREA)
