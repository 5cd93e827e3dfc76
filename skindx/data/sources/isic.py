"""The archive of the International Skin Imaging Collaboration (REST API version 2).

Facts from its source code (ImageMarkup/isic, `isic/core/api/image.py`, `pagination.py`,
`models/base.py`): answers hold count, next, previous and results, at most 100 a page; `next` is
a whole URL; licences are CC-0, CC-BY and CC-BY-NC, whose texts are version 4.0 (CC0 1.0); a
public image has one URL for good. The same lesion is always the same patient.
"""

from collections.abc import Iterator
from typing import Any, Literal
from urllib.parse import urljoin

from pydantic import Field

from skindx.data.ledger import LedgerRow
from skindx.data.sources.api import ApiSource, Endpoint, text
from skindx.data.sources.columns import confirmation, described, skin_type
from skindx.data.sources.image_source import Page, UnreadablePageError, plain_url

_LICENCES = {"CC-0": "CC0 1.0", "CC-BY": "CC BY 4.0", "CC-BY-NC": "CC BY-NC 4.0"}
_LEVELS = tuple(f"diagnosis_{level}" for level in range(5, 0, -1))
_CLINICAL = ("age_approx", "sex", "anatom_site_general", "anatom_site_special")


class IsicSource(ApiSource):
    """Images of the archive; queries are written as in `diagnosis_3:"Melanoma*" AND sex:male`.

    Patient, or else lesion, keeps images together in a split.
    """

    kind: Literal["isic"]
    api: Endpoint = "https://api.isic-archive.com/api/v2/images/search/"
    page_size: int = Field(100, ge=1, le=100)
    label: Literal["search", "diagnosis"] = "search"
    """Use the label of the search, or the most exact diagnosis of each image."""

    def parameters(self, query: str) -> dict[str, str | int]:
        """Return the parameters of a search."""
        return {"query": query, "limit": self.page_size}

    def images(
        self, result: dict[str, Any], label: str, content: dict[str, Any]
    ) -> Iterator[LedgerRow]:
        """Yield one result's row."""
        isic_id = text(result, "isic_id")
        clinical = ("metadata", "clinical")
        diagnoses = [text(result, *clinical, level) for level in _LEVELS]
        code = text(result, "copyright_license")
        attribution = text(result, "attribution")
        yield self.row(
            text(result, "files", "full", "url"),
            label if self.label == "search" else next(filter(None, diagnoses), ""),
            f"isic:{isic_id}",
            page_url=urljoin(self.api, f"/images/{isic_id}/") if isic_id else "",
            licence=_LICENCES.get(code, code),
            creator=attribution,
            attribution=attribution,
            group=text(result, *clinical, "patient_id") or text(result, *clinical, "lesion_id"),
            confirmed_by=confirmation(text(result, *clinical, "diagnosis_confirm_type")),
            caption=described(_clinical(result)),
            skin_type=skin_type(text(result, *clinical, "fitzpatrick_skin_type")),
        )

    def following(self, page: Page, content: dict[str, Any]) -> str:
        """Return `next`, which must be the API itself."""
        address = text(content, "next")
        url = plain_url(address) if address else ""
        if url is None or not url.startswith(self.api if url else ""):
            raise UnreadablePageError(
                "bad-url", f"The next page is said to be {address[:200]!r}, not the API."
            )
        return url


def _clinical(result: dict[str, Any]) -> str:
    """Return what the archive says of age, sex and site, as in "age_approx: 55; sex: male"."""
    values = {name: text(result, "metadata", "clinical", name) for name in _CLINICAL}
    return "; ".join(f"{name}: {value}" for name, value in values.items() if value)
