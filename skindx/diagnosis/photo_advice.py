"""The wording of what is wrong with a photo: too dark, too blurred, no skin, an unread profile.

`imaging/photo_gates.py` measures the faults, and `photo_checks.py` refuses or remarks by them.
"""

from skindx.imaging.photo_gates import Fault
from skindx.imaging.stored_colours import ColourNote

ADVICE: dict[Fault, str] = {
    "dark": "the photo is too dark to be judged; take it again with more light.",
    "dim": "The photo is dark: take it again with more light if you can.",
    "glaring": "the photo is too bright to be judged; take it again with less light.",
    "pale": "The photo is very bright: take it again with less light if you can.",
    "no-skin": (
        "no skin is visible in this photo; take a colour photo from so near that skin fills "
        "most of it."
    ),
    "blurred": (
        "the photo is too blurred to be judged; hold still, focus on the skin and take it again."
    ),
    "soft": "The photo is not quite sharp: fine structures may be lost.",
}
"""Refusals go on in a sentence, remarks stand alone."""

REMARKS: dict[ColourNote, str] = {
    "profile-ignored": (
        "The photo's colour profile cannot be read and was ignored: its colours may be off."
    ),
}
