"""From a place where lines repeat along the whole row of ticks."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.scan.pixels import ReadRegion
from skindx.scan.ruler.candidates import Candidate
from skindx.scan.ruler.strip import Strip, filled
from skindx.scan.ruler.wave import Wave, extended, wave_in

# V = rows of the strip (along the ticks), T = ticks

_PERIOD_PX = 12.0
"""The strip is read so that ticks are at most this far apart."""
_LENGTHS = (12, 30, 120)
"""Periods to each side: direction and period of a short strip are refined in longer ones."""
_HALF_WIDTH = 12
"""Periods."""
_GROWTHS = 6
"""How often a row is followed further by the change of its period."""
LEAST_TICKS = 15
SHORT = 0.5
"""Share of the median length: what is shorter is no tick, or a finger lies on it."""
_FAINT, _HALF = 0.35, 0.45
"""Share of the median contrast below which no tick is seen, and of its own where a tick ends."""
_MOST_JITTER = 0.12
"""Of the ticks from a smooth course, in periods."""


@dataclass(frozen=True)
class TickRow:
    """Ticks at regular distances, in pixels of the upright photo."""

    ticks_T2: NDArray[np.float64]
    """Start of the ticks, at the ruler's edge."""
    lengths_T: NDArray[np.float64]
    """In periods."""
    along: tuple[float, float]
    """Unit vector from the first tick to the last."""
    across: tuple[float, float]
    """Unit vector along the ticks, away from the edge."""
    period: float
    """From tick to tick in the middle of the row."""
    period_first: float
    period_last: float
    jitter: float
    """Root mean square of the ticks' distances from a smooth course, in pixels."""


def trace(read: ReadRegion, width: int, height: int, seed: Candidate) -> TickRow | None:
    """Follow the ticks from a candidate to both ends; None: no regular row of ticks is there."""
    for length in _LENGTHS:
        found = _around(read, (width, height), seed, length)
        if found is None:
            return None
        strip, wave = found
        seed = _refined(strip, wave, seed.score)
    for _ in range(_GROWTHS):
        carrier_J = extended(wave, strip.grey_VJ.shape[1])
        longer = wave_in(strip, seed.period * strip.scale, carrier_J)
        if longer is None or len(longer.columns_J) <= len(wave.columns_J):
            break
        wave = longer
    return _ticks(strip, wave)


def _around(
    read: ReadRegion, photo_wh: tuple[int, int], seed: Candidate, length: int
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


def _refined(strip: Strip, wave: Wave, score: float) -> Candidate:
    """Return the place, direction and period that a wave has."""
    column = float(wave.columns_J[len(wave.columns_J) // 2])
    x, y = strip.photo(np.array(column), np.array(wave.row + wave.slope * column))
    rate = float(np.polyfit(wave.columns_J, wave.phase_J, 1)[0])
    angle = strip.angle + float(np.arctan(wave.slope))
    return Candidate(float(x), float(y), angle, 2 * np.pi / rate / strip.scale, score)


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


def _unit(vector: NDArray[np.float64]) -> tuple[float, float]:
    x, y = vector / np.hypot(*vector)
    return float(x), float(y)


def _lengths(
    strip: Strip, wave: Wave, column_T: NDArray[np.float64], period: float
) -> tuple[NDArray[np.float64], float, int]:
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
    own_T = contrast_TV[:, at]
    own_T = np.where(own_T < _FAINT * np.median(own_T), np.inf, own_T)
    seen_TV = contrast_TV > np.maximum(_HALF * own_T, 1e-3)[:, None]
    below_T = (~seen_TV[:, at:]).argmax(axis=1) + np.where(seen_TV[:, at:].all(axis=1), rows, 0)
    above_T = (~seen_TV[:, at::-1]).argmax(axis=1)
    lengths_T = np.minimum(below_T + above_T, rows) / period
    # Ticks begin together at the edge and end at different distances from it.
    inwards = 1 if below_T.std() >= above_T.std() else -1
    begin = np.median(above_T if inwards > 0 else below_T)
    return lengths_T.astype(np.float64), float(off_V[at] - inwards * begin), inwards
