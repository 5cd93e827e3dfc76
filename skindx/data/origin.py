"""What the images of a dataset are: photographs or paintings, dermoscopic or clinical."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings, read_yaml
from skindx.data.layout import RECIPE
from skindx.data.manifest import Record
from skindx.texts.catalogue import joined, text


@dataclass(frozen=True, slots=True)
class Licence:
    """One licence and the permissions that decide whether a changed copy may be given away."""

    id: str
    """Identifier similar to SPDX: CC-BY-NC-4.0, CC0-1.0; no version where the source has none."""
    may_redistribute: bool
    may_adapt: bool
    non_commercial: bool = False
    share_alike: bool = False
    needs_attribution: bool = False
    url: str = ""
    """The licence's own text; "" where the version is not known."""


UNKNOWN = Licence("unknown", may_redistribute=False, may_adapt=False)
RESERVED = Licence("all-rights-reserved", may_redistribute=False, may_adapt=False)

_CC = "https://creativecommons.org"
_CC0 = Licence("CC0-1.0", True, True, url=f"{_CC}/publicdomain/zero/1.0/")
_MARK = Licence("PDM-1.0", True, True, url=f"{_CC}/publicdomain/mark/1.0/")


def _open(name: str, url: str, *, needs_attribution: bool = True) -> Licence:
    return Licence(name, True, True, needs_attribution=needs_attribution, url=url)


# Folded spellings -> licence; Creative Commons with conditions follows a grammar instead.
_SPELLINGS = {
    "cc0, cc0 1.0, cc 0, cc 0 1.0, cc zero, cc zero 1.0, cc0 1.0 universal, cc0 universal, "
    "creative commons zero, creative commons zero 1.0, creative commons zero 1.0 universal, "
    "creative commons cc0, creative commons cc0 1.0, cc0 public domain dedication, "
    "cc0 1.0 universal public domain dedication": _CC0,
    "pd, pdm, pdm 1.0, cc pdm, cc pdm 1.0, public domain, in the public domain, "
    "public domain mark, public domain mark 1.0, cc public domain mark 1.0": _MARK,
    "all rights reserved, copyright, copyrighted, in copyright, ©, proprietary": RESERVED,
    "mit": _open("MIT", "https://opensource.org/license/mit"),
    "apache 2.0": _open("Apache-2.0", "https://www.apache.org/licenses/LICENSE-2.0"),
    "pddl 1.0": _open(
        "PDDL-1.0", "https://opendatacommons.org/licenses/pddl/1-0/", needs_attribution=False
    ),
    "odc by 1.0": _open("ODC-By-1.0", "https://opendatacommons.org/licenses/by/1-0/"),
    "ogl uk 3.0": _open(
        "OGL-UK-3.0", "https://www.nationalarchives.gov.uk/doc/open-government-licence/version/3/"
    ),
}
_NAMED = {name: licence for names, licence in _SPELLINGS.items() for name in names.split(", ")}

_ELEMENT = {
    "by": r"by|attribution",
    "nc": r"nc|non ?commercial",
    "nd": r"nd|no ?deriv(?:ative)?s?(?: works)?",
    "sa": r"sa|share ?alike",
}
_ANY = "|".join(_ELEMENT.values())
# Creative Commons was adapted to these countries' law up to version 3.0.
_PORT = (
    "am|ar|at|au|az|be|bg|br|ca|ch|cl|cn|co|cr|cz|de|dk|ec|ee|eg|es|fi|fr|ge|gr|gt|hk|hr|hu|ie|igo"
    "|il|in|it|jp|kr|lu|mk|mt|mx|my|nl|no|nz|pe|ph|pl|pr|pt|ro|rs|scotland|se|sg|si|th|tw|ug|uk|us"
    "|ve|vn|za"
)
_GRAMMAR = re.compile(
    r"(?P<cc>cc |creative commons )?"
    rf"(?P<elements>(?:{_ANY})(?: (?:{_ANY}))*)"
    r"(?: v?(?:(?P<version>4\.0)(?: international)?"
    rf"|(?P<ported>1\.0|2\.0|2\.1|2\.5|3\.0)(?: (?:unported|generic|(?P<port>{_PORT})))?))?"
)
_URL = re.compile(
    r"https?://(?:www\.)?creativecommons\.org/(?:"
    r"licenses/(?P<elements>by(?:-nc)?(?:-nd|-sa)?)/(?:(?P<version>4\.0)"
    rf"|(?P<ported>1\.0|2\.0|2\.1|2\.5|3\.0)(?:/(?P<port>{_PORT}))?)"
    r"|publicdomain/(?P<tool>zero|mark)/1\.0)"
    r"(?:/(?:deed|legalcode)(?:\.[a-z-]{2,7})?)?/?"
)
_PREFIX = re.compile(
    r"(?:this (?:work|image|picture|photo|file) is )?licen[cs]ed under (?:an? |the )?|licen[cs]e: ?"
)


