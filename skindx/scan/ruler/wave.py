"""Periodic patterns along a strip, by phase demodulation.

The strip is multiplied by a wave of the expected period and smoothed. Where ticks are, the product
is large, and its phase says where they stand to a fraction of a pixel, also where perspective
changes their distance slowly.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.scan.ruler.strip import Strip

# V = rows of the strip (along the ticks), J = its columns (along the row of ticks)

_COHERENT, _STRONG = 0.18, 0.3
"""Least share of a place's contrast that is of the period, and of the clearest place's."""


@dataclass(frozen=True)
class Wave:
    """Periodic part of a strip: `phase_J` counts ticks, in radians, along the row of ticks."""

    columns_J: NDArray[np.int64]
    phase_J: NDArray[np.float64]
    row: float
    slope: float
    """Rows that the row of ticks goes down with each column."""
    shear: float
    """Columns by which a tick moves with each row."""
    dark: bool
    """Whether ticks are darker than what lies between them."""


def extended(wave: Wave, columns: int) -> NDArray[np.float64]:
    """Return the phase of the ticks in all columns, as a parabola continues it.

    Under perspective the period changes along the row, by more than what one wave is in step with.
    """
    middle = wave.columns_J.mean()
    bend, rate, offset = np.polyfit(wave.columns_J - middle, wave.phase_J, 2)
    off_J = np.arange(columns) - middle
    rate_J = np.clip(rate + 2 * bend * off_J, 0.5 * rate, 2 * rate)
    phase_J = np.cumsum(rate_J)
    extended_J: NDArray[np.float64] = phase_J - phase_J[round(middle)] + offset
    return extended_J


def wave_in(strip: Strip, period: float, carrier_J: NDArray[np.float64]) -> Wave | None:
    """Find the row of ticks in the strip that is in step with a carrier; None: there is none.

    `period` in columns is that of the middle, `carrier_J` in radians.
    """
    import cv2

    def smooth(field: NDArray[np.float32], along: float, over: float) -> NDArray[np.float32]:
        smoothed: NDArray[np.float32] = cv2.GaussianBlur(
            field, (0, 0), sigmaX=along * period, sigmaY=max(over * period, 1e-3)
        )
        return smoothed

    grey_VJ = strip.grey_VJ
    rows, columns = grey_VJ.shape
    flat_VJ = grey_VJ - smooth(grey_VJ, 1.0, 0.0)
    turn_J = np.exp(-1j * carrier_J)
    real_VJ = smooth((flat_VJ * turn_J.real).astype(np.float32), 2.5, 0.4)
    imaginary_VJ = smooth((flat_VJ * turn_J.imag).astype(np.float32), 2.5, 0.4)
    product_VJ = real_VJ + 1j * imaginary_VJ
    strength_VJ = np.abs(product_VJ)
    energy_VJ = smooth(flat_VJ**2, 2.5, 0.4)
    coherent_VJ = 2 * strength_VJ**2 > _COHERENT * (energy_VJ + 1e-3)
    near_J = np.abs(np.arange(columns) - columns / 2) < 6 * period
    there = np.where(coherent_VJ & near_J, strength_VJ, 0)
    at = np.unravel_index(int(there.argmax()), there.shape)
    if there[at] < 0.5:
        return None
    mask_VJ = (coherent_VJ & (strength_VJ > _STRONG * there[at])).astype(np.uint8)
    _, labels_VJ = cv2.connectedComponents(mask_VJ, connectivity=8)
    band_VJ = labels_VJ == labels_VJ[at]
    columns_J = np.flatnonzero(band_VJ.any(axis=0))
    if len(columns_J) < 6 * period:
        return None
    weight_VJ = np.where(band_VJ, strength_VJ, 0)[:, columns_J]
    row_J = (weight_VJ * np.arange(rows)[:, None]).sum(axis=0) / weight_VJ.sum(axis=0)
    slope, row = np.polyfit(columns_J, row_J, 1, w=np.sqrt(weight_VJ.sum(axis=0)))
    both_VJ = band_VJ[:-1] & band_VJ[1:]
    turn = np.angle((product_VJ[1:] * product_VJ[:-1].conj())[both_VJ].sum())
    off_VJ = np.arange(rows)[:, None] - (row + slope * columns_J)
    total_J = (
        np.where(band_VJ[:, columns_J], product_VJ[:, columns_J], 0) * np.exp(-1j * turn * off_VJ)
    ).sum(axis=0)
    phase_J = carrier_J[columns_J] + np.unwrap(np.angle(total_J))
    if np.diff(phase_J).min() <= 0:
        return None
    inside = flat_VJ[band_VJ]
    dark = float(((inside - inside.mean()) ** 3).mean()) < 0
    shear = -float(turn) * period / (2 * np.pi)
    return Wave(columns_J, phase_J, float(row), float(slope), shear, dark)
