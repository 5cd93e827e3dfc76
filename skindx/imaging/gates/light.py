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
        return Finding(
            "the photo is too dark to be judged; take it again in daylight or with the flash."
            if brightest < DARK
            else "The photo is dark: take it again in daylight if you can.",
            fatal=bool(brightest < DARK),
        )
    if darkest > PALE:
        return Finding(
            "the photo is too bright to be judged; take it again without flash, out of the sun."
            if darkest > BRIGHT
            else "The photo is very bright: take it again out of direct light if you can.",
            fatal=bool(darkest > BRIGHT),
        )
    return None