_TWICE = re.compile(r"(?P<name>[^()]+)\((?P<again>[^()]+)\)\.?")


@lru_cache(maxsize=1024)  # a dataset names few, once an image
def parse_licence(words: str) -> Licence:
    """Return the licence that a source's words name; UNKNOWN for everything not surely known."""
    text = unicodedata.normalize("NFKC", words).strip().casefold()
    if twice := _TWICE.fullmatch(text):  # a name with its short name or address in brackets
        name, again = parse_licence(twice["name"]), parse_licence(twice["again"])
        return name if name == again else UNKNOWN
    if match := _URL.fullmatch(text):
        if match["tool"]:
            return _CC0 if match["tool"] == "zero" else _MARK
        return _creative_commons(set(match["elements"].split("-")), match)
    folded = _fold(text)
    if folded in _NAMED:
        return _NAMED[folded]
    match = _GRAMMAR.fullmatch(folded)
    if not match:
        return UNKNOWN
    elements = {
        key
        for key, pattern in _ELEMENT.items()
        if re.search(rf"(?:^| )(?:{pattern})(?= |$)", match["elements"])
    }
    # "by" alone may be the beginning of a name; "by-nc" and "by 2.0", as Openverse writes, cannot.
    bare = not match["cc"] and len(elements) < 2 and not (match["version"] or match["ported"])
    return UNKNOWN if bare else _creative_commons(elements, match)


def _fold(text: str) -> str:
    """Bring spelling variants together: dashes, underscores and commas are spaces."""
    text = re.sub(r"[\s_,‐-―−-]+", " ", text.removesuffix("."))
    text = _PREFIX.sub("", text, count=1) if _PREFIX.match(text) else text
    return re.sub(r" (?:public )?licen[cs]e$", "", text).strip()


def _creative_commons(elements: set[str], match: re.Match[str]) -> Licence:
    """Build one of the six licences, or UNKNOWN for a combination that does not exist."""
    if "by" not in elements or {"nd", "sa"} <= elements:
        return UNKNOWN
    version, port = match["version"] or match["ported"] or "", match["port"] or ""
    parts = [part for part in ("by", "nc", "nd", "sa") if part in elements]
    where = "/".join(part for part in (version, port) if part)
    return Licence(
        "-".join(part for part in ("CC", *parts, version, port) if part).upper(),
        may_redistribute=True,
        may_adapt="nd" not in elements,
        non_commercial="nc" in elements,
        share_alike="sa" in elements,
        needs_attribution=True,
        url=f"{_CC}/licenses/{'-'.join(parts)}/{where}/" if version else "",
    )


Modality = Literal["", "dermoscopic", "clinical", "mixed"]
"""Dermoscopic: through a dermatoscope. Clinical: by a camera or a phone. "": not stated."""

SYNTHETIC_ATTRIBUTION = "painted by skindx"
"""The attribution of the demo's images."""

_ISIC_NAME = re.compile(r"(^|/)ISIC_\d{7}[^/]*$")
_MOST = 0.9
"""Share of images named as the ISIC archive names them that makes a dataset dermoscopic."""


def of_wide_photos(expects: str) -> str:
    """Return what stands instead of `expects` in a scan, which no dermatoscope can take."""
    if expects and expects == ImageOrigin(modality="dermoscopic").expects:
        return joined(text("expects_wide"), text("expects_wide_else"))
    return expects


