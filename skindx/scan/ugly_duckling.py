"""How much a lesion differs from the same person's others: the sign of the ugly duckling.

Grob and Bonerandi 1998 ("The 'ugly duckling' sign: identification of the common characteristics of
nevi in an individual as a basis for melanoma screening"). A lesion is compared in appearance (its
embedding), in size and in colour with the medians of the person's lesions; a difference is
measured in spreads (1.4826 times the median absolute deviation, the standard deviation of normal
values). The medians of few lesions say little of their spread: as many as `_PRIOR_LESIONS` typical
ones are averaged in.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.scan.lesion import Lesion

# N = lesions of one person, D = features of the embedding, 3 = L, a, b

LEAST_LESIONS = 5
"""With fewer there is nothing to differ from."""
_PRIOR_LESIONS = 5
_SPREAD = 1.4826
_TYPICAL_SIZE, _TYPICAL_COLOUR, _TYPICAL_APPEARANCE = 0.3, 3.0, 0.3
"""Spreads of a person's lesions: of the logarithm of the size, of L, a and b, and of the distance
between embeddings as a share of its median."""
_LEAST_SHARE = 0.1
"""No spread counts as less than this share of the typical one."""
STANDS_OUT = 3.0
"""From this difference on a page marks the lesion."""


@dataclass(frozen=True)
class Difference:
    """How far a lesion is from the person's other ones, in spreads; 0 is the middle."""

    appearance: float
    size: float
    """Negative: smaller than the others."""
    colour: float
    others: int
    """How many lesions it was compared with."""

    @property
    def score(self) -> float:
        """All three as one figure, their root mean square; above 3 it stands out."""
        return float(np.sqrt((self.appearance**2 + self.size**2 + self.colour**2) / 3))

    @property
    def stands_out(self) -> bool:
        """Whether the lesion is an ugly duckling."""
        return self.score >= STANDS_OUT

    @property
    def mostly(self) -> str:
        """The largest difference: appearance, size or colour."""
        parts = {"appearance": self.appearance, "size": abs(self.size), "colour": self.colour}
        return max(parts, key=lambda name: parts[name])


def differences(
    lesions: Sequence[Lesion], sizes_N: NDArray[np.float64]
) -> tuple[Difference | None, ...]:
    """Compare the lesions of one person; None for all of fewer than `LEAST_LESIONS`.

    `sizes_N` are diameters in any one unit.
    """
    if len(lesions) < LEAST_LESIONS:
        return (None,) * len(lesions)
    size_N = _size(sizes_N)
    colour_N = _colour(np.array([lesion.colour_lab for lesion in lesions], np.float64))
    appearance_N = _appearance(np.array([lesion.embedding_D for lesion in lesions], np.float64))
    return tuple(
        Difference(float(appearance), float(size), float(colour), len(lesions) - 1)
        for appearance, size, colour in zip(appearance_N, size_N, colour_N, strict=True)
    )


def _size(sizes_N: NDArray[np.float64]) -> NDArray[np.float64]:
    """Lesions differ by factors, so logarithms are compared."""
    return _from_middle(np.log(sizes_N), _TYPICAL_SIZE)


def _colour(lab_N3: NDArray[np.float64]) -> NDArray[np.float64]:
    parts_N3 = np.stack([_from_middle(lab_N3[:, k], _TYPICAL_COLOUR) for k in range(3)], axis=1)
    colour_N: NDArray[np.float64] = np.sqrt((parts_N3**2).mean(axis=1))
    return colour_N


def _appearance(embedding_ND: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compare each lesion's median distance to the others; nearer than usual counts as 0."""
    lesions = len(embedding_ND)
    length_N1 = np.linalg.norm(embedding_ND, axis=1, keepdims=True)
    unit_ND = embedding_ND / np.where(length_N1 > 0, length_N1, 1)
    apart_NN = np.sqrt(np.clip(2 - 2 * unit_ND @ unit_ND.T, 0, 4))
    others_NM = apart_NN[~np.eye(lesions, dtype=bool)].reshape(lesions, lesions - 1)
    distance_N = np.median(others_NM, axis=1)
    typical = _TYPICAL_APPEARANCE * float(np.median(distance_N))
    if typical <= 1e-4:  # all lesions look the same to the networks, but for rounding
        typical = _TYPICAL_APPEARANCE
    return np.maximum(_from_middle(distance_N, typical), 0)


def _from_middle(values_N: NDArray[np.float64], typical: float) -> NDArray[np.float64]:
    """Return distances from the median in spreads; the fewer values, the more typical a spread."""
    off_N = values_N - np.median(values_N)
    spread = _SPREAD * float(np.median(np.abs(off_N)))
    n = len(values_N)
    variance = (n * spread**2 + _PRIOR_LESIONS * typical**2) / (n + _PRIOR_LESIONS)
    spreads_N: NDArray[np.float64] = off_N / max(np.sqrt(variance), _LEAST_SHARE * typical)
    return spreads_N
