"""Bilinear resize of a view of an image into memory that is there already."""

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.cpp import Source

# H, W = height, width; R, C = rows and columns of the result

SOURCE = Source(
    Path(__file__).with_name("resize.cpp"), "bilinear resize", "OpenCV resizes training images"
)

Resize = Callable[[NDArray[np.uint8], NDArray[np.uint8]], object]


def resize_bilinear(image_HW3: NDArray[np.uint8], out_RC3: NDArray[np.uint8]) -> None:
    """Resize RGB pixels to the size of `out_RC3`, which is contiguous, without holding the GIL.

    Each result blends four neighbours, with centres of pixels at halves and weights in 1/256: it is
    within one level of OpenCV's INTER_LINEAR, the same on every processor. Without a compiler
    OpenCV resizes. The pixels of a row of `image_HW3` are contiguous; a view of columns may be
    given.
    """
    _resize()(image_HW3, out_RC3)


@cache
def _resize() -> Resize:
    found = SOURCE.kernel()
    if found is None:
        return resize_by_opencv
    function = found.library.resize
    function.restype = None
    whole, pointer = ctypes.c_int64, ctypes.c_void_p
    function.argtypes = (pointer, whole, whole, whole, pointer, whole, whole)

    def resize(image_HW3: NDArray[np.uint8], out_RC3: NDArray[np.uint8]) -> None:
        height, width, channels = image_HW3.shape
        stride, between, within = image_HW3.strides
        if channels != 3 or (between, within) != (3, 1) or image_HW3.dtype != np.uint8:
            image_HW3 = np.ascontiguousarray(image_HW3, dtype=np.uint8)
            if image_HW3.shape != (height, width, 3):
                raise ValueError(f"an RGB image has 3 channels, not {channels}")
            stride = image_HW3.strides[0]
        rows, columns, _ = out_RC3.shape
        if out_RC3.strides != (3 * columns, 3, 1) or not (height and width):
            raise ValueError("an image needs pixels, and the result contiguous memory")
        function(image_HW3.ctypes.data, height, width, stride, out_RC3.ctypes.data, rows, columns)

    return resize


def resize_by_opencv(image_HW3: NDArray[np.uint8], out_RC3: NDArray[np.uint8]) -> None:
    """Resize by OpenCV's INTER_LINEAR, where there is no compiler."""
    import cv2

    size_wh = (out_RC3.shape[1], out_RC3.shape[0])
    cv2.resize(image_HW3, size_wh, dst=out_RC3, interpolation=cv2.INTER_LINEAR)
