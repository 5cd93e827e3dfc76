"""Sites as they are built today: late and responsive images, compressed answers, captions.

One crawl of all of it, and a second one of the same site.
"""

import gzip
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import urlsplit

import brotli
import pytest
from local_site import Answer, LocalSite, Page, category, html, jpeg

from skindx.data.build.acquire import EMPTY_SOURCE, acquire
from skindx.data.crawl.fetch_settings import FetchSettings, OriginPolicy
from skindx.data.crawl.spider import PAGES
from skindx.data.crawl.transport import zstd
from skindx.data.ledger import LedgerRow, read_ledger
from skindx.data.sources.atlas import AtlasSource

PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACw="
CODED = {"gzip": gzip.compress, "br": brotli.compress, "zstd": zstd.compress}
LATE = [
    f'<img src="{PIXEL}" data-src="/late{n}.jpg"><noscript><img src="/late{n}.jpg"></noscript>'
    for n in range(10)
]
RESPONSIVE = [f'<img src="/s{n}.jpg" srcset="/s{n}.jpg 150w, /l{n}.jpg 1200w">' for n in range(10)]
LINKED = [f'<a href="/full{n}.jpg"><img src="/thumb{n}.jpg"></a>' for n in range(10)]
SMALLER = (
    '<a href="/lost.jpg"><img src="/a.jpg"></a>',
    '<a href="/page.jpg"><img src="/b.jpg" srcset="/b2.jpg 2x"></a>',
    '<a href="/no/c.jpg"><img src="/c.jpg"></a>',
    '<a href="http://127.0.0.1:1/d.jpg"><img src="/d.jpg"></a>',
    '<a href="/noai.jpg"><img src="/e.jpg"></a>',
    # The same lost address as above: it is not asked for again.
    '<a href="/lost.jpg"><img src="/f.jpg"></a>',
)
FORBIDDEN = {
    # By link, by size, by a redirect on the way, by an archive, a proxy and a resizer.
    '<a href="/no/1.jpg"><img src="/t1.jpg" srcset="/t1b.jpg 2x"></a>': "/no/1.jpg",
    '<img src="/t2.jpg" srcset="/t2.jpg 150w, /no/2.jpg 1200w">': "/no/2.jpg",
    '<a href="/moved3.jpg"><img src="/t3.jpg"></a>': "/moved3.jpg",
    '<a href="/web/2020/ORIGIN/no/4.jpg"><img src="/t4.jpg"></a>': "/web/2020/ORIGIN/no/4.jpg",
    '<img src="/proxy?url=ORIGIN%2Fno%2F5.jpg">': "/proxy?url=ORIGIN%2Fno%2F5.jpg",
    '<img src="/resize.php?src=/no/6.jpg&amp;w=90">': "/resize.php?src=/no/6.jpg&w=90",
    '<a href="/noai7.jpg"><img src="/t7.jpg"></a>': "/noai7.jpg",
}
ALONE = [f'<img src="/t{n}.jpg">' for n in range(1, 5)]
LATER = (
    '<a href="/busy.jpg"><img src="/u1.jpg"></a>',
    '<a href="http://nowhere.invalid/2.jpg"><img src="/u2.jpg"></a>',
    '<a href="/coded.jpg"><img src="/u3.jpg"></a>',
)
SAID = (
    '<img src="/said1.jpg" alt="Acne,\n 17 years"><figcaption>Forehead <b>of a man</b>'
    "</figcaption>",
    '<img src="/said2.jpg" alt="back"><figcaption>Lower back</figcaption>',
    f'<img src="/said3.jpg" alt="{"x" * 5000}">',
)


@dataclass
class Crawled:
    """Two crawls of the site: the rows by path, and what was asked for in each."""

    dataset: Path
    rows: dict[str, LedgerRow]
    again: dict[str, LedgerRow]
    asked: Counter[str]
    asked_again: Counter[str]


def page(*figures: str) -> Answer:
    return html(*(f"<figure>{figure}</figure>" for figure in figures))


class Known:
    """A page that knows its versions, and counts how often it was sent whole."""

    def __init__(self, answer: Answer, **headers: str) -> None:
        self.answer, self.headers, self.whole = answer, headers, 0

    def __call__(self, request: BaseHTTPRequestHandler) -> None:
        etag = self.headers.get("ETag")
        same = etag and request.headers["If-None-Match"] == etag
        since = self.headers.get("Last-Modified")
        same = same or (since and request.headers["If-Modified-Since"] == since)
        body = b"" if same else self.answer.body
        self.whole += not same
        request.send_response(304 if same else 200)
        for name, value in {**self.headers, "Content-Length": str(len(body))}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body)


