"""Follow a row of ticks along its whole length, from a place where lines repeat.

The strip of pixels along the row is turned so that ticks stand upright, multiplied by a wave of the
expected period and smoothed (phase demodulation). Where ticks are, the product is large, and its
phase says where they stand to a fraction of a pixel, also where perspective changes their distance
slowly.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from skindx.scan.pixel_store import Floats, Ints, ReadRegion
from skindx.scan.tick_candidates import TickCandidate

# V = rows of the strip (along the ticks), J = its columns (along the row of ticks)


@dataclass(frozen=True)
class Strip:
    grey_VJ: NDArray[np.float32]
    scale: float
    x: float
    y: float
    angle: float

    def photo(self, column: Floats, row: Floats) -> Floats:
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


_COHERENT, _STRONG = 0.18, 0.3
"""Least share of a place's contrast that is of the period, and of the clearest place's."""


@dataclass(frozen=True)
class Wave:
    """Periodic part of a strip: `phase_J` counts ticks, in radians, along the row of ticks."""

    columns_J: Ints
    phase_J: Floats
    row: float
    slope: float
    """Rows that the row of ticks goes down with each column."""
    shear: float
    """Columns by which a tick moves with each row."""
    dark: bool
    """Whether ticks are darker than what lies between them."""


def extended(wave: Wave, columns: int) -> Floats:
    """Return the phase of the ticks in all columns, as a parabola continues it.

    Under perspective the period changes along the row, by more than what one wave is in step with.
    """
    middle = wave.columns_J.mean()
    bend, rate, offset = np.polyfit(wave.columns_J - middle, wave.phase_J, 2)
    off_J = np.arange(columns) - middle
    rate_J = np.clip(rate + 2 * bend * off_J, 0.5 * rate, 2 * rate)
    phase_J = np.cumsum(rate_J)
    extended_J: Floats = phase_J - phase_J[round(middle)] + offset
    return extended_J


def wave_in(strip: Strip, period: float, carrier_J: Floats) -> Wave | None:
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


# V = rows of the strip (along the ticks), T = ticks

_PERIOD_PX = 12.0
"""Periods to each side: a short strip gives direction and period, longer ones refine them."""
_LENGTHS = (12, 30, 120)
"""Half of the strip's width in periods."""
_HALF_WIDTH = 12
"""Periods."""
_GROWTHS = 6
"""How often a row is followed further by the change of its period."""
LEAST_TICKS = 15
SHORT = 0.5
"""Share of the median length below which a mark is no tick, or a finger covers it."""
_FAINT, _HALF = 0.35, 0.45
"""Share of the median contrast below which no tick is seen, and of its own where a tick ends."""
_MOST_JITTER = 0.12
"""Most deviation of the ticks from a smooth course, in periods."""


@dataclass(frozen=True)
class TickRow:
    """Ticks at regular distances, in pixels of the upright photo."""

    ticks_T2: Floats
    """Start of the ticks, at the ruler's edge."""
    lengths_T: Floats
    """Length of each tick in periods."""
    along: tuple[float, float]
    """Unit vector from the first tick to the last."""
    across: tuple[float, float]
    """Unit vector along the ticks, away from the edge."""
    period: float
    """Pixels from tick to tick in the middle of the row."""
    period_first: float
    period_last: float
    jitter: float
    """Root mean square of the ticks' distances from a smooth course, in pixels."""


def trace(read: ReadRegion, width: int, height: int, seed: TickCandidate) -> TickRow | None:
    """Follow the ticks from a candidate to both ends; None: no regular row of ticks is there."""
    for length in _LENGTHS:
        strip_and_wave = _around(read, (width, height), seed, length)
        if strip_and_wave is None:
            return None
        strip, wave = strip_and_wave
        seed = _refined(strip, wave, seed.score)
    for _ in range(_GROWTHS):
        carrier_J = extended(wave, strip.grey_VJ.shape[1])
        longer = wave_in(strip, seed.period * strip.scale, carrier_J)
        if longer is None or len(longer.columns_J) <= len(wave.columns_J):
            break
        wave = longer
    return _ticks(strip, wave)


def _around(
    read: ReadRegion, photo_wh: tuple[int, int], seed: TickCandidate, length: int
) -> tuple[Strip, Wave] | None:
    """Return the strip `length` periods to both sides of a candidate, with what repeats there."""
    scale = min(1.0, _PERIOD_PX / seed.period)
    period = seed.period * scale
    width, height = photo_wh
    farthest = np.hypot(max(seed.x, width - seed.x), max(seed.y, height - seed.y))
    length = min(length, int(np.ceil(farthest / seed.period)))
    size_wh = round(2 * length * period), round(2 * _HALF_WIDTH * period)
    empty = Strip(np.zeros(size_wh[::-1], np.float32), scale, seed.x, seed.y, seed.angle)
    strip = filled(empty, read, photo_wh)
    if strip is None:
        return None
    wave = wave_in(strip, period, 2 * np.pi / period * np.arange(size_wh[0], dtype=np.float64))
    return None if wave is None else (strip, wave)


