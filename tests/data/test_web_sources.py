"""A build over a server that answers as the public APIs do: what was named, fetched and kept.

Every image is served once; each refusal has its word, and the next build asks only for what may
have changed.
"""

import io
import json
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from local_site import Answer, LocalSite, category, html
from paint_images import encode, paint
from rich.console import Console
from web_apis import FORMS, MOST, WebApis

from skindx.core.errors import UserError
from skindx.data.build.acquire import acquire
from skindx.data.build.build_dataset import build
from skindx.data.crawl.fetch_settings import FetchSettings, OriginPolicy
from skindx.data.layout import REPORT
from skindx.data.ledger import LedgerRow, open_ledger, read_ledger
from skindx.data.manifest import Issue, Record, read_issues, read_manifest
from skindx.data.recipe import BuildSettings
from skindx.data.sources.api import OpenverseSource, WikimediaSource
from skindx.data.sources.atlas import AtlasSource
from skindx.data.sources.isic import IsicSource
from skindx.data.summary import BuildSummary, print_funnel

FAST = OriginPolicy(concurrency=4, delay_s=0)
ATLAS = {"figure": "figure.picture", "picture": "a.full, img"}


def half(request: BaseHTTPRequestHandler) -> None:
    """Promise a whole image and send half of it."""
    data = encode(paint(900))
    head = f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    request.wfile.write(head.encode() + data[: len(data) // 2])
    request.wfile.flush()
    request.connection.shutdown(socket.SHUT_RDWR)


def photo(number: int) -> Answer:
    return Answer(encode(paint(number)), headers={"Content-Type": "image/jpeg"})


def thumbnailed(number: int) -> str:
    """Return a figure whose small image leads to the large one."""
    return (
        f'<figure class="picture"><a class="full" href="/d/{number}.jpg">'
        f'<img src="/d/{number}-300x200.jpg"></a></figure>'
    )


ALONE = '<figure class="picture"><a class="full" href="/d/6.jpg">x</a></figure>'


def fetching(site: LocalSite, **settings: Any) -> FetchSettings:
    return FetchSettings(
        contact="me@example.org",
        origins={site.origin: FAST},
        allow_private=(site.netloc,),
        retries=1,
        **settings,
    )


def fill(apis: WebApis, other: LocalSite) -> None:
    """Put images and refusals on the site, and what the APIs say of them."""
    site = apis.site
    site.pages = {
        "/robots.txt": Answer(b"no", 403),  # RFC 9309: forbids nothing
        **{f"/o/{n}.jpg": photo(n) for n in (1, 2, 3)},
        "/o/4.jpg": Answer(b"", 403),
        "/o/5.jpg": Answer(b"", 404),
        "/o/6.jpg": Answer(b"", 410),
        "/o/7.jpg": half,
        "/o/8.jpg": Answer(b"", 302, {"Location": f"{other.origin}/secret.jpg"}),
        **{f"/c/{n}.jpg": photo(100 + n) for n in (1, 2, 3)},
        **{f"/i/{n}.jpg": photo(200 + n) for n in (1, 2, 3)},
        "/i/4.jpg": Answer(b"", 500),
        "/i/5.jpg": Answer(b"<!doctype html><title>Log in</title>"),
        "/atlas": html(category("/psoriasis", "psoriasis")),
        "/psoriasis": html(*map(thumbnailed, range(1, 6)), ALONE),
        **{f"/d/{n}.jpg": photo(300 + n) for n in (1, 2, 3)},
        "/d/4.jpg": Answer(b"", 401),
        "/d/5.jpg": Answer(b"", 404),
        "/d/4-300x200.jpg": photo(304),
        "/d/5-300x200.jpg": photo(305),
        "/d/6.jpg": Answer(b"", 302, {"Location": "/images/photo_unavailable_l.png"}),
        "/images/photo_unavailable_l.png": photo(306),
    }
    works = {n: (n, f"/o/{n}.jpg", n == 3) for n in range(1, 9)}
    apis.works = {
        "acne vulgaris": [works[n] for n in (1, 2, 3, 4, 5)],
        "acne skin": [works[n] for n in (2, 6, 7, 8)],
    }
    apis.lost = {"acne skin": 2}
    apis.files = {
        "Category:Eczema": [
            *((n, f"/c/{n}.jpg", "image/jpeg") for n in (1, 2, 3)),
            (4, "/c/4.svg", "image/svg+xml"),
            (5, "", ""),
        ]
    }
    apis.format_version = 1
    apis.images = {
        "nevus": [
            (1, "/i/1.jpg", "now", {"patient_id": "IP_1", "lesion_id": "IL_1"}),
            (2, "/i/2.jpg", "before", {"lesion_id": "IL_2"}),
            *((n, f"/i/{n}.jpg", "now", {}) for n in (3, 4, 5)),
            (6, "/i/6.jpg", "now", {"image_type": "RCM: mosaic"}),
        ]
    }
    apis.last_next = f"{other.origin}/api/v2/images/search/?cursor=9"
    apis.busy = {"openverse", "wikimedia", "isic"}


def recipe(site: LocalSite) -> BuildSettings:
    searches = {"acne": ["acne vulgaris", "acne skin"]}
    sources = [
        {"kind": "openverse", "api": f"{site.origin}/v1/images/", "searches": searches}
        | {"sensitive": True, "page_size": 3},
        {"kind": "wikimedia", "api": f"{site.origin}/w/api.php", "page_size": 4}
        | {"searches": {"eczema": "Category:Eczema"}},
        {"kind": "isic", "api": f"{site.origin}/api/v2/images/search/", "page_size": 4}
        | {"searches": {"nevus": "nevus"}},
        {"kind": "atlas", "start": f"{site.origin}/atlas", **ATLAS},
    ]
    raw = {"name": "web", "workers": 1, "sources": sources}
    return BuildSettings.parse({**raw, "fetch": fetching(site).model_dump(mode="json")})


@dataclass
class Built:
    """Two builds into one folder over the same server."""

    site: LocalSite
    other: LocalSite
    out: Path
    summary: BuildSummary
    asked: list[str]
    asked_again: list[str]

    def row(self, path: str) -> LedgerRow:
        return next(row for row in read_ledger(self.out) if row.url == self.site.origin + path)

    @property
    def issues(self) -> dict[str, Issue]:
        return {one.url.removeprefix(self.site.origin): one for one in read_issues(self.out)}

    @property
    def records(self) -> dict[str, Record]:
        found = read_manifest(self.out)
        return {one.source_url.removeprefix(self.site.origin): one for one in found}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    out = tmp_path_factory.mktemp("web")
    with LocalSite() as site, LocalSite() as other:
        fill(WebApis(site), other)
        summary = build(recipe(site), out)
        asked = list(site.asked)
        site.asked.clear()
        settings = recipe(site)
        acquire(settings.sources, settings.fetch, out)
        yield Built(site, other, out, summary, asked, list(site.asked))


def test_each_class_says_how_many_were_named_fetched_and_kept(built: Built) -> None:
    rows = {row.label: row for row in built.summary.funnel}
    counts = {label: (row.named, row.fetched, row.kept) for label, row in rows.items()}
    assert counts == {
        "acne": (8, 3, 3),
        "eczema": (5, 3, 3),
        "nevus": (6, 3, 3),
        "psoriasis": (7, 4, 4),
    }
    lost = {label: dict(row.lost) for label, row in rows.items()}
    assert lost["acne"] == {
        "dead-link": 2,
        "forbidden": 1,
        "more-results": 1,
        "private-address": 1,
        "server-error": 1,
    }
    assert lost["eczema"] == {"unsupported-format": 1, "dead-link": 1}
    assert lost["nevus"] == {"server-error": 1, "not-a-picture": 1, "not-a-photo": 1, "bad-url": 1}
    assert lost["psoriasis"] == {"dead-link": 2, "forbidden": 1}


def test_terminal_issues_and_report_say_the_same(built: Built) -> None:
    shown = io.StringIO()
    print_funnel(built.summary.funnel, Console(file=shown, width=200))
    assert "1 more-results" in shown.getvalue()
    page = (built.out / REPORT).read_text("utf-8")
    for row in built.summary.funnel:
        counts = (row.named, row.fetched, row.screened, row.distinct, row.kept)
        cells = "".join(f'<td class="number">{count}</td>' for count in counts)
        assert re.search(rf'<th scope="row">{row.label}[^<]*</th>{cells}', page, re.IGNORECASE)
    assert "no smaller copy stands in for it" in page
    reasons = {one.reason for one in read_issues(built.out)}
    assert reasons == {name for row in built.summary.funnel for name in row.lost}


def test_refusals_differ_by_status_and_sentence(built: Built) -> None:
    rows = {path: built.row(path) for path in (f"/o/{number}.jpg" for number in range(4, 9))}
    said = {path: (row.status, row.detail) for path, row in rows.items()}
    assert said["/o/4.jpg"] == ("forbidden", "The server answered 403: it forbids access.")
    assert said["/o/5.jpg"][0] == said["/o/6.jpg"][0] == "dead-link"
    assert said["/o/5.jpg"][1].endswith("404: there is nothing at this address.")
    assert said["/o/6.jpg"][1].endswith("410: what was there is gone for good.")
    assert said["/o/7.jpg"] == ("server-error", "The connection broke in the answer.")
    assert said["/o/8.jpg"][0] == "private-address"
    assert built.row("/d/6.jpg").status == "dead-link"  # a picture that says so is none
    assert built.other.asked == []


def test_no_thumbnail_stands_in_for_a_forbidden_image(built: Built) -> None:
    assert built.row("/d/4.jpg").detail == "The server answered 401: it asks for a login."
    assert "/d/4-300x200.jpg" not in built.asked + built.asked_again
    assert not [path for path in built.asked if "thumb" in path]
    # Where there is none, the small one is taken.
    assert "/d/5-300x200.jpg" in built.records
    assert "/d/5.jpg" in built.issues


def test_busy_apis_are_asked_again_and_images_once(built: Built) -> None:
    def pages(path: str) -> int:
        return sum(asked.startswith(path) for asked in built.asked)

    # Two searches of two pages, one of two, one of two, and one refusal each.
    assert (pages("/v1/"), pages("/w/"), pages("/api/")) == (5, 3, 3)
    images = [path for path in built.asked if path.partition("?")[0].endswith((".jpg", ".svg"))]
    again = {"/o/7.jpg", "/i/4.jpg"}
    assert {path for path in images if images.count(path) > 1} == again
    assert {path for path in built.asked_again if path.endswith(".jpg")} == again


def test_what_a_search_has_and_gives_is_compared(built: Built) -> None:
    (more,) = [one for one in read_issues(built.out) if one.reason == "more-results"]
    assert more.detail == "The search promises 6 results; what was read names 4 of them."
    assert "q=acne+skin" in more.url
    away = next(one for one in read_issues(built.out) if one.reason == "bad-url")
    assert built.other.origin in away.detail


def test_facts_of_both_forms_arrive(built: Built) -> None:
    now, before = built.records["/i/1.jpg"], built.records["/i/2.jpg"]
    assert (now.age, now.sex, now.site, now.skin_type) == (45, "female", "face", 3)
    assert (now.modality, now.confirmed_by) == ("dermoscopic", "histopathology")
    assert (before.age, before.sex, before.modality) == (85, "male", "clinical")
    assert before.site
    commons = built.records["/c/1.jpg"]
    assert (commons.licence, commons.creator) == ("Public domain", "Unknown author")
    assert commons.attribution == "B. & C. Example, CC BY 3.0"


def test_sensitive_results_and_providers_are_asked_for(tmp_path: Path) -> None:
    with LocalSite() as site:
        apis = WebApis(site)
        apis.works = {"acne": [(1, "/o/1.jpg", False), (2, "/o/2.jpg", True)]}
        api = {
            "kind": "openverse",
            "api": f"{site.origin}/v1/images/",
            "searches": {"acne": "acne"},
        }
        plain = OpenverseSource.model_validate(api)
        rows = acquire([plain], fetching(site), tmp_path / "plain")
        assert [row.url for row in rows] == [f"{site.origin}/o/1.jpg"]
        both = {**api, "sensitive": True, "providers": ["flickr", "wikimedia"]}
        rows = acquire([OpenverseSource.model_validate(both)], fetching(site), tmp_path / "both")
        assert [row.url for row in rows] == [f"{site.origin}/o/{n}.jpg" for n in (1, 2)]
    searches = [path for path in site.asked if path.startswith("/v1/")]
    assert sorted(path.partition("&")[0] for path in searches[1:]) == [
        "/v1/images/?source=flickr",
        "/v1/images/?source=wikimedia",
    ]
    assert not [path for path in searches if "mature" in path]
    # What a recipe of an older version saved reads and writes the same.
    assert {"sensitive", "providers"}.isdisjoint(plain.model_dump())


def answer_of(content: object, status: int = 200) -> Any:
    return SimpleNamespace(body=json.dumps(content).encode(), status=status)


@pytest.mark.parametrize(
    ("results", "pages", "limit"), [(239, 12, False), (MOST, 12, True), (10_000, 20, True)]
)
def test_a_search_that_has_more_than_openverse_gives_says_so(
    results: int, pages: int, limit: bool
) -> None:
    source = OpenverseSource(kind="openverse", searches={"acne": ("acne",)})
    content = {"result_count": results, "page_count": pages, "page_size": 20, "results": []}
    promise = source.promise(answer_of(content))
    assert promise is not None
    assert promise.results == results
    assert ("no more than 240 results" in promise.limit) is limit


def test_a_refused_search_tells_what_the_api_says(tmp_path: Path) -> None:
    with LocalSite() as site:
        WebApis(site)
        searches = {"nevus": ("what is not known",)}
        source = IsicSource(
            kind="isic", api=f"{site.origin}/api/v2/images/search/", searches=searches
        )
        said = r"answered 400\. It says: The query is written in no way that is known\."
        with pytest.raises(UserError, match=said):
            acquire([source], fetching(site), tmp_path)
    assert "20 at most" in source.problem(answer_of(FORMS["openverse"]["too_large"], 401))
    for content in ("text", ["list"], {"detail": {"deep": 1}}, {"message": "a\x1b[31m\nb" * 200}):
        words = source.problem(answer_of(content))
        assert len(words) <= 200
        assert words.isprintable()


def test_an_interrupted_build_asks_an_api_for_no_answer_twice(tmp_path: Path) -> None:
    """The second page is refused for today: the next run asks for it alone, one later for all."""
    with LocalSite() as site:
        apis = WebApis(site)
        apis.works = {"acne": [(n, f"/o/{n}.jpg", False) for n in (1, 2, 3)]}
        searches = {"acne": ("acne",)}
        source = OpenverseSource(
            kind="openverse", api=f"{site.origin}/v1/images/", searches=searches, page_size=2
        )
        second = next(source.begin()).url.removeprefix(site.origin)[:-1] + "2"
        site.pages[second] = Answer(b"", 429, {"Retry-After": "86400"})

        def crawled() -> tuple[list[str], set[str]]:
            site.asked.clear()
            rows = acquire([source], fetching(site), tmp_path)
            failed = {row.status for row in rows if row.url == row.page_url}
            return [path[-1] for path in site.asked if "/v1/" in path], failed

        assert crawled() == (["1", "2"], {"server-error"})
        del site.pages[second]
        assert crawled() == (["2"], set())
        assert crawled() == (["1", "2"], set())


def test_pages_of_commons_come_as_a_list_or_by_id() -> None:
    source = WikimediaSource(kind="wikimedia", searches={"acne": ("acne",)})
    info = {"url": "https://a.org/1.jpg", "mime": "image/jpeg"}
    first = {"title": "File:A.jpg", "index": 1, "imageinfo": [info]}
    second = {"title": "File:B.jpg", "index": 2, "ns": 6}
    forms = (
        {"batchcomplete": True, "query": {"pages": [second | {"missing": True}, first]}},
        {"batchcomplete": "", "query": {"pages": {"-1": second | {"missing": ""}, "7": first}}},
    )
    (page,) = source.begin()
    for content in forms:
        rows = [row for row in source.read(page, answer_of(content)) if isinstance(row, LedgerRow)]
        assert [(row.url, row.status) for row in rows] == [
            ("https://a.org/1.jpg", ""),
            ("wikimedia:File:B.jpg", "dead-link"),
        ]


@pytest.mark.parametrize(
    ("content", "busy"),
    [
        (FORMS["wikimedia"]["maxlag"], True),
        ({"error": {"code": "internal_api_error_DBQueryError"}}, True),
        ({"error": {"code": "badvalue", "info": "maxlag"}}, False),
        ({"error": "maxlag"}, False),
        ({"query": {"pages": [{"title": "error"}]}}, False),
        ("error", False),
    ],
)
def test_errors_that_pass_are_told_from_others(content: object, busy: bool) -> None:
    source = WikimediaSource(kind="wikimedia", searches={"acne": ("acne",)})
    assert source.is_busy(answer_of(content)) is busy


def test_a_forbidden_image_of_an_older_ledger_is_no_dead_link(tmp_path: Path) -> None:
    with LocalSite() as site:
        site.pages = {"/": html(category("/c", "psoriasis")), "/c": html(thumbnailed(4))}
        old = [
            LedgerRow(
                f"{site.origin}/d/4.jpg", "psoriasis", "dead-link", "The server answered 403."
            ),
            LedgerRow(f"{site.origin}/d/4-300x200.jpg", "psoriasis", "timeout"),
        ]
        with open_ledger(tmp_path) as ledger:
            ledger.extend(old)
        source = AtlasSource(kind="atlas", start=f"{site.origin}/", **ATLAS)
        rows = acquire([source], fetching(site), tmp_path)
        assert "/d/4-300x200.jpg" not in site.asked
    assert [row.status for row in rows if row.url.endswith("/4.jpg")] == ["forbidden"]
