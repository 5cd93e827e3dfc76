"""Ranking of lesions: by the urgent risk, then by the ugly duckling."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.scan.lesion import Lesion, ScannedPhoto
from skindx.scan.ugly_duckling import Difference, differences

# N = lesions of all photos


@dataclass(frozen=True)
class RankedLesion:
    """A lesion with its place among all lesions of a person."""

    rank: int
    """From 1: look at it first."""
    photo: int
    """Number of its photo, from 0."""
    lesion: Lesion
    difference: Difference | None
    """From the person's other lesions; None: there are too few of them."""
    diameter_mm: float | None
    """None: the photo has no scale."""

    @property
    def diameter_px(self) -> float:
        """Geometric mean of the box's sides, in pixels of the upright photo."""
        return diameter(self.lesion)


def rank(photos: Sequence[ScannedPhoto]) -> tuple[RankedLesion, ...]:
    """Rank the lesions on all photos of one person.

    First come lesions whose risk reaches the bundle's controlled threshold, then higher risks.
    Risks that read the same in whole per cent count as equal: among them a lesion comes first that
    differs more from the person's others, and then one of which the detector is more certain.
    The order of `photos` decides no rank but between lesions that are equal in all of it.
    """
    # In an order of their own: a sum of floats depends on the order of its parts.
    found = sorted(
        ((place, lesion) for place, photo in enumerate(photos) for lesion in photo.lesions),
        key=lambda item: (photos[item[0]].sha256, *_canonical(item[1]), item[0]),
    )
    lesions = [lesion for _, lesion in found]
    compared = differences(lesions, _comparable_sizes(photos, found))
    scored = list(zip(found, compared, strict=True))
    scored.sort(key=lambda item: _urgency(item[0][1], item[1]))
    return tuple(
        RankedLesion(number, place, lesion, difference, _millimetres(photos[place], lesion))
        for number, ((place, lesion), difference) in enumerate(scored, 1)
    )


def diameter(lesion: Lesion) -> float:
    """Return the geometric mean of the box's sides, in pixels of the upright photo."""
    return math.sqrt((lesion.box.x2 - lesion.box.x1) * (lesion.box.y2 - lesion.box.y1))


def shown_percent(risk: float | None) -> int:
    """Return the risk as a page shows it: 0 stands for none and "< 1 %", 100 for "> 99 %"."""
    if risk is None:
        return 0
    if risk > 0.99:
        return 100
    return 0 if risk < 0.01 else round(100 * risk)


def _urgency(lesion: Lesion, difference: Difference | None) -> tuple[float, ...]:
    score = round(difference.score, 6) if difference else 0.0
    return (
        0 if lesion.urgent else 1,
        -shown_percent(lesion.urgent_risk),
        -score,
        -(lesion.box.score or 0.0),
        -round(lesion.urgent_risk or 0.0, 9),
    )


def _canonical(lesion: Lesion) -> tuple[float, ...]:
    box = lesion.box
    return (box.y1, box.x1, box.y2, box.x2, lesion.urgent_risk or 0.0, *lesion.colour_lab)


def _millimetres(photo: ScannedPhoto, lesion: Lesion) -> float | None:
    return None if photo.mm_per_pixel is None else diameter(lesion) * photo.mm_per_pixel


def _comparable_sizes(
    photos: Sequence[ScannedPhoto], found: Sequence[tuple[int, Lesion]]
) -> NDArray[np.float64]:
    """Return diameters of one unit: millimetres, or shares of their photo's median.

    Photos without a scale may have been taken from different distances.
    """
    sizes_N = np.array([diameter(lesion) for _, lesion in found], np.float64)
    for place in {place for place, _ in found}:
        own_N = np.array([other == place for other, _ in found])
        scale = photos[place].mm_per_pixel
        if scale is not None and all(photo.mm_per_pixel is not None for photo in photos):
            sizes_N[own_N] *= scale
        else:
            sizes_N[own_N] /= np.median(sizes_N[own_N])
    return sizes_N
