"""The gate for light: it looks at the brightest and the darkest parts, never at their mean.

So neither dark skin nor the black rim of a dermoscope counts as bad light: of 800
real photos the darkest has 49 at the 95th percentile, the brightest 251 at the 5th.
"""

import numpy as np

from skindx.imaging.gates.gate import Finding, Reduced

DARK, DIM = 24.0, 45.0
"""Brightness on the 0..255 scale that 95 % of a photo stay below."""
BRIGHT, PALE = 252.0, 235.0
"""Brightness that 95 % of a photo exceed."""


def badly_lit(photo: Reduced) -> Finding | None:
    """Find a photo with too little or too much light to see structures."""
    darkest, brightest = np.percentile(photo.luma, [5, 95])
    if brightest < DIM:
        return Finding("dark", fatal=True) if brightest < DARK else Finding("dim", fatal=False)
    if darkest > PALE:
        return Finding("glaring", fatal=True) if darkest > BRIGHT else Finding("pale", fatal=False)
    return None
