"""64-bit image hashes over the eight flips and quarter turns.

Average, perceptual (DCT), difference and wavelet (Haar) hash as compared by CE-Dedup (Li, Chang,
Liu 2021, arXiv 2109.00899). All are read from one small grey thumbnail, whose turned versions
follow from it without touching the image again.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from skindx.core.compiled_loops import CppSource

# N = images, K = kinds of hash, O = orientations, S = thumbnail side, G = grid side

HashKind = Literal["average", "perceptual", "difference", "wavelet"]

SIDE = 72
"""Divisible by 8 and 9, so that every hash's grid is a plain sum over blocks."""
GRID = 8
SOURCE = CppSource(
    Path(__file__).with_name("thumbnail.cpp"),
    "area means of thumbnails",
    "NumPy makes the thumbnails of hashes",
    ("-ffp-contract=off",),  # each product is rounded, as by NumPy
)
ORIENTATIONS = 8
"""Orientation 4t + 2v + h: transposed if t, then upside down if v, then mirrored if h."""


def grey(pixels_HWC: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return grey_HW, the luminance (ITU-R BT.601) of an RGB image."""
    import cv2

    grey_HW: NDArray[np.uint8] = cv2.cvtColor(pixels_HWC, cv2.COLOR_RGB2GRAY)
    return grey_HW


def thumbnail(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return an image, RGB (HWC) or grey (HW), squeezed to SIDE x SIDE grey area means.

    A small one is stretched. It keeps fractions: on smooth skin the differences that hashes ask
    for are below one grey level. They are multiples of 1/512, so that sums over blocks are exact
    in any order: even ground stays even, and a mirrored image gives mirrored sums. The means
    come from an integral image (Crow 1984, "Summed-area tables for texture mapping"), which is
    linear inside a pixel.
    """
    import cv2

    grey_HW = grey(pixels) if pixels.ndim == 3 else pixels
    height, width = grey_HW.shape
    table = cv2.integral(grey_HW, sdepth=cv2.CV_32S)
    scale = 512 * SIDE * SIDE / (height * width)
    kernel = thumbnail_kernel()
    if kernel is None:
        return _means(table, height, width, scale)
    pixels_2S, parts_2S = _corners(height, width)
    small_SS = np.empty((SIDE, SIDE), np.float32)
    kernel.thumbnail(
        table.ctypes.data, width + 1, SIDE, pixels_2S.ctypes.data, parts_2S.ctypes.data, scale,
        small_SS.ctypes.data,
    )  # fmt: skip
    return small_SS


def _means(table: NDArray[np.int32], height: int, width: int, scale: float) -> NDArray[np.float32]:
    """Return what thumbnail.cpp does, where there is no compiler."""
    (y, x), (down, right) = _corners(height, width)
    corners = y[:, None] * (width + 1) + x
    steps = np.array([0, 1, width + 1, width + 2])[:, None, None]
    # The table may run over 32 bits; differences over a band of rows or less come out right.
    at, row, column, both = table.ravel().take(corners + steps)
    row -= at
    column -= at
    both -= at
    both -= row
    both -= column
    inside = right * both
    inside += column
    inside *= down[:, None]
    inside += right * row
    sums = _cells(inside)
    sums += _cells(at)
    sums *= scale
    small_SS: NDArray[np.float32] = (np.rint(sums) / 512).astype(np.float32)
    return small_SS


@cache
def thumbnail_kernel() -> ctypes.CDLL | None:
    """Return what makes thumbnails; None where there is no compiler. It is compiled here once."""
    result = SOURCE.kernel()
    if result is None:
        return None
    whole, pointer = ctypes.c_int64, ctypes.c_void_p
    function = result.library.thumbnail
    function.argtypes = (pointer, whole, whole, pointer, pointer, ctypes.c_double, pointer)
    function.restype = None
    return result.library


def _cells(sums: NDArray[Any]) -> NDArray[Any]:
    """Return the sum inside each cell from the sums above and left of each corner."""
    bands = sums[1:] - sums[:-1]
    cells: NDArray[Any] = bands[:, 1:] - bands[:, :-1]
    return cells


@lru_cache(maxsize=64)
def _corners(height: int, width: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return in which pixel the cells' corners lie, down and right, and how far in it."""

    def ends(length: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        exact = np.arange(SIDE + 1, dtype=np.float64) * (length / SIDE)
        whole = np.minimum(exact.astype(np.int64), length - 1)
        return whole, exact - whole

    (y, down), (x, right) = ends(height), ends(width)
    return np.stack([y, x]), np.stack([down, right])


def hash_thumbnails(
    thumbs_NSS: NDArray[np.float32], kinds: Sequence[HashKind]
) -> NDArray[np.uint64]:
    """Return codes_NKO: each image's hash of each kind in all eight orientations."""
    codes = [_pack(HASHES[kind](thumbs_NSS)) for kind in kinds]
    return np.stack(codes, axis=1)


def _pack(bits_NOGG: NDArray[np.bool_]) -> NDArray[np.uint64]:
    n = len(bits_NOGG)
    packed = np.packbits(bits_NOGG.reshape(n, ORIENTATIONS, GRID * GRID), axis=-1)
    return packed.view(">u8")[..., 0].astype(np.uint64)


def _blocks(thumbs_NSS: NDArray[np.float32], rows: int, columns: int) -> NDArray[np.float32]:
    """Return the sum over each of rows x columns blocks."""
    n = len(thumbs_NSS)
    bands = thumbs_NSS.reshape(n, rows, SIDE // rows, SIDE).sum(axis=2)
    belongs = np.repeat(np.eye(columns, dtype=np.float32), SIDE // columns, axis=0)
    sums: NDArray[np.float32] = bands @ belongs
    return sums


def _turned(plain: NDArray[np.float32], transposed: NDArray[np.float32]) -> NDArray[np.float32]:
    """Stack the eight orientations of a grid, given it and its transposed image's grid."""
    turned = [
        grid[:, :: 1 - 2 * v, :: 1 - 2 * h]
        for grid in (plain, transposed)
        for v in (0, 1)
        for h in (0, 1)
    ]
    return np.stack(turned, axis=1)


def _average(thumbs_NSS: NDArray[np.float32]) -> NDArray[np.bool_]:
    sums = _blocks(thumbs_NSS, GRID, GRID)
    grids = _turned(sums, sums.swapaxes(1, 2))
    bits: NDArray[np.bool_] = grids > grids.mean(axis=(2, 3), keepdims=True)
    return bits


def _wavelet(thumbs_NSS: NDArray[np.float32]) -> NDArray[np.bool_]:
    # The low-pass band of the Haar transform is the block sum up to a factor.
    sums = _blocks(thumbs_NSS, GRID, GRID)
    grids = _turned(sums, sums.swapaxes(1, 2))
    return grids > np.median(grids, axis=(2, 3), keepdims=True)


def _difference(thumbs_NSS: NDArray[np.float32]) -> NDArray[np.bool_]:
    wide = _blocks(thumbs_NSS, GRID, GRID + 1)
    tall = _blocks(thumbs_NSS, GRID + 1, GRID)
    grids = _turned(wide, tall.swapaxes(1, 2))
    return grids[..., 1:] > grids[..., :-1]


def _perceptual(thumbs_NSS: NDArray[np.float32]) -> NDArray[np.bool_]:
    return _signs(thumbs_NSS, GRID)


def _signs(thumbs_NSS: NDArray[np.float32], grid: int) -> NDArray[np.bool_]:
    """Signs of the lowest grid x grid DCT coefficients.

    The usual threshold is their median; the sign makes a mirrored image's code an exact
    permutation of the plain one's. The first coefficient (brightness) is cleared.
    """
    k, n = np.arange(grid)[:, None], np.arange(SIDE)
    basis = np.cos(np.pi * (n + 0.5) * k / SIDE).astype(np.float32)
    coefficients = basis @ thumbs_NSS @ basis.T
    coefficients[:, 0, 0] = 0
    sign = np.where(np.arange(grid) % 2, -1.0, 1.0).astype(np.float32)
    turned = [
        part * (sign[:, None] if v else 1) * (sign if h else 1)
        for part in (coefficients, coefficients.swapaxes(1, 2))
        for v in (0, 1)
        for h in (0, 1)
    ]
    return np.stack(turned, axis=1) > 0


FINE = 16
"""Grid of the fine hash, whose 255 bits tell strangers apart that look alike to 64."""


def fine_hashes(thumbs_NSS: NDArray[np.float32]) -> NDArray[np.uint64]:
    """Return codes_NOW: each image's fine perceptual hash, four words, in all orientations."""
    bits = _signs(thumbs_NSS, FINE).reshape(len(thumbs_NSS), ORIENTATIONS, FINE * FINE)
    return np.packbits(bits, axis=-1).view(np.uint64)


HASHES: dict[HashKind, Callable[[NDArray[np.float32]], NDArray[np.bool_]]] = {
    "average": _average,
    "perceptual": _perceptual,
    "difference": _difference,
    "wavelet": _wavelet,
}
