"""Candidates of rulers: parallel lines at equal distances, from spectra of small windows."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from skindx.scan.pixel_store import Floats, Ints, ReadRegion

# N = windows, S = window side, A = directions, R = radii of the spectrum

WINDOW, STRIDE = 96, 48
_BLOCK = 1008
"""Pixels that are read at once: a multiple of the stride."""
_SIDES = (512, 1024, 2048, 4096, 8192)
"""Longer sides at which the photo is searched: ticks must be 3 to 14 pixels apart in one."""
_NEAREST_PX, _FARTHEST_PX = 3.0, 14.0
_DIRECTIONS = 72
_RADII = 52
_OVER_ALL_DIRECTIONS, _OVER_OTHER_RADII = 40.0, 5.0
"""Power of a peak over that in the other directions, and over that at frequencies beside its
own: noise stays far below one, edges of things below the other."""
_APART = 1.55
"""Times the frequency, up and down."""
_LEAST_CONTRAST = 1.5
"""Least standard deviation of a window, in grey levels."""


@dataclass(frozen=True)
class TickCandidate:
    """Lines that repeat around a place; `angle` is the direction across them."""

    x: float
    y: float
    angle: float
    """Radians, 0 along x, clockwise as rows go down, in [0, pi)."""
    period: float
    """Pixels of the upright photo from line to line."""
    score: float
    """Clarity of the lines, 1 or more; higher is clearer."""


def searches(read: ReadRegion, width: int, height: int) -> Iterator[list[TickCandidate]]:
    """Yield candidates at growing scales, the clearest first; no two are of the same place."""
    longest = max(width, height)
    for side in _SIDES:
        scale = min(1.0, side / longest)
        candidates = [
            candidate
            for block in _blocks(width, height, scale)
            for candidate in _in_block(read, block, scale)
        ]
        yield _distinct(candidates, 2 * WINDOW / scale)
        if scale == 1:
            return


def _blocks(width: int, height: int, scale: float) -> Iterator[tuple[int, int, int, int]]:
    """Yield regions of the photo that overlap by a window, at most `_BLOCK` pixels when scaled."""
    step, size = (_BLOCK - WINDOW + STRIDE) / scale, _BLOCK / scale
    for row in range(max(1, int(np.ceil((height - WINDOW / scale) / step)))):
        for column in range(max(1, int(np.ceil((width - WINDOW / scale) / step)))):
            x1, y1 = round(column * step), round(row * step)
            yield x1, y1, min(width, round(x1 + size)), min(height, round(y1 + size))


def _in_block(
    read: ReadRegion, block: tuple[int, int, int, int], scale: float
) -> list[TickCandidate]:
    import cv2

    x1, y1, x2, y2 = block
    grey_HW = cv2.cvtColor(np.ascontiguousarray(read(x1, y1, x2, y2, scale)), cv2.COLOR_RGB2GRAY)
    height, width = grey_HW.shape
    if min(height, width) < WINDOW:
        return []
    all_YXSS = np.lib.stride_tricks.sliding_window_view(grey_HW, (WINDOW, WINDOW))
    windows_YXSS = all_YXSS[::STRIDE, ::STRIDE]
    candidates: list[TickCandidate] = []
    for row, windows_XSS in enumerate(windows_YXSS):
        score_X, angle_X, period_X = _peaks(windows_XSS.astype(np.float32))
        for column in np.flatnonzero(score_X >= 1):
            middle_x = x1 + (column * STRIDE + WINDOW / 2) / scale
            middle_y = y1 + (row * STRIDE + WINDOW / 2) / scale
            candidates.append(
                TickCandidate(
                    middle_x,
                    middle_y,
                    float(angle_X[column]),
                    float(period_X[column]) / scale,
                    float(score_X[column]),
                )
            )
    return candidates


def _peaks(windows_NSS: NDArray[np.float32]) -> tuple[Floats, Floats, Floats]:
    """Return score, direction in radians and period in pixels of each window's clearest peak."""
    taper_S = np.hanning(WINDOW).astype(np.float32)
    flat_NSS = windows_NSS - windows_NSS.mean(axis=(1, 2), keepdims=True)
    spectrum = np.fft.rfft2(flat_NSS * taper_S[:, None] * taper_S)
    power = (spectrum.real**2 + spectrum.imag**2).astype(np.float64)
    rows_AR, columns_AR, angle_A, period_R = _polar()
    polar_NAR = sum(
        power[:, (rows_AR + dy) % WINDOW, np.clip(columns_AR + dx, 0, WINDOW // 2)]
        for dy in (-1, 0, 1)
        for dx in (-1, 0, 1)
    )
    assert isinstance(polar_NAR, np.ndarray)
    polar_NAR = polar_NAR + 1e-9
    around_N1R = np.median(polar_NAR, axis=1, keepdims=True)
    apart = round(np.log(_APART) / np.log(period_R[0] / period_R[1]))
    lower_NAR = np.pad(polar_NAR, ((0, 0), (0, 0), (apart, 0)), "edge")[:, :, : len(period_R)]
    higher_NAR = np.pad(polar_NAR, ((0, 0), (0, 0), (0, apart)), "edge")[:, :, apart:]
    score_NAR = np.minimum(
        polar_NAR / around_N1R / _OVER_ALL_DIRECTIONS,
        polar_NAR / np.maximum(lower_NAR, higher_NAR) / _OVER_OTHER_RADII,
    )
    score_NAR[windows_NSS.std(axis=(1, 2)) < _LEAST_CONTRAST] = 0
    score_NAR[:, :, (period_R < _NEAREST_PX) | (period_R > _FARTHEST_PX)] = 0
    # The clearest peak with most of the power: its harmonics are as clear, and weaker.
    best_N = np.where(score_NAR >= 1, polar_NAR, 0).reshape(len(windows_NSS), -1).argmax(axis=1)
    at_A, at_R = np.unravel_index(best_N, (len(angle_A), len(period_R)))
    score_N = score_NAR[np.arange(len(windows_NSS)), at_A, at_R]
    return score_N, angle_A[at_A], period_R[at_R]


@cache
def _polar() -> tuple[Ints, Ints, Floats, Floats]:
    """Return the spectrum's rows_AR and columns_AR, and what they stand for: angle_A, period_R."""
    angle_A = np.arange(_DIRECTIONS) * np.pi / _DIRECTIONS
    period_R = np.geomspace(_APART * _FARTHEST_PX, _NEAREST_PX / _APART, _RADII)
    fx_AR = np.cos(angle_A)[:, None] * WINDOW / period_R
    fy_AR = np.sin(angle_A)[:, None] * WINDOW / period_R
    # A real image's spectrum is stored for fx >= 0; the other half is its mirror.
    mirror_AR = np.where(fx_AR < 0, -1, 1)
    rows_AR = np.rint(fy_AR * mirror_AR).astype(np.int64) % WINDOW
    return rows_AR, np.rint(fx_AR * mirror_AR).astype(np.int64), angle_A, period_R


def _distinct(candidates: list[TickCandidate], apart: float) -> list[TickCandidate]:
    """Keep the clearest candidates, of which no two are nearer than `apart` pixels."""
    kept: list[TickCandidate] = []
    for candidate in sorted(candidates, key=lambda one: (-one.score, one.y, one.x)):
        near = (np.hypot(candidate.x - one.x, candidate.y - one.y) < apart for one in kept)
        if not any(near):
            kept.append(candidate)
    return kept
