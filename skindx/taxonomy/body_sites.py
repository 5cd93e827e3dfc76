"""Places on the body: one fixed list, and what sources call them.

The list is coarse, since sources are: HAM10000 names fifteen places (Tschandl, Rosendahl and
Kittler, "The HAM10000 dataset", Sci Data 2018, table 3), each of which has its place here.
"""

from typing import Literal, get_args

Site = Literal[
    "scalp",
    "face",
    "ear",
    "neck",
    "chest",
    "abdomen",
    "back",
    "trunk",
    "arm",
    "hand",
    "genitals",
    "leg",
    "foot",
    "palm or sole",
]
"""`trunk` is chest, abdomen or back where a source does not say which; acral: palm or sole."""
SITES: tuple[Site, ...] = get_args(Site)

_SYNONYMS: dict[str, Site] = {
    "upper extremity": "arm",
    "lower extremity": "leg",
    "genital": "genitals",
    "torso": "trunk",
    "upper limb": "arm",
    "lower limb": "leg",
    "head": "face",
    "acral": "palm or sole",
    "palms/soles": "palm or sole",
}


def site_of(text: str) -> str:
    """Return the place that a text names; a text that names none of the list stays as it is."""
    plain = " ".join(text.casefold().split())
    return _SYNONYMS.get(plain, plain)
