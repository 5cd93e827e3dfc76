"""The pixels along a row of ticks, turned so that the ticks stand upright."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from skindx.scan.pixels import ReadRegion

# V = rows of the strip (along the ticks), J = its columns (along the row of ticks)


@dataclass(frozen=True)
class Strip:
    grey_VJ: NDArray[np.float32]
    scale: float
    x: float
    y: float
    angle: float

    def photo(self, column: NDArray[np.float64], row: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return places of the strip in the photo, the last axis x, y."""
        rows, columns = self.grey_VJ.shape
        along, over = (column - columns / 2) / self.scale, (row - rows / 2) / self.scale
        cosine, sine = np.cos(self.angle), np.sin(self.angle)
        return np.stack(
            [self.x + along * cosine - over * sine, self.y + along * sine + over * cosine], axis=-1
        )


def filled(strip: Strip, read: ReadRegion, size_wh: tuple[int, int]) -> Strip | None:
    """Read the pixels of a strip, turned so that ticks stand upright; None: it is off the photo."""
    import cv2

    rows, columns = strip.grey_VJ.shape
    corners = strip.photo(np.array([0.0, columns, 0, columns]), np.array([0.0, 0, rows, rows]))
    low = np.clip(np.floor(corners.min(axis=0)) - 2, 0, size_wh).astype(int)
    high = np.clip(np.ceil(corners.max(axis=0)) + 2, 0, size_wh).astype(int)
    if (high - low).min() < 8:
        return None
    pixels = np.ascontiguousarray(read(low[0], low[1], high[0], high[1], strip.scale))
    grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY).astype(np.float32)
    there_23 = np.zeros((2, 3))
    factor_xy = np.array(grey.shape[::-1]) / (high - low)
    origin = strip.photo(np.array(0.0), np.array(0.0))
    step_x = strip.photo(np.array(1.0), np.array(0.0)) - origin
    step_y = strip.photo(np.array(0.0), np.array(1.0)) - origin
    for axis in range(2):
        there_23[axis] = factor_xy[axis] * np.array(
            [step_x[axis], step_y[axis], origin[axis] - low[axis]]
        )
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    turned = cv2.warpAffine(
        grey, there_23, (columns, rows), flags=flags, borderMode=cv2.BORDER_REPLICATE
    )
    return replace(strip, grey_VJ=turned)
