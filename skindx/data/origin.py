"""What the images of a dataset are: photographs or paintings, dermoscopic or clinical."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings, read_yaml
from skindx.data.layout import RECIPE
from skindx.data.manifest import Record

Modality = Literal["", "dermoscopic", "clinical", "mixed"]
"""Dermoscopic: through a dermatoscope. Clinical: by a camera or a phone. "": not stated."""

SYNTHETIC_ATTRIBUTION = "painted by skindx"
"""The attribution of the demo's images."""

_ISIC_NAME = re.compile(r"(^|/)ISIC_\d{7}[^/]*$")
_MOST = 0.9
"""Share of images named as the ISIC archive names them that makes a dataset dermoscopic."""


_EXPECTS = {
    "dermoscopic": (
        "This model learned from dermoscopic images: give photos taken through a dermatoscope. Of "
        "a photo by a camera or phone without one, its answer may be wrong."
    ),
    "clinical": (
        "This model learned from clinical photos: give photos by a camera or a phone. Of a photo "
        "through a dermatoscope, its answer may be wrong."
    ),
    "mixed": (
        "This model learned from dermoscopic images and from clinical photos: give photos taken "
        "through a dermatoscope, or by a camera or a phone."
    ),
}


class ImageOrigin(Settings):
    """What the images are that a bundle learned from, as far as its dataset says."""

    painted: Literal["", "none", "some", "all"] = ""
    """Whether they are paintings; "": the bundle is of an older version and does not say."""
    modality: Modality = ""

    @property
    def warning(self) -> str:
        """What paintings mean for an answer, in a sentence; "" for photographs."""
        if self.painted == "all":
            return (
                "This model learned from paintings that a program made, not from photos of people. "
                "It is a demonstration and answers nothing about people."
            )
        if self.painted == "some":
            return (
                "This model learned in part from paintings that a program made, not from photos of "
                "people, so its answers about people may mean nothing."
            )
        return ""

    @property
    def expects(self) -> str:
        """Which photos the model is for, in a sentence; "" where its dataset does not say."""
        return _EXPECTS.get(self.modality, "")

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