KNOWN = {
    "/etag/": Known(page('<img src="/etag.jpg">'), ETag='"v1"'),
    "/dated/": Known(
        page('<img src="/dated.jpg">'), **{"Last-Modified": "Sun, 01 Mar 2026 10:00:00 GMT"}
    ),
    "/secret/": Known(
        page('<img src="/secret.jpg">'), ETag='"v1"', **{"Cache-Control": "no-store"}
    ),
    "/owned/": Known(page('<img src="/owned.jpg">'), ETag='"v1"', **{"X-Robots-Tag": "noai"}),
}


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crawled]:
    broken = Answer(b"no gzip", headers={"Content-Encoding": "gzip"})
    shown = {"/modern/": "Acne", "/smaller/": "Eczema", "/broken/": "Broken", "/said/": "Said"}
    # The same thumbnails alone: on a page before and one after, and under another label.
    shown |= {"/alone/": "No", "/forbidden/": "No", "/again/": "No", "/other/": "Other"}
    shown |= {"/later/": "Later"}
    shown |= {f"/{name}/": name for name in CODED}
    shown |= dict.fromkeys(KNOWN, "Known") | {"/bare/": "Bare"}
    names = [f"/{name}.jpg" for name in ("a", "b", "b2", "c", "d", "e", "f")]
    names += [f"/{name}{n}.jpg" for name in ("late", "s", "l", "full", "thumb") for n in range(10)]
    names += [f"/said{n}.jpg" for n in (1, 2, 3)]
    names += [
        "/t1b.jpg",
        *(f"/t{n}.jpg" for n in range(1, 8)),
        *(f"/u{n}.jpg" for n in range(1, 4)),
    ]
    names += [f"{path[:-1]}.jpg" for path in KNOWN]
    pages: dict[str, Page] = {name: Answer(jpeg(name)) for name in names}
    pages |= {
        "/": html(*(category(path, label) for path, label in shown.items())),
        "/robots.txt": Answer(
            gzip.compress(b"User-agent: *\nDisallow: /no/\n"), headers={"Content-Encoding": "gzip"}
        ),
        "/modern/": page(*LATE, *RESPONSIVE, *LINKED),
        "/smaller/": page(*SMALLER),
        "/said/": page(*SAID),
        "/alone/": page(*ALONE),
        "/again/": Answer(page(*ALONE).body, after_s=0.3),
        "/other/": Answer(page(*ALONE).body, after_s=0.3),
        "/later/": page(*LATER),
        "/moved3.jpg": Answer(b"", 302, {"Location": "/no/3.jpg"}),
        "/busy.jpg": [Answer(b"", 503), Answer(jpeg("busy"))],
        "/coded.jpg": [broken, Answer(jpeg("coded"))],
        "/bare/": html("no figure"),
        "/lost.jpg": Answer(b"", 404),
        "/page.jpg": Answer(b"<!doctype html>"),
        "/noai7.jpg": Answer(jpeg("noai7"), headers={"X-Robots-Tag": "noai"}),
        "/noai.jpg": Answer(jpeg("noai"), headers={"X-Robots-Tag": "noai"}),
        "/broken/": page('<img src="/broken.jpg">'),
        "/broken.jpg": [broken, Answer(jpeg("broken"))],
        "/empty/": html("no link"),
    }
    pages.update(KNOWN)
    for name, code in CODED.items():
        headers = {"Content-Encoding": name}
        body = page(f'<img src="/{name}.jpg">').body
        pages[f"/{name}/"] = Answer(code(body), headers=headers)
        pages[f"/{name}.jpg"] = Answer(code(jpeg(name)), headers=headers)
    dataset = tmp_path_factory.mktemp("modern")
    with LocalSite(pages) as site:
        figures = (figure.replace("ORIGIN", site.origin) for figure in FORBIDDEN)
        pages["/forbidden/"] = page(*figures)
        fetch = FetchSettings(
            origins={site.origin: OriginPolicy(concurrency=8, delay_s=0)},
            allow_private=(site.netloc,),
            retries=0,
        )
        sources = [
            AtlasSource(kind="atlas", start=site.origin + path, figure="figure", picture="img")
            for path in ("/", "/empty/")
        ]

        def crawl() -> tuple[dict[str, LedgerRow], Counter[str]]:
            site.asked.clear()
            rows = acquire(sources, fetch, dataset)
            return {row.url.removeprefix(site.origin): row for row in rows}, Counter(site.asked)

        first, asked = crawl()
        second, asked_again = crawl()
        yield Crawled(dataset, first, second, asked, asked_again)


def test_the_largest_version_of_each_image_is_fetched_once(crawled: Crawled) -> None:
    wanted = {f"/{name}{n}.jpg" for name in ("late", "l", "full") for n in range(10)}
    found = {path: row.status for path, row in crawled.rows.items() if row.label == "Acne"}
    assert found == dict.fromkeys(wanted, "stored")
    assert not [path for path in crawled.asked if path.startswith(("/s0", "/thumb"))]
    images = {path: n for path, n in crawled.asked.items() if path.endswith(".jpg")}
    assert set(images.values()) == {1}


