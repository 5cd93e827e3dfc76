"""Record what the picture-search APIs really answer; needs the internet, so no test runs it.

    python tests/data/answers/record.py --contact you@example.org

Each file here holds a source's settings and the answers to its searches, two pages of three
results each at most. The committed ones are *unverified live*: written from the documentation.
After recording, run `pytest tests/data/test_apis.py`: it works with either.
"""

import argparse
import json
import time
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from skindx.core.atomic_files import write_json
from skindx.data.crawl.fetch_settings import FetchSettings
from skindx.data.sources.api import ApiSource, OpenverseSource, WikimediaSource
from skindx.data.sources.image_source import Page, UnreadablePageError
from skindx.data.sources.isic import IsicSource

HERE = Path(__file__).parent
KINDS: dict[str, type[ApiSource]] = {
    "isic": IsicSource,
    "openverse": OpenverseSource,
    "wikimedia": WikimediaSource,
}
PAGES = 2


def record(kind: str, agent: str) -> None:
    """Ask each search of a file again, and replace its answers."""
    path = HERE / f"{kind}.json"
    settings = json.loads(path.read_text("utf-8"))["settings"]
    source = KINDS[kind].model_validate({"kind": kind, **settings})
    answers: list[dict[str, Any]] = []
    for first in source.begin():
        page: Page | None = first
        for number in range(PAGES):
            if page is None:
                break
            time.sleep(max(source.delay_s, 1))
            body = _ask(page.url, agent)
            if number == PAGES - 1:
                _end(kind, body)
            answers.append({"url": page.url, "body": body})
            page = _next(source, page, body)
    note = f"recorded live on {datetime.now(UTC).date()} by record.py"
    write_json(path, {"note": note, "settings": settings, "answers": answers})
    print(f"{path}: {len(answers)} answers")


def _ask(url: str, agent: str) -> dict[str, Any]:
    request = urllib.request.Request(url, headers={"User-Agent": agent})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            body: dict[str, Any] = json.load(answer)
    except (OSError, ValueError) as error:
        raise SystemExit(f"{url} gave no answer ({error}); its file is unchanged.") from None
    return body


def _next(source: ApiSource, page: Page, body: dict[str, Any]) -> Page | None:
    """Return the page after this one, and find out whether the adapter can read the answer."""
    answer: Any = SimpleNamespace(body=json.dumps(body).encode())
    try:
        pages = [found for found in source.read(page, answer) if isinstance(found, Page)]
    except UnreadablePageError as error:
        raise SystemExit(f"{page.url}: {error}") from None
    return pages[0] if pages else None


def _end(kind: str, body: dict[str, Any]) -> None:
    """Cut the way to pages that are not recorded."""
    if kind == "isic":
        body["next"] = None
    elif kind == "openverse":
        body["page_count"] = body["page"]
        body["result_count"] = PAGES * body["page_size"]
    else:
        body.pop("continue", None)


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the answers of picture-search APIs.")
    parser.add_argument(
        "kinds", nargs="*", metavar="KIND", help=f"{', '.join(KINDS)}; default: all"
    )
    parser.add_argument("--contact", required=True, help="URL or mail address of yours")
    given = parser.parse_args()
    if unknown := set(given.kinds) - set(KINDS):
        parser.error(f"there is no {', '.join(unknown)}; choose from {', '.join(KINDS)}")
    for kind in given.kinds or KINDS:
        record(kind, FetchSettings(contact=given.contact).user_agent)


if __name__ == "__main__":
    main()