class ImageOrigin(Settings):
    """What the images are that a bundle learned from, as far as its dataset says."""

    painted: Literal["", "none", "some", "all"] = ""
    """Whether they are paintings; "": the bundle is of an older version and does not say."""
    modality: Modality = ""

    @property
    def warning(self) -> str:
        """What paintings mean for an answer, in a sentence; "" for photographs."""
        if self.painted == "all":
            return joined(text("synthetic_all"), text("synthetic_demonstration"))
        return text("synthetic_some") if self.painted == "some" else ""

    @property
    def warning_of_outlines(self) -> str:
        """What paintings mean for a detector's outlines, in a sentence; "" for photographs."""
        if self.painted == "all":
            return text("synthetic_detector")
        return text("synthetic_detector_some") if self.painted == "some" else ""

    @property
    def holds_for_photos(self) -> bool:
        """Whether what was measured on these images says something about photos of people."""
        return self.painted == "none"

    @property
    def measured_on(self) -> str:
        """What a figure was measured on, for a reader."""
        keys = {"": "origin_photos", "dermoscopic": "origin_dermoscopic"}
        keys |= {"clinical": "origin_clinical", "mixed": "origin_both"}
        others = {"some": "origin_some", "all": "origin_all", "": "origin_unstated"}
        return text(others.get(self.painted, keys[self.modality]))

    def joined(self, started_from: "ImageOrigin") -> "ImageOrigin":
        """Return what a network learned from that started from another's weights.

        Unknown weights, such as those of ImageNet, change nothing.
        """
        if started_from.painted in ("", self.painted, "none" if not self.painted else ""):
            return self
        return self.model_copy(update={"painted": "some"})

    @property
    def expects(self) -> str:
        """Which photos the model is for, in a sentence; "" where its dataset does not say."""
        if self.modality == "dermoscopic":
            return joined(text("expects_dermoscopic"), text("expects_dermoscopic_else"))
        if self.modality == "clinical":
            return joined(text("expects_clinical"), text("expects_clinical_else"))
        return text("expects_mixed") if self.modality == "mixed" else ""

    @property
    def words(self) -> str:
        """What the images are, for a model card."""
        kinds = {
            "": "",
            "none": "photographs",
            "some": "photographs and paintings made by a program",
            "all": "paintings made by a program, no photos of people",
        }
        modality = {
            "": "dermoscopic or clinical is not stated",
            "mixed": "dermoscopic and clinical",
        }.get(self.modality, self.modality)
        return ", ".join(part for part in (kinds[self.painted], modality) if part)


UNSTATED = ImageOrigin()
"""Nobody says what the images are."""


def origin_of(dataset: Path, records: Sequence[Record]) -> ImageOrigin:
    """Return what a dataset's recipe and manifest say its images are.

    A recipe of an older version does not say: then the attribution of each image and the file
    names of the ISIC archive decide.
    """
    sources = _sources(dataset)
    synthetic = {record.attribution == SYNTHETIC_ATTRIBUTION for record in records}
    synthetic |= {bool(source.get("synthetic")) for source in sources if source.get("synthetic")}
    share: Literal["none", "some", "all"] = "none"
    if any(synthetic):
        stated = [bool(source.get("synthetic")) for source in sources] or [False]
        share = "all" if all(synthetic) or all(stated) else "some"
    return ImageOrigin(painted=share, modality=_modality(sources, records))


def _sources(dataset: Path) -> list[dict[str, Any]]:
    """Return the sources of the dataset's recipe as plain values; none of an unreadable one."""
    try:
        sources = read_yaml(dataset / RECIPE).get("sources")
    except UserError:
        return []
    return [one for one in sources if isinstance(one, dict)] if isinstance(sources, list) else []


def _modality(sources: Sequence[dict[str, Any]], records: Sequence[Record]) -> Modality:
    """Return the modality that the sources state; where none does, that of the images' headers.

    Where these say nothing either, that of ISIC's file names.
    """
    stated = {str(source.get("modality") or "") for source in sources}
    if stated <= {""}:
        stated = {record.modality for record in records}
    for only in ("dermoscopic", "clinical"):
        if stated == {only}:
            return only
    if stated - {""}:
        # Of several modalities, or of sources that do not all state theirs.
        return "mixed" if (len(stated) > 1 and "" not in stated) or "mixed" in stated else ""
    named = sum(_ISIC_NAME.search(record.source_url) is not None for record in records)
    return "dermoscopic" if records and named >= _MOST * len(records) else ""