def test_a_smaller_version_is_taken_where_the_largest_is_none(crawled: Crawled) -> None:
    said = {path: row.status for path, row in crawled.rows.items() if row.label == "Eczema"}
    assert said == {
        "/lost.jpg": "dead-link",
        "/a.jpg": "stored",
        "/page.jpg": "not-a-picture",
        "/b2.jpg": "stored",
        "/no/c.jpg": "robots",
        "http://127.0.0.1:1/d.jpg": "private-address",
        "/d.jpg": "stored",
        "/noai.jpg": "opt-out",
        "/f.jpg": "stored",
    }
    again = {path: row.status for path, row in crawled.again.items() if row.label == "Eczema"}
    assert again == said
    detail = crawled.rows["http://127.0.0.1:1/d.jpg"].detail
    assert detail.endswith("127.0.0.1:1 is a server of your own, name it in fetch.allow_private.")


def test_an_owners_no_counts_for_every_address_of_an_image(crawled: Crawled) -> None:
    ledger = [row for row in read_ledger(crawled.dataset) if row.label in ("No", "Other")]
    origin = next(f"http://{urlsplit(row.url).netloc}" for row in ledger)
    said = {
        (urlsplit(row.url).path.replace(origin, "ORIGIN"), row.label): row.status for row in ledger
    }
    thumbs = {(f"/t{n}.jpg", label) for n in range(1, 5) for label in ("No", "Other")}
    # Those alone that a page shows by themselves have a row.
    assert said.keys() - thumbs == {(urlsplit(path).path, "No") for path in FORBIDDEN.values()}
    assert {said[key] for key in thumbs} == {"robots"}
    assert sorted(said[key] for key in said.keys() - thumbs) == ["opt-out"] + ["robots"] * 6
    ways = ("/no/", "/web/", "/proxy", "/resize", "/t1b", "/t5", "/t6", "/t7")
    assert not [path for path in crawled.asked if path.startswith(ways)]
    assert not [path for path in crawled.asked_again if path.startswith(("/t1", "/t2", "/no/"))]
    named = {row.path for row in ledger} - {""}
    assert named == set()


def test_a_failure_that_passes_is_tried_again_and_nothing_stands_in(crawled: Crawled) -> None:
    def said(rows: dict[str, LedgerRow]) -> dict[str, str]:
        return {path: row.status for path, row in rows.items() if row.label == "Later"}

    gone = {"http://nowhere.invalid/2.jpg": "unreachable"}
    assert said(crawled.rows) == {"/busy.jpg": "server-error", "/coded.jpg": "compressed"} | gone
    assert said(crawled.again) == {"/busy.jpg": "stored", "/coded.jpg": "stored"} | gone
    assert not [path for path in crawled.asked | crawled.asked_again if path.startswith("/u")]


def test_answers_that_come_compressed_unasked_are_read(crawled: Crawled) -> None:
    for name in CODED:
        row = crawled.rows[f"/{name}.jpg"]
        assert (crawled.dataset / row.path).read_bytes() == jpeg(name)


def test_what_cannot_be_decoded_is_named_and_asked_for_again(crawled: Crawled) -> None:
    assert crawled.rows["/broken.jpg"].status == "compressed"
    assert "cannot be decoded: " in crawled.rows["/broken.jpg"].detail
    assert crawled.again["/broken.jpg"].status == "stored"


def test_captions_and_alternative_texts_are_kept(crawled: Crawled) -> None:
    assert crawled.rows["/said1.jpg"].caption == "Forehead of a man | Acne, 17 years"
    assert crawled.rows["/said2.jpg"].caption == "Lower back"
    assert len(crawled.rows["/said3.jpg"].caption) == 2000


def test_a_page_that_has_not_changed_is_not_sent_again(crawled: Crawled) -> None:
    assert {path: known.whole for path, known in KNOWN.items()} == {
        "/etag/": 1,
        "/dated/": 1,
        "/secret/": 2,
        "/owned/": 1,
    }
    assert all(crawled.asked_again[path] == 1 for path in KNOWN)
    for path in ("/etag.jpg", "/dated.jpg", "/secret.jpg"):
        assert crawled.again[path].status == crawled.rows[path].status == "stored"
    # What the owner's header forbids holds without the page being sent again.
    assert crawled.again["/owned.jpg"].status == "opt-out"
    assert len(list((crawled.dataset / PAGES).iterdir())) == 3


def test_a_source_and_a_class_without_images_are_named_and_the_others_go_on(
    crawled: Crawled,
) -> None:
    empty = crawled.rows["/empty/"]
    assert empty.status == EMPTY_SOURCE
    assert "has no link that matches category = 'a.category'" in empty.detail
    bare = crawled.rows["/bare/"]
    assert (bare.label, bare.status) == ("Bare", "no-pictures")
    assert bare.detail.endswith("It was read and names no image.")