def _refined(strip: Strip, wave: Wave, score: float) -> TickCandidate:
    """Return the place, direction and period that a wave has."""
    column = float(wave.columns_J[len(wave.columns_J) // 2])
    x, y = strip.photo(np.array(column), np.array(wave.row + wave.slope * column))
    rate = float(np.polyfit(wave.columns_J, wave.phase_J, 1)[0])
    angle = strip.angle + float(np.arctan(wave.slope))
    return TickCandidate(float(x), float(y), angle, 2 * np.pi / rate / strip.scale, score)


def _ticks(strip: Strip, wave: Wave) -> TickRow | None:
    """Return the ticks that a wave counts; None: they are few or irregular."""
    phase_J = wave.phase_J - (np.pi if wave.dark else 0)
    first, last = np.ceil(phase_J[0] / 2 / np.pi), np.floor(phase_J[-1] / 2 / np.pi)
    number_T = np.arange(first, last + 1)
    if len(number_T) < LEAST_TICKS:
        return None
    column_T = np.interp(2 * np.pi * number_T, phase_J, wave.columns_J.astype(float))
    course = np.polynomial.Polynomial.fit(number_T, column_T, 3)
    jitter = float(np.sqrt(((course(number_T) - column_T) ** 2).mean()))
    period_T = course.deriv()(number_T)
    middle = float(np.median(period_T))
    if jitter > _MOST_JITTER * middle or period_T.min() <= 0:
        return None
    lengths_T, off, inwards = _lengths(strip, wave, column_T, middle)
    line_T = wave.row + wave.slope * column_T
    ticks_T2 = strip.photo(column_T + wave.shear * off, line_T + off)
    # The wave rings on beyond the last tick.
    seen = np.flatnonzero(lengths_T > SHORT * np.median(lengths_T))
    kept = slice(seen[0], seen[-1] + 1) if len(seen) else slice(0)
    ticks_T2, lengths_T, period_T = ticks_T2[kept], lengths_T[kept], period_T[kept]
    if len(ticks_T2) < LEAST_TICKS:
        return None
    along = ticks_T2[-1] - ticks_T2[0]
    tilt = strip.photo(np.array(wave.shear), np.array(1.0)) - strip.photo(
        np.array(0.0), np.array(0.0)
    )
    return TickRow(
        ticks_T2,
        lengths_T,
        _unit(along),
        _unit(inwards * tilt),
        middle / strip.scale,
        float(period_T[0]) / strip.scale,
        float(period_T[-1]) / strip.scale,
        jitter / strip.scale,
    )


def _unit(vector: Floats) -> tuple[float, float]:
    x, y = vector / np.hypot(*vector)
    return float(x), float(y)


def _lengths(
    strip: Strip, wave: Wave, column_T: Floats, period: float
) -> tuple[Floats, float, int]:
    """Return how long each tick is, in periods, and where they begin.

    That is in rows off their middles, and 1 or -1: whether they go on down or up from there.
    """
    import cv2

    rows = strip.grey_VJ.shape[0]
    row_V = np.arange(rows, dtype=np.float64)
    # Off the line of the ticks' middles, in rows; that line is at row 0.
    off_V = row_V - rows / 2
    line_T = wave.row + wave.slope * column_T
    soft_VJ = cv2.GaussianBlur(strip.grey_VJ, (0, 0), sigmaX=0.08 * period, sigmaY=0.3 * period)

    def sampled(shift: float) -> NDArray[np.float32]:
        x_TV = column_T[:, None] + shift * period + wave.shear * off_V
        y_TV = line_T[:, None] + off_V
        values: NDArray[np.float32] = cv2.remap(
            soft_VJ,
            x_TV.astype(np.float32),
            y_TV.astype(np.float32),
            cv2.INTER_LINEAR,
            borderMode=cv2.BORDER_REPLICATE,
        )
        return values

    contrast_TV = (sampled(-0.5) + sampled(0.5)) / 2 - sampled(0)
    if not wave.dark:
        contrast_TV = -contrast_TV
    common_V = np.percentile(contrast_TV, 20, axis=0)
    near_V = np.abs(off_V) < 4 * period
    at = int(np.where(near_V, common_V, -np.inf).argmax())
    contrast_T = contrast_TV[:, at]
    contrast_T = np.where(contrast_T < _FAINT * np.median(contrast_T), np.inf, contrast_T)
    seen_TV = contrast_TV > np.maximum(_HALF * contrast_T, 1e-3)[:, None]
    below_T = (~seen_TV[:, at:]).argmax(axis=1) + np.where(seen_TV[:, at:].all(axis=1), rows, 0)
    above_T = (~seen_TV[:, at::-1]).argmax(axis=1)
    lengths_T = np.minimum(below_T + above_T, rows) / period
    # Ticks begin together at the edge and end at different distances from it.
    inwards = 1 if below_T.std() >= above_T.std() else -1
    begin = np.median(above_T if inwards > 0 else below_T)
    return lengths_T.astype(np.float64), float(off_V[at] - inwards * begin), inwards
