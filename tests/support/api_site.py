"""The recorded answers of the APIs, and a site that serves them on loopback."""

import json
import re
from pathlib import Path
from typing import Any

from local_site import Answer, LocalSite, jpeg

from skindx.data.crawl.fetch_settings import OriginPolicy
from skindx.data.sources.api import ApiSource, OpenverseSource, WikimediaSource
from skindx.data.sources.isic import IsicSource

ANSWERS = Path(__file__).parents[1] / "data/answers"
KINDS: dict[str, type[ApiSource]] = {
    "openverse": OpenverseSource,
    "wikimedia": WikimediaSource,
    "isic": IsicSource,
}
FAST = OriginPolicy(concurrency=8, delay_s=0)
CONTACT = "me@example.org"


def recorded(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ANSWERS / f"{kind}.json").read_text("utf-8"))
    return found


def moved(text: str, site: LocalSite) -> str:
    """Put every URL on the local site: https://host/path becomes its /host/path."""
    return re.sub(r"https?://(?=[\w.-]+/)", site.origin + "/", text)


def source_of(kind: str, site: LocalSite, **settings: Any) -> ApiSource:
    api = moved(KINDS[kind].model_fields["api"].default, site)
    given = recorded(kind)["settings"] | settings
    return KINDS[kind].model_validate({"kind": kind, "api": api, **given})


def serve(kind: str, site: LocalSite) -> list[dict[str, Any]]:
    """Serve a kind's answers and all their images; return the answers as they are served."""
    site.pages["/robots.txt"] = Answer(b"User-agent: *\nDisallow: /commons.wikimedia.org/\n")
    site.default = image
    bodies = []
    for answer in recorded(kind)["answers"]:
        body = moved(json.dumps(answer["body"]), site)
        path = moved(answer["url"], site).removeprefix(site.origin)
        site.pages[path] = Answer(body.encode(), headers={"Content-Type": "application/json"})
        bodies.append(json.loads(body))
    return bodies


def image(request: Any) -> None:
    body = jpeg(request.path)
    request.send_response(200)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)
