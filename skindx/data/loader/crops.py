"""Random crops of training images: windows drawn one by one or for many at once, and resampled.

A generator of NumPy takes 7 µs to seed and a window 3 µs to draw, both under the GIL: for images
from a cache that was half of the time. Many at once have the same bits.
"""

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.core.compiled_loops import CppSource
from skindx.data.loader.source import ImageSource, MappedSource
from skindx.imaging.resize import resize_bilinear

# H, W = height, width; S = side of the square

_TRIES = 10
ASPECTS = (0.8, 1.25)
"""Aspects of the random crop in training, width / height."""


@dataclass(frozen=True, slots=True)
class Window:
    """A rectangle inside an image, as shares of its height and width.

    It is drawn before the image is decoded, which may then happen at a smaller scale.
    """

    top: float
    left: float
    height: float
    width: float

    def cut(self, image_HW3: NDArray[np.uint8]) -> NDArray[np.uint8]:
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

    def needs(self, rows: int, columns: int) -> tuple[int, int]:
        """Return (height, width) of the smallest image whose window has so many pixels."""
        return math.ceil(rows / self.height), math.ceil(columns / self.width)


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

    Bilinear (`resize_bilinear`: four neighbours blended) up to a factor of two, below which it
    leaves no pixel out. A side that is longer is halved before, by the means of pairs (Williams
    1983, "Pyramidal parametrics"), which does not alias either and takes a tenth of the time of
    OpenCV's area averages. The last of an odd number of rows or columns is left out.
    """
    while (tall := len(image_HW3) > 2 * len(out_SS3)) | (
        wide := image_HW3.shape[1] > 2 * out_SS3.shape[1]
    ):
        import cv2

        rows, columns = len(image_HW3) >> tall, image_HW3.shape[1] >> wide
        pairs_HW3 = image_HW3[: rows << tall, : columns << wide]
        image_HW3 = np.asarray(
            cv2.resize(pairs_HW3, (columns, rows), interpolation=cv2.INTER_AREA), np.uint8
        )
    resize_bilinear(image_HW3, out_SS3)


# T = images, K = words of entropy

SOURCE = CppSource(
    Path(__file__).with_name("windows.cpp"),
    "drawing of crops",
    "random crops are drawn one after the other",
    ("-ffp-contract=off",),  # each product is rounded, as in Python
)
_WORD = 1 << 32


def sample_seeds(prefix: Sequence[int], numbers: Sequence[int]) -> list[int]:
    """Return SeedSequence((*prefix, number)).generate_state(1)[0] for each number."""
    library = _library()
    if library is None or any(number >= _WORD for number in numbers):
        return [
            int(np.random.SeedSequence((*prefix, number)).generate_state(1)[0])
            for number in numbers
        ]
    words = [word for number in prefix for word in _words(number)]
    entropy_TK = np.empty((len(numbers), len(words) + 1), np.uint32)
    entropy_TK[:, :-1] = words
    entropy_TK[:, -1] = numbers
    seeds_T = np.empty(len(numbers), np.uint32)
    library.first_words(*entropy_TK.shape, entropy_TK.ctypes.data, seeds_T.ctypes.data)
    return seeds_T.tolist()


def draw_windows(
    sizes_T2: NDArray[np.int64],
    seeds: Sequence[int],
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> NDArray[np.float64]:
    """Return windows_T4 (top, left, height, width as shares, see `Window`) of images.

    They are `random_window`'s of generators with these seeds, each below 2^32.
    """
    library = _library()
    if library is None:
        drawn = [
            random_window(height, width, scale, ratio, np.random.default_rng(seed))
            for (height, width), seed in zip(sizes_T2.tolist(), seeds, strict=True)
        ]
        rows = [(window.top, window.left, window.height, window.width) for window in drawn]
        return np.array(rows, np.float64).reshape(-1, 4)
    seeds_T = np.array(seeds, np.uint32)
    sizes_T2 = np.ascontiguousarray(sizes_T2, np.int64)
    if sizes_T2.shape != (len(seeds_T), 2):
        raise ValueError(
            f"{len(seeds_T)} seeds were given for sizes of the shape {sizes_T2.shape}; give one "
            "size for each seed"
        )
    windows_T4 = np.empty((len(seeds_T), 4))
    library.draw_windows(
        len(seeds_T),
        seeds_T.ctypes.data,
        sizes_T2.ctypes.data,
        *scale,
        *ratio,
        *_logarithms(ratio),
        windows_T4.ctypes.data,
    )
    return windows_T4


def window_places(
    windows_T4: NDArray[np.float64], sizes_T2: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return places_T4 (top, left, rows, columns) in pixels of images of these sizes."""
    library = _library()
    if library is None:
        pairs = zip(windows_T4.tolist(), sizes_T2.tolist(), strict=True)
        places = [Window(*window).place(*size) for window, size in pairs]
        return np.array(places, np.int64).reshape(-1, 4)
    windows_T4 = np.ascontiguousarray(windows_T4, np.float64)
    sizes_T2 = np.ascontiguousarray(sizes_T2, np.int64)
    if (windows_T4.shape, sizes_T2.shape) != ((len(sizes_T2), 4), (len(sizes_T2), 2)):
        raise ValueError(
            f"{len(windows_T4)} windows were given with {len(sizes_T2)} sizes; give one size for "
            "each window"
        )
    places_T4 = np.empty((len(sizes_T2), 4), np.int64)
    library.places(
        len(sizes_T2), windows_T4.ctypes.data, sizes_T2.ctypes.data, places_T4.ctypes.data
    )
    return places_T4


