"""64-bit picture hashes over the eight flips and quarter turns, and the exact join within a radius.

Average, perceptual (DCT), difference and wavelet (Haar) hash as compared by CE-Dedup (Li, Chang,
Liu 2021, arXiv 2109.00899). All are read from one small grey thumbnail, whose turned versions
follow from it without touching the picture again.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from skindx.data.join import turned_pairs_within

# N = pictures, K = kinds of hash, O = orientations, L = links; S = thumbnail side, G = grid side

HashKind = Literal["average", "perceptual", "difference", "wavelet"]

SIDE = 72
"""Divisible by 8 and 9, so that every hash's grid is a plain mean over blocks."""
GRID = 8
ORIENTATIONS = 8
"""Orientation 4t + 2v + h: transposed if t, then upside down if v, then mirrored if h."""


def thumbnail(pixels_HWC: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the grey picture squeezed to SIDE x SIDE by area means.

    It stays in floats: on smooth skin the differences that hashes ask for are below one grey level.
    """
    import cv2

    grey_HW = cv2.cvtColor(pixels_HWC, cv2.COLOR_RGB2GRAY).astype(np.float32)
    small_SS: NDArray[np.float32] = cv2.resize(grey_HW, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    return small_SS


def hash_thumbnails(
    thumbs_NSS: NDArray[np.float32], kinds: Sequence[HashKind]
) -> NDArray[np.uint64]:
    """Return codes_NKO: each picture's hash of each kind in all eight orientations."""
    codes = [_pack(HASHES[kind](thumbs_NSS)) for kind in kinds]
    return np.stack(codes, axis=1)


def _pack(bits_NOGG: NDArray[np.bool_]) -> NDArray[np.uint64]:
    n = len(bits_NOGG)
    packed = np.packbits(bits_NOGG.reshape(n, ORIENTATIONS, GRID * GRID), axis=-1)
    return packed.view(">u8")[..., 0].astype(np.uint64)


def _blocks(thumbs_NSS: NDArray[np.float32], rows: int, columns: int) -> NDArray[np.float32]:
    n = len(thumbs_NSS)
    cut = thumbs_NSS.reshape(n, rows, SIDE // rows, columns, SIDE // columns)
    means: NDArray[np.float32] = cut.mean(axis=(2, 4))
    return means


def _turned(plain: NDArray[np.float32], transposed: NDArray[np.float32]) -> NDArray[np.float32]:
    """Stack the eight orientations of a grid, given it and its transposed picture's grid."""
    turned = [
        grid[:, :: 1 - 2 * v, :: 1 - 2 * h]
        for grid in (plain, transposed)
        for v in (0, 1)
        for h in (0, 1)
    ]
    return np.stack(turned, axis=1)


def _average(thumbs_NSS: NDArray[np.float32]) -> NDArray[np.bool_]:
    means = _blocks(thumbs_NSS, GRID, GRID)
    grids = _turned(means, means.swapaxes(1, 2))
    bits: NDArray[np.bool_] = grids > grids.mean(axis=(2, 3), keepdims=True)
    return bits


def _wavelet(thumbs_NSS: NDArray[np.float32]) -> NDArray[np.bool_]:
    # The low-pass band of the Haar transform is the block mean up to a factor.
    means = _blocks(thumbs_NSS, GRID, GRID)
    grids = _turned(means, means.swapaxes(1, 2))
    bits: NDArray[np.bool_] = grids > np.median(grids, axis=(2, 3), keepdims=True)
    return bits


def _difference(thumbs_NSS: NDArray[np.float32]) -> NDArray[np.bool_]:
    wide = _blocks(thumbs_NSS, GRID, GRID + 1)
    tall = _blocks(thumbs_NSS, GRID + 1, GRID)
    grids = _turned(wide, tall.swapaxes(1, 2))
    bits: NDArray[np.bool_] = grids[..., 1:] > grids[..., :-1]
    return bits


def _perceptual(thumbs_NSS: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Signs of the 8 x 8 lowest DCT coefficients.

    The usual threshold is their median; the sign makes a mirrored picture's code an exact
    permutation of the plain one's. The first coefficient (brightness) is cleared.
    """
    k, n = np.arange(GRID)[:, None], np.arange(SIDE)
    basis = np.cos(np.pi * (n + 0.5) * k / SIDE).astype(np.float32)
    coefficients = basis @ thumbs_NSS @ basis.T
    coefficients[:, 0, 0] = 0
    sign = np.where(np.arange(GRID) % 2, -1.0, 1.0).astype(np.float32)
    turned = [
        grid * (sign[:, None] if v else 1) * (sign if h else 1)
        for grid in (coefficients, coefficients.swapaxes(1, 2))
        for v in (0, 1)
        for h in (0, 1)
    ]
    bits: NDArray[np.bool_] = np.stack(turned, axis=1) > 0
    return bits


HASHES: dict[HashKind, Callable[[NDArray[np.float32]], NDArray[np.bool_]]] = {
    "average": _average,
    "perceptual": _perceptual,
    "difference": _difference,
    "wavelet": _wavelet,
}


Join = Callable[[NDArray[np.uint64], int], tuple[NDArray[Any], NDArray[Any], NDArray[np.uint8]]]
"""What `turned_pairs_within` is."""


def near_links(
    codes_NKO: NDArray[np.uint64], radius: int, join: Join = turned_pairs_within
) -> NDArray[np.int64]:
    """Return links_L3, rows (i, j, distance) with i < j, of all pairs within `radius` bits.

    The distance of two pictures is, over the eight orientations of i, the least of the largest
    Hamming distance among the K kinds: all kinds must agree on the same orientation. Sorted and
    exact; memory is 33 bytes a link. `join` may find the pairs in another way. Raises UserError
    when numba is not installed.
    """
    links_L3: NDArray[np.int64] = np.stack(
        join(codes_NKO, radius), axis=1, dtype=np.int64, casting="safe"
    )
    return links_L3
