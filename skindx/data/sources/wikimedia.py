"""Wikimedia Commons by the MediaWiki action API.

Facts from the API's help (`action=help&modules=query+imageinfo`, `query+categorymembers`,
`query+search`) and of the CommonsMetadata extension: a generator's pages carry `imageinfo`;
`continue` holds the parameters to add to the *first* request, and while `batchcomplete` is
missing some pages of the batch lack their `imageinfo` until a later answer; errors come with
HTTP 200. The user agent must name whom to contact.
"""

import html
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, Literal
from urllib.parse import urlencode

from pydantic import Field

from skindx.data.ledger import LedgerRow
from skindx.data.sources.api import ApiSource, Endpoint, number, objects, text
from skindx.data.sources.columns import described
from skindx.data.sources.image_source import Page, UnreadablePageError

_PICTURES = ("image/jpeg", "image/png", "image/webp", "image/tiff")
_META = ("LicenseShortName", "Artist", "Credit", "Attribution")


class WikimediaSource(ApiSource):
    """Images of Commons: a query that begins with "Category:" lists it, another one searches."""

    kind: Literal["wikimedia"]
    api: Endpoint = "https://commons.wikimedia.org/w/api.php"
    page_size: int = Field(50, ge=1, le=500)

    needs_contact: ClassVar[bool] = True

    def parameters(self, query: str) -> dict[str, str | int]:
        """Return the parameters of a listing or a search."""
        generator: dict[str, str | int]
        if query.startswith("Category:"):
            generator = {"generator": "categorymembers", "gcmtitle": query, "gcmtype": "file"}
            generator |= {"gcmlimit": self.page_size}
        else:
            generator = {"generator": "search", "gsrsearch": query, "gsrnamespace": 6}
            generator |= {"gsrlimit": self.page_size}
        return {
            "action": "query",
            "format": "json",
            "formatversion": 2,
            **generator,
            "prop": "imageinfo",
            "iiprop": "url|mime|size|extmetadata",
            "iiextmetadatafilter": "|".join(_META),
            "iiextmetadatalanguage": "en",
        }

    def results(self, content: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the files of an answer, in the order of the search."""
        if "error" in content:
            detail = f"{text(content, 'error', 'code')}: {text(content, 'error', 'info')}"
            raise UnreadablePageError("api-error", f"The API answered with an error ({detail}).")
        query = content.get("query")
        # Without any result there is no `query` at all.
        pages = objects(query.get("pages"), "pages") if isinstance(query, dict) else []
        return sorted(pages, key=lambda page: number(page, "index"))

    def images(
        self, result: dict[str, Any], label: str, content: dict[str, Any]
    ) -> Iterator[LedgerRow]:
        """Yield one file's row; what is no image by its type is not fetched."""
        infos = result.get("imageinfo")
        info = infos[0] if isinstance(infos, list) and infos else None
        if info is None and "batchcomplete" not in content:
            return  # a later answer of this batch has it
        row = self.row(
            text(info, "url"),
            label,
            f"wikimedia:{text(result, 'title')}",
            page_url=text(info, "descriptionurl"),
            licence=_meta(info, "LicenseShortName"),
            creator=_meta(info, "Artist"),
            attribution=_meta(info, "Attribution") or _meta(info, "Credit"),
            caption=described(text(result, "title").removeprefix("File:").rpartition(".")[0]),
        )
        mime = text(info, "mime")
        if mime and mime not in _PICTURES:
            detail = f"Commons says that it is {mime}."
            status = "unsupported-format" if mime.startswith("image/") else "not-a-picture"
            yield replace(row, status=status, detail=detail)
        else:
            yield row

    def following(self, page: Page, content: dict[str, Any]) -> str:
        """Return the first request with the parameters of `continue` added."""
        more = content.get("continue")
        if not isinstance(more, dict) or not more:
            return ""
        return f"{page.start or page.url}&{urlencode({key: text(more, key) for key in more})}"


def _meta(info: object, field: str) -> str:
    """Return a field of extmetadata, which is HTML, as plain text."""
    from w3lib.html import remove_tags

    return " ".join(html.unescape(remove_tags(text(info, "extmetadata", field, "value"))).split())
