"""How much matched lesions grew and changed their colour, and which of it is no chance."""

import numpy as np
from numpy.typing import NDArray

from skindx.scan.compare.matching import Matched
from skindx.scan.compare.view import View

# N = matched pairs

_EDGE_PX, _EDGE_SHARE = 0.7, 0.05
"""Standard deviation of one edge of a detector's box: pixels of the photo, and share of its size.
The spread of the person's own lesions replaces it where it is larger."""
_PRIOR_LESIONS = 8
_LEAST_FOR_MIDDLE = 8
_FALSE_SHARE = 0.05
"""Of the lesions called grown or shrunk, expected to be unchanged (Benjamini and Hochberg 1995)."""
_SPREAD = 1.4826
_TYPICAL_COLOUR, _LEAST_COLOUR, _COLOUR_SPREADS = 2.5, 6.0, 4.0


def growth_of(
    before: View, after: View, matched: Matched
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the logarithm of each pair's growth and its standard deviation.

    Sizes are compared in millimetres where both photos have a scale, and else by the registration,
    which says how much larger the skin around a lesion is in the photo after.
    """
    own_N, other_N = matched.pairs_N2.T
    size_N, after_N = before.sizes[own_N], after.sizes[other_N]
    warp = matched.registration.warp
    if before.mm_per_pixel and after.mm_per_pixel:
        scale_N = np.full(len(own_N), before.mm_per_pixel / after.mm_per_pixel)
    else:
        scale_N = warp.scales(before.centres[own_N], around=float(np.median(size_N)))
    growth_N = np.log(after_N / (size_N * scale_N))
    # The median of many lesions does not grow: it is an error of the scale, or of the light.
    if len(growth_N) >= _LEAST_FOR_MIDDLE:
        growth_N -= np.median(growth_N)
    edge_N = _edge(size_N, before), _edge(after_N, after)
    # A diameter is the root of two sides, and each is between two edges.
    model_N = np.hypot(*edge_N)
    seen = _SPREAD * float(np.median(np.abs(growth_N - np.median(growth_N))))
    typical = float(np.median(model_N))
    n = len(growth_N)
    shared = np.sqrt((n * seen**2 + _PRIOR_LESIONS * typical**2) / (n + _PRIOR_LESIONS))
    return growth_N, np.maximum(model_N * max(1.0, shared / typical), 1e-6)


def _edge(size_N: NDArray[np.float64], view: View) -> NDArray[np.float64]:
    """Return the standard deviation of a diameter's logarithm, by the jitter of its box."""
    pixel = view.size_wh[0] / view.photo.width
    edge_N: NDArray[np.float64] = np.hypot(_EDGE_PX * pixel, _EDGE_SHARE * size_N) / size_N
    return edge_N


def two_sided(z_N: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.stats import norm

    p_N: NDArray[np.float64] = 2 * norm.sf(np.abs(z_N))
    return p_N


def discoveries(p_N: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which p-values are small for so many lesions."""
    order_N = np.argsort(p_N, kind="stable")
    passes_N = p_N[order_N] <= _FALSE_SHARE * np.arange(1, len(p_N) + 1) / len(p_N)
    last = int(np.flatnonzero(passes_N).max()) + 1 if passes_N.any() else 0
    found_N = np.zeros(len(p_N), bool)
    found_N[order_N[:last]] = True
    return found_N


def colour_changes(
    before_N3: NDArray[np.float64], after_N3: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return each pair's change of colour, and which are clear beside those of the others."""
    off_N3 = after_N3 - before_N3
    if len(off_N3) >= _LEAST_FOR_MIDDLE:
        off_N3 = off_N3 - np.median(off_N3, axis=0)
    away_N = np.sqrt((off_N3**2).sum(axis=1))
    n = len(away_N)
    seen = float(np.median(away_N)) / np.sqrt(2.366)  # the median of chi square with 3 degrees
    spread = np.sqrt((n * seen**2 + _PRIOR_LESIONS * _TYPICAL_COLOUR**2) / (n + _PRIOR_LESIONS))
    return away_N, (away_N > _LEAST_COLOUR) & (away_N > _COLOUR_SPREADS * spread)
