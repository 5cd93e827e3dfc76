"""Pages of earlier crawls: a server that says "304 Not Modified" need not send one again.

Conditional requests, RFC 9110 section 13: the `ETag` and `Last-Modified` of an answer come back to
the server as `If-None-Match` and `If-Modified-Since`. Every run reads its pages again otherwise.
"""

import gzip
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from skindx.core.atomic_files import atomic_file

if TYPE_CHECKING:
    from scrapy.http import Response

PAGES = "pages"
"""Folder in the dataset folder; it may be deleted at any time."""

_HEADERS = ("ETag", "Last-Modified", "Content-Type", "X-Robots-Tag", "tdm-reservation")
_LONGEST = 1000


@dataclass(frozen=True, slots=True)
class KeptPage:
    """An answer as it came: what the source reads of it, and by what the server knows it."""

    url: str
    headers: dict[str, list[str]]
    body: bytes

    @property
    def conditions(self) -> dict[str, str]:
        """The headers of a request that asks only whether the page has changed."""
        known = {"If-None-Match": "ETag", "If-Modified-Since": "Last-Modified"}
        return {
            header: self.headers[name][0] for header, name in known.items() if name in self.headers
        }


class PageCache:
    """The kept pages of one dataset folder, one file a URL."""

    def __init__(self, dataset: Path) -> None:
        self._folder = dataset / PAGES
        self._used: set[Path] = set()

    def find(self, url: str) -> KeptPage | None:
        """Return a page as it was kept; None for an unknown one, and for a damaged file."""
        file = self._file(url)
        try:
            with gzip.open(file) as lines:
                saved = json.loads(lines.readline())
                page = KeptPage(saved["url"], saved["headers"], lines.read())
            if page.url != url or not page.conditions:
                return None
            self._used.add(file)
            return page
        except FileNotFoundError:
            return None
        except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError):
            file.unlink(missing_ok=True)
            return None

    def keep(self, url: str, answer: "Response") -> None:
        """Keep an answer that the server can recognise, unless it forbids that or came from afar.

        After a redirect the answer belongs to another URL.
        """
        headers = {
            name: [value.decode("latin-1")[:_LONGEST] for value in answer.headers.getlist(name)]
            for name in _HEADERS
            if name in answer.headers
        }
        page = KeptPage(url, headers, answer.body)
        control = b",".join(answer.headers.getlist("Cache-Control")).lower()
        if answer.url != url or not page.conditions or b"no-store" in control:
            self._file(url).unlink(missing_ok=True)
            return
        saved = {name: value for name, value in asdict(page).items() if name != "body"}
        with atomic_file(self._file(url)) as temporary, gzip.open(temporary, "wb", 6) as file:
            file.write(json.dumps(saved).encode() + b"\n" + page.body)
        self._used.add(self._file(url))

    def sweep(self) -> None:
        """Delete the pages that this run did not request: no page links to them."""
        for file in self._folder.glob("*"):
            if file not in self._used:
                file.unlink(missing_ok=True)

    def _file(self, url: str) -> Path:
        name = hashlib.sha256(url.encode("utf-8", "replace")).hexdigest()
        return self._folder / f"{name}.gz"
