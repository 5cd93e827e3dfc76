"""Resampling of 8-bit RGB images: bilinear into memory that is there already, or averaged."""

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.core.compiled_loops import CppSource

# H, W = height, width; R, C = rows and columns of the result; T = images

SOURCE = CppSource(
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


def resize_views(
    memory: NDArray[np.uint8], views_T4: NDArray[np.int64], out_TRC3: NDArray[np.uint8]
) -> None:
    """Resize many images that lie in `memory`, one-dimensional, in one call without the GIL.

    A view is (start, height, width, stride): the byte at which it begins, its pixels, and the bytes
    from row to row. Each result is `resize_bilinear`'s. Raises ValueError for a view that does not
    lie in `memory`.
    """
    views_T4 = np.ascontiguousarray(views_T4, np.int64)
    start_T, height_T, width_T, stride_T = views_T4.T
    possible = (views_T4 >= (0, 1, 1, 3)) & (views_T4 <= memory.size)  # no product overflows
    end_T = start_T + (height_T - 1) * stride_T + 3 * width_T
    inside = (end_T <= memory.size) & (stride_T >= 3 * width_T)
    if not (possible.all() and inside.all()) or memory.strides != (1,):
        raise ValueError("a view must have pixels and lie in contiguous memory")
    if len(out_TRC3) != len(views_T4) or out_TRC3.shape[3] != 3:
        raise ValueError(
            f"{len(views_T4)} views were given for results of the shape {out_TRC3.shape}; give "
            "one result for each view"
        )
    kernel = SOURCE.kernel()
    if kernel is None or not out_TRC3.flags.c_contiguous:
        for (start, height, width, stride), out_RC3 in zip(
            views_T4.tolist(), out_TRC3, strict=True
        ):
            view = np.lib.stride_tricks.as_strided(
                memory[start:], (height, width, 3), (stride, 3, 1), writeable=False
            )
            resize_bilinear(view, out_RC3)
        return
    whole, pointer = ctypes.c_int64, ctypes.c_void_p
    kernel.library.resize_all.argtypes = (pointer, whole, pointer, pointer, whole, whole)
    kernel.library.resize_all.restype = None
    kernel.library.resize_all(
        memory.ctypes.data,
        len(views_T4),
        views_T4.ctypes.data,
        out_TRC3.ctypes.data,
        *out_TRC3.shape[1:3],
    )


@cache
def _resize() -> Resize:
    kernel = SOURCE.kernel()
    if kernel is None:
        return resize_by_opencv
    function = kernel.library.resize
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
            raise ValueError("an image must have pixels, and its result contiguous memory")
        function(image_HW3.ctypes.data, height, width, stride, out_RC3.ctypes.data, rows, columns)

    return resize


def resize_by_opencv(image_HW3: NDArray[np.uint8], out_RC3: NDArray[np.uint8]) -> None:
    """Resize by OpenCV's INTER_LINEAR, where there is no compiler."""
    import cv2

    size_wh = (out_RC3.shape[1], out_RC3.shape[0])
    cv2.resize(image_HW3, size_wh, dst=out_RC3, interpolation=cv2.INTER_LINEAR)


def shrunk_size(height: int, width: int, short_side: int) -> tuple[int, int]:
    """Return (height, width) with a shorter side of `short_side`, the aspect ratio kept."""
    scale = short_side / min(height, width)
    return max(short_side, round(height * scale)), max(short_side, round(width * scale))


def shrink(image_HW3: NDArray[np.uint8], short_side: int) -> NDArray[np.uint8]:
    """Resize so that the shorter side measures `short_side` pixels, keeping the aspect ratio."""
    import cv2

    height, width = image_HW3.shape[:2]
    rows, columns = shrunk_size(height, width, short_side)
    if (rows, columns) == (height, width):
        return np.ascontiguousarray(image_HW3)
    # Area averaging is the only one of OpenCV's filters that does not alias when shrinking.
    smaller = short_side < min(height, width)
    interpolation = cv2.INTER_AREA if smaller else cv2.INTER_LINEAR
    resized: NDArray[np.uint8] = cv2.resize(image_HW3, (columns, rows), interpolation=interpolation)
    return resized


def letterbox(
    image_HW3: NDArray[np.uint8], side: int, colour: tuple[int, int, int]
) -> NDArray[np.uint8]:
    """Resize so that the longer side measures `side` pixels; bars make it a square, S x S x 3."""
    import cv2

    height, width = image_HW3.shape[:2]
    longest = max(height, width)
    rows, columns = (max(1, round(side * extent / longest)) for extent in (height, width))
    square_SS3 = np.full((side, side, 3), colour, np.uint8)
    top, left = (side - rows) // 2, (side - columns) // 2
    interpolation = cv2.INTER_AREA if side < longest else cv2.INTER_LINEAR
    square_SS3[top : top + rows, left : left + columns] = (
        cv2.resize(image_HW3, (columns, rows), interpolation=interpolation)
        if (rows, columns) != (height, width)
        else image_HW3
    )
    return square_SS3


def small_jpeg(pixels_HWC: NDArray[np.uint8], longest_side: int, *, quality: int = 80) -> bytes:
    """Return an image as JPEG without metadata, shrunk to `longest_side`, never enlarged."""
    import cv2
    import simplejpeg

    height, width = pixels_HWC.shape[:2]
    scale = longest_side / max(height, width)
    if scale < 1:
        size_wh = (max(1, round(width * scale)), max(1, round(height * scale)))
        pixels_HWC = cv2.resize(pixels_HWC, size_wh, interpolation=cv2.INTER_AREA)
    jpeg: bytes = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels_HWC), quality=quality)
    return jpeg
