"""Places on the body: one fixed list, and what sources call them.

The list is coarse, since sources are: HAM10000 names fifteen places (Tschandl, Rosendahl and
Kittler, "The HAM10000 dataset", Sci Data 2018, table 3), each of which has its place here.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import yaml

Site = Literal[
    "scalp",
    "face",
    "ear",
    "lip",
    "neck",
    "chest",
    "abdomen",
    "back",
    "trunk",
    "arm",
    "hand",
    "palm",
    "nail",
    "genitals",
    "leg",
    "foot",
    "sole",
    "palm or sole",
]
"""`trunk` is chest, abdomen or back where a source does not say which; acral: `palm or sole`."""
SITES: tuple[Site, ...] = get_args(Site)
Laterality = Literal["left", "right", "midline"]
"""The side of the person's body, as the person would name it."""


class SiteRow(NamedTuple):
    """A place of the list, as `tables/body_sites.yaml` has it."""

    codes: str
    """SNOMED CT codes of the place and of what lies in it."""
    also: Sequence[str] = ()
    """What sources call it, the ISIC archive's names (ImageMarkup/isic-metadata) among them."""
    concept: str = ""
    """The code of the place itself and its meaning; of the sole that of the foot's skin."""
    within: Site | None = None
    """The wider place by which most sources name it."""


@cache
def site_table() -> dict[Site, SiteRow]:
    text = (Path(__file__).parent / "tables" / "body_sites.yaml").read_text(encoding="utf-8")
    return {site: SiteRow(**row) for site, row in yaml.safe_load(text).items()}


@cache
def snomed_sites() -> dict[str, Site]:
    """Return the place of each SNOMED CT code."""
    return {code: site for site, row in site_table().items() for code in row.codes.split()}


@cache
def wider_site(site: str) -> str:
    """Return the place by which most sources name a finer one, such as the face of a lip."""
    wider = (row.within for name, row in site_table().items() if name == site)
    return next(wider, None) or site


@cache
def _synonyms() -> dict[str, Site]:
    return {name: site for site, row in site_table().items() for name in row.also}


def site_of(text: str) -> str:
    """Return the place that a text names; a text that names none of the list stays as it is."""
    plain = " ".join(text.casefold().split())
    return _synonyms().get(plain, plain)
