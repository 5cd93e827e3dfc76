"""Advice for a photo that a gate refuses."""

from skindx.imaging.gates import Fault

ADVICE: dict[Fault, str] = {
    "dark": "the photo is too dark to be judged; take it again in daylight or with the flash.",
    "dim": "The photo is dark: take it again in daylight if you can.",
    "glaring": (
        "the photo is too bright to be judged; take it again without flash, out of the sun."
    ),
    "pale": "The photo is very bright: take it again out of direct light if you can.",
    "no-skin": (
        "no skin is visible in this photo; take a colour photo from so near that skin fills "
        "most of it."
    ),
    "blurred": (
        "the photo is too blurred to be judged; hold still, keep a hand's breadth away and "
        "tap on the skin to focus."
    ),
    "soft": "The photo is not quite sharp: fine structures may be lost.",
}
"""Refusals go on in a sentence, remarks stand alone."""
