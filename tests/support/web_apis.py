"""A server that answers as the public image APIs do: their pages, limits, forms and refusals.

What single results and errors look like stands in tests/data/answers/forms.json.
"""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from local_site import LocalSite

FORMS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data/answers/forms.json").read_text("utf-8")
)
MOST, LARGEST_PAGE = 240, 20
"""Results of one search of Openverse, and of one page without a key."""


def send(
    request: BaseHTTPRequestHandler,
    body: bytes | Mapping[str, Any],
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request.send_response(status)
    for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(data)


class WebApis:
    """What each API knows, by the words of a search; it serves what `site.pages` has not.

    `works` of Openverse are (id, path, sensitive), `files` of Commons (number, path or "", type),
    `images` of the archive (number, path, form, fields). `busy` APIs refuse their next request.
    """

    def __init__(self, site: LocalSite) -> None:
        self.site = site
        site.default = self.answer
        self.works: dict[str, Sequence[tuple[int, str, bool]]] = {}
        self.lost: dict[str, int] = {}
        """By search: works that it counts and does not show, since their addresses are dead."""
        self.files: dict[str, Sequence[tuple[int, str, str]]] = {}
        self.format_version = 2
        self.images: dict[str, Sequence[tuple[int, str, str, Mapping[str, str]]]] = {}
        self.last_next: str | None = None
        """What the archive's last page names as its next one."""
        self.busy: set[str] = set()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        apis = {
            "/v1/images/": self.openverse,
            "/w/api.php": self.commons,
            "/api/v2/images/search/": self.isic,
        }
        if parts.path in apis:
            apis[parts.path](request, asked)
        else:
            send(request, b"not here", 404)

    def _is_busy(self, api: str) -> bool:
        busy = api in self.busy
        self.busy.discard(api)
        return busy

    def openverse(self, request: BaseHTTPRequestHandler, asked: Mapping[str, str]) -> None:
        form = FORMS["openverse"]
        if self._is_busy("openverse"):
            return send(request, form["throttled"], 429, {"Retry-After": "0"})
        size, page = int(asked.get("page_size", 20)), int(asked.get("page", 1))
        if size > LARGEST_PAGE:
            return send(request, form["too_large"], 401)
        # Any value of `mature` counts as yes.
        sensitive = asked.get("unstable__include_sensitive_results") == "true" or "mature" in asked
        works = [work for work in self.works[asked["q"]] if sensitive or not work[2]]
        count = min(MOST, len(works) + self.lost.get(asked["q"], 0))
        results = []
        for number, path, hidden in works[(page - 1) * size : page * size]:
            result = {**form["result"], "id": f"work-{number}", "title": f"Work {number}"}
            result |= {"url": self.site.origin + path, "mature": hidden}
            result["thumbnail"] = f"{self.site.origin}/v1/images/work-{number}/thumb/"
            results.append(result)
        pages = -(-count // size)
        whole = {"result_count": count, "page_count": pages, "page_size": size, "page": page}
        return send(request, {**whole, "results": results}, 200, form["limits"])

    def commons(self, request: BaseHTTPRequestHandler, asked: Mapping[str, str]) -> None:
        form = FORMS["wikimedia"]
        if self._is_busy("wikimedia"):
            return send(request, form["maxlag"], 200, {"Retry-After": "0"})
        files = self.files[asked.get("gcmtitle") or asked["gsrsearch"]]
        begin = int(asked.get("gcmcontinue", 0))
        end = begin + int(asked["gcmlimit"])
        pages = []
        for number, path, mime in files[begin:end]:
            page = {**form["page"], "pageid": number, "title": f"File:Photo {number}.jpg"}
            if path:
                info = {**form["imageinfo"], "url": self.site.origin + path, "mime": mime}
                info["descriptionurl"] = f"{self.site.origin}/wiki/File:Photo_{number}.jpg"
                page["imageinfo"] = [{**info, "extmetadata": form["extmetadata"]}]
            else:
                page["missing"] = True
            pages.append(page)
        body: dict[str, Any] = {"batchcomplete": True, "query": {"pages": pages}}
        if self.format_version == 1:
            for page in pages:
                if "missing" in page:
                    page |= {"missing": ""}
                    del page["pageid"]
            by_id = {str(page.get("pageid", -1)): page for page in pages}
            body = {"batchcomplete": "", "query": {"pages": by_id}}
        if end < len(files):
            body["continue"] = {"gcmcontinue": str(end), "continue": "gcmcontinue||"}
        return send(request, body)

    def isic(self, request: BaseHTTPRequestHandler, asked: Mapping[str, str]) -> None:
        form = FORMS["isic"]
        if self._is_busy("isic"):
            return send(request, b"slow down", 429, {"Retry-After": "0"})
        if asked["query"] not in self.images:
            return send(request, form["unparsable"], 400)
        images = self.images[asked["query"]]
        begin = int(asked.get("cursor", 0))
        end = begin + min(100, int(asked["limit"]))
        results = []
        for number, path, version, fields in images[begin:end]:
            result = {**deepcopy(form["result"]), "isic_id": f"ISIC_{number:07}"}
            result["files"]["full"]["url"] = self.site.origin + path
            result["files"]["thumbnail_256"]["url"] = f"{self.site.origin}/thumbnails/{number}.jpg"
            result["metadata"] = deepcopy(form[version])
            for name, value in fields.items():
                part = "acquisition" if name == "image_type" else "clinical"
                result["metadata"][part][name] = value
            results.append(result)
        more = {"cursor": end, "limit": asked["limit"], "query": asked["query"]}
        here = f"{self.site.origin}{urlsplit(request.path).path}"
        following = f"{here}?{urlencode(more)}" if end < len(images) else self.last_next
        count = None if "cursor" in asked else len(images)
        body = {"results": results, "count": count, "next": following, "previous": None}
        return send(request, body)
