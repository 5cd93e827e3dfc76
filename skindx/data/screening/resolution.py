"""How many pixels an image is worth: an enlargement shows no more than what it was made from.

The measure asks above which frequency the image holds only a small share of its own contrast. It
does not depend on brightness and contrast, and an enlargement holds nothing above the limit of its
original, so both are worth the same. A sharpened copy is worth more: to a spectrum, sharpening
looks like detail.
"""

import numpy as np
from numpy.typing import NDArray

# H, W = pixels; L = sampled lines, N = pixels of a line

_LINES = 48
"""Rows and columns that are looked at, evenly spread over the image."""
_LOSS = 2e-3
"""Share of the lines' variance that does not matter: 27 dB below it."""
_ROUNDING = 0.05
"""Grey levels squared that do not matter either; rounding to whole levels adds 1/12."""
_PERIODS = (2, 3, 4, 5, 6, 7, 9, 10)
"""Pixels after which enlargements by repeated pixels repeat their pattern: 5 for 2.5 and 1.25.

Without 8, the side of JPEG's blocks. A texture of exactly such a period is taken for one."""
_FEWEST_PERIODS = 8
_REPEATED = 0.4
"""Squared differences of repeated pixels, as a share of any others; JPEG adds some.

Of 40 dermoscopic and 12 clinical originals none had such a pattern at 0.4, some clinical at 0.5."""
EMPTY_PIXELS = 0.5
"""Exponent by which pixels that carry nothing count against an image."""
NOISE = 0.1
"""Two images whose `worth` differs by less than this share are worth the same."""


def effective_pixels(grey_HW: NDArray[np.uint8]) -> float:
    """Return the number of pixels that an image of the same detail needs, at least 1.

    That is the product over both axes of the frequency (in half cycles an image) above which the
    cosine spectrum of sampled lines holds no more than _LOSS of their variance.
    """
    height, width = grey_HW.shape
    rows = grey_HW[np.linspace(0, height - 1, min(_LINES, height)).astype(int)]
    columns = grey_HW[:, np.linspace(0, width - 1, min(_LINES, width)).astype(int)].T
    return _cut_off(rows) * _cut_off(columns)


def worth(effective: float, pixels: int) -> float:
    """Return what duplicates are compared by: detail, less for pixels that carry none.

    Of an enlargement and its original, which have the same detail but for what interpolation and
    JPEG add, the original is worth more; of a sharp image and a smaller copy, the larger one.
    """
    return float(effective * (effective / pixels) ** EMPTY_PIXELS)


def _cut_off(lines: NDArray[np.uint8]) -> float:
    import cv2

    lines_LN = _without_repeated(lines.astype(np.float32))
    length = lines_LN.shape[1] // 2 * 2  # OpenCV transforms even lengths
    if length < 2:
        return 1.0
    lines_LN = np.ascontiguousarray(lines_LN[:, :length])
    power_N = np.square(cv2.dct(lines_LN, flags=cv2.DCT_ROWS)).mean(axis=0) / length
    above_N = np.cumsum(power_N[::-1])[::-1]  # energy of this frequency and all higher ones
    loss = _LOSS * above_N[1] + _ROUNDING
    return float(max(1, np.searchsorted(-above_N, -loss)))


def _without_repeated(lines_LN: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the lines without pixels that only repeat the one before, as far as they do so evenly.

    Nearest-neighbour enlargements have no limit of frequency, so they are undone. The median over
    all periods finds their pattern whatever single edges an image has.
    """
    differences_N = np.square(np.diff(lines_LN, axis=1)).mean(axis=0)
    repeated = np.zeros(1, bool)
    for period in _PERIODS:
        whole = len(differences_N) // period
        if whole < _FEWEST_PERIODS:
            break
        by_phase = _medians(differences_N[: whole * period].reshape(whole, period).T)
        low = by_phase < _REPEATED * by_phase.max()
        if low.mean() <= repeated.mean():
            continue  # as nearly always: no phase repeats
        apart = by_phase[low].max() <= _REPEATED * by_phase[~low].min()
        # With a wrong period pixels that differ would go as well, single edges among them.
        low_N = np.resize(low, len(differences_N))
        lost = differences_N[low_N].sum() / low_N.sum()
        apart = apart and lost <= _REPEATED * differences_N[~low_N].mean()
        gaps = np.diff(np.flatnonzero(~np.tile(low, 2)))  # an enlargement spreads pixels evenly
        if apart and np.ptp(gaps) <= 1:
            repeated = low
    if not repeated.any():
        return lines_LN
    kept_N = np.ones(lines_LN.shape[1], bool)
    kept_N[1:] = ~np.resize(repeated, len(differences_N))
    return lines_LN[:, kept_N]


def _medians(rows_PW: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the median of each row; `np.median` takes six times as long on such short ones."""
    middle = rows_PW.shape[1] // 2
    kth = middle if rows_PW.shape[1] % 2 else (middle - 1, middle)
    first = middle if rows_PW.shape[1] % 2 else middle - 1
    medians_P: NDArray[np.float32] = np.partition(rows_PW, kth, axis=1)[:, first : middle + 1].mean(
        axis=1
    )
    return medians_P