@cache
def _library() -> ctypes.CDLL | None:
    result = SOURCE.kernel()
    if result is None:
        return None
    library, whole, real, pointer = (
        result.library,
        ctypes.c_int64,
        ctypes.c_double,
        ctypes.c_void_p,
    )
    library.first_words.argtypes = (whole, whole, pointer, pointer)
    library.draw_windows.argtypes = (whole, pointer, pointer, *[real] * 6, pointer)
    library.places.argtypes = (whole, pointer, pointer, pointer)
    for function in (library.first_words, library.draw_windows, library.places):
        function.restype = None
    return library


@cache
def _logarithms(ratio: tuple[float, float]) -> tuple[float, float]:
    return math.log(ratio[0]), math.log(ratio[1])


def _words(number: int) -> list[int]:
    """Return a number's words of 32 bits, the lowest first, as SeedSequence takes it."""
    words = [number % _WORD]
    while number := number // _WORD:
        words.append(number % _WORD)
    return words


def fill_random_crops(
    source: ImageSource,
    indices: Sequence[int],
    seeds: Sequence[int],
    scale: tuple[float, float],
    ratio: tuple[float, float],
    *,
    bars: tuple[int, int, int] | None = None,
    out_TSS3: NDArray[np.uint8],
) -> None:
    """Write a random window of each image, resized to S x S; see `random_window`.

    A window is drawn from its image's seed, which is below 2^32. With `bars`, the colour of what is
    beside a whole image in its square, it is one of that square.
    """
    sizes_T2 = np.array([source.size(index) for index in indices], np.int64).reshape(-1, 2)
    if bars is not None:
        out_TSS3[...] = bars
        squares_T2 = sizes_T2.max(axis=1, keepdims=True).repeat(2, axis=1)
        windows_T4 = draw_windows(squares_T2, seeds, scale, ratio)
        _fill_framed(source, indices, sizes_T2, windows_T4, out_TSS3)
        return
    fill_crops(source, indices, draw_windows(sizes_T2, seeds, scale, ratio), out_TSS3)


def fill_crops(
    source: ImageSource,
    indices: Sequence[int],
    windows_T4: NDArray[np.float64],
    out_TSS3: NDArray[np.uint8],
) -> None:
    """Write a window of each image, resized to S x S, decoded no larger than the window needs.

    A row of `windows_T4` has top, left, height and width as `Window` has them.

    Draw the windows of all these images before: between two images the code that draws random
    numbers has left the processor's caches, and takes several times as long.
    """
    if isinstance(source, MappedSource):
        source.crop(indices, windows_T4, out_TSS3)
        return
    sides = out_TSS3.shape[1:3]
    for index, shares, out_SS3 in zip(indices, windows_T4.tolist(), out_TSS3, strict=True):
        window = Window(*shares)
        image_HW3 = source.image(index, at_least=window.needs(*sides))
        resize_into(window.cut(image_HW3), out_SS3)


def _fill_framed(
    source: ImageSource,
    indices: Sequence[int],
    sizes_T2: NDArray[np.int64],
    windows_T4: NDArray[np.float64],
    out_TSS3: NDArray[np.uint8],
) -> None:
    """Write a window of each image's square, which has its longer side; bars stay as they are.

    Where a window is the wider one it holds the whole image, anywhere in it; else it lies within.
    """
    side = out_TSS3.shape[1]
    extent_T2 = windows_T4[:, 2:] * sizes_T2.max(axis=1, keepdims=True) / sizes_T2
    free_T2 = 1 - windows_T4[:, 2:]
    place_T2 = np.where(free_T2 > 0, windows_T4[:, :2] / np.maximum(free_T2, 1e-12), 0.5)
    begin_T2 = place_T2 * (1 - extent_T2)  # in shares of the image, as all but `place`
    low_T2, high_T2 = np.maximum(begin_T2, 0), np.minimum(begin_T2 + extent_T2, 1)
    first_T2 = np.rint((low_T2 - begin_T2) / extent_T2 * side).astype(int).clip(0, side - 1)
    last_T2 = np.rint((high_T2 - begin_T2) / extent_T2 * side).astype(int).clip(first_T2 + 1, side)
    seen_T4 = np.hstack([low_T2, high_T2 - low_T2])
    for number, (index, (top, left), (bottom, right)) in enumerate(
        zip(indices, first_T2.tolist(), last_T2.tolist(), strict=True)
    ):
        part_1RC3 = np.empty((1, bottom - top, right - left, 3), np.uint8)
        fill_crops(source, [index], seen_T4[number : number + 1], part_1RC3)
        out_TSS3[number, top:bottom, left:right] = part_1RC3[0]
