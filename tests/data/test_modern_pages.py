"""Sites as they are built today: late and responsive images, compressed answers, captions."""

import gzip
import json
from collections import Counter
from pathlib import Path

import brotli
from local_site import Answer, LocalSite, Page, category, html, jpeg

from skindx.data.acquire import acquire
from skindx.data.fetch.decoding import zstd
from skindx.data.fetch.settings import FetchSettings, OriginPolicy
from skindx.data.ledger import LedgerRow
from skindx.data.sources import AtlasSource

FAST = OriginPolicy(concurrency=8, delay_s=0)
PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACw="


def fetch_of(site: LocalSite, **settings: object) -> FetchSettings:
    own = {"origins": {site.origin: FAST}, "allow_private": (site.netloc,), "retries": 0}
    return FetchSettings.model_validate(own | settings)


def crawl(site: LocalSite, dataset: Path, **settings: object) -> dict[str, LedgerRow]:
    source = AtlasSource(
        kind="atlas", start=site.origin + "/", figure="figure", **{"picture": "img", **settings}
    )
    rows = acquire([source], fetch_of(site), dataset)
    return {row.url.removeprefix(site.origin): row for row in rows}


def page(*figures: str) -> dict[str, Page]:
    return {
        "/": html(category("/c/", "Acne")),
        "/c/": html(*(f"<figure>{figure}</figure>" for figure in figures)),
    }


def test_the_largest_version_of_each_image_is_fetched_once(tmp_path: Path) -> None:
    late = [
        f'<img src="{PIXEL}" data-src="/late{n}.jpg"><noscript><img src="/late{n}.jpg"></noscript>'
        for n in range(10)
    ]
    responsive = [
        f'<img src="/s{n}.jpg" srcset="/s{n}.jpg 150w, /l{n}.jpg 1200w">' for n in range(10)
    ]
    linked = [f'<a href="/full{n}.jpg"><img src="/thumb{n}.jpg"></a>' for n in range(10)]
    with LocalSite(page(*late, *responsive, *linked), Answer(jpeg("x"))) as site:
        site.pages["/robots.txt"] = Answer(b"", 404)
        rows = crawl(site, tmp_path)
    wanted = {f"/{name}{n}.jpg" for name in ("late", "l", "full") for n in range(10)}
    assert set(rows) == wanted
    assert {row.status for row in rows.values()} == {"stored"}
    assert {path for path in site.asked if path.endswith(".jpg")} == wanted
    assert set(Counter(site.asked).values()) == {1}


def test_a_smaller_version_is_taken_where_the_largest_is_none(tmp_path: Path) -> None:
    pages = page(
        '<a href="/lost.jpg"><img src="/a.jpg"></a>',
        '<a href="/page.jpg"><img src="/b.jpg" srcset="/b2.jpg 2x"></a>',
        '<a href="/no/c.jpg"><img src="/c.jpg"></a>',
        '<a href="http://127.0.0.1:1/d.jpg"><img src="/d.jpg"></a>',
        '<a href="/noai.jpg"><img src="/e.jpg"></a>',
        # The same lost address as above: it is not asked for again.
        '<a href="/lost.jpg"><img src="/f.jpg"></a>',
    )
    pages |= {
        "/robots.txt": Answer(b"User-agent: *\nDisallow: /no/\n"),
        "/lost.jpg": Answer(b"", 404),
        "/page.jpg": Answer(b"<!doctype html>"),
        "/noai.jpg": Answer(jpeg("noai"), headers={"X-Robots-Tag": "noai"}),
    }
    pages |= {f"/{name}.jpg": Answer(jpeg(name)) for name in ("a", "b", "b2", "c", "d", "e", "f")}
    with LocalSite(pages) as site:
        rows = crawl(site, tmp_path)
        again = crawl(site, tmp_path)
    said = {url: row.status for url, row in rows.items()}
    assert said == {
        "/lost.jpg": "dead-link",
        "/a.jpg": "stored",
        "/page.jpg": "not-a-picture",
        "/b2.jpg": "stored",
        "/no/c.jpg": "robots",
        "/c.jpg": "stored",
        "http://127.0.0.1:1/d.jpg": "private-address",
        "/d.jpg": "stored",
        "/noai.jpg": "opt-out",
        "/f.jpg": "stored",
    }
    assert {url: row.status for url, row in again.items()} == said
    images = Counter(path for path in site.asked if path.endswith(".jpg"))
    assert set(images.values()) == {1}


def test_answers_that_come_compressed_unasked_are_read(tmp_path: Path) -> None:
    coded = {"gzip": gzip.compress, "br": brotli.compress, "zstd": zstd.compress}
    names = "".join(f'<figure><img src="/{name}.jpg"></figure>' for name in coded)
    body = html(names).body
    pages: dict[str, Page] = {
        "/": html(*(category(f"/{name}/", name) for name in coded)),
        "/robots.txt": Answer(
            gzip.compress(b"User-agent: *\nDisallow: /no/\n"), headers={"Content-Encoding": "gzip"}
        ),
    }
    for name, code in coded.items():
        headers = {"Content-Encoding": name}
        pages[f"/{name}/"] = Answer(code(body), headers=headers)
        pages[f"/{name}.jpg"] = Answer(code(jpeg(name)), headers=headers)
    with LocalSite(pages) as site:
        rows = crawl(site, tmp_path)
    for name in coded:
        assert (tmp_path / rows[f"/{name}.jpg"].path).read_bytes() == jpeg(name)
    assert {row.label for row in rows.values()} <= set(coded)


def test_what_cannot_be_decoded_is_named_and_asked_for_again(tmp_path: Path) -> None:
    broken = Answer(b"no gzip", headers={"Content-Encoding": "gzip"})
    pages = page('<img src="/a.jpg">', '<img src="/b.jpg">')
    pages |= {"/a.jpg": [broken, Answer(jpeg("a"))], "/b.jpg": Answer(jpeg("b"))}
    with LocalSite(pages) as site:
        first, second = crawl(site, tmp_path), crawl(site, tmp_path)
    assert first["/a.jpg"].status == "compressed"
    assert "cannot be decoded: " in first["/a.jpg"].detail
    assert second["/a.jpg"].status == "stored"


def test_captions_and_alternative_texts_are_kept(tmp_path: Path) -> None:
    pages = page(
        '<img src="/a.jpg" alt="Acne,\n 17 years"><figcaption>Forehead <b>of a man</b>'
        "</figcaption>",
        '<img src="/b.jpg" alt="back"><figcaption>Lower back</figcaption>',
        f'<img src="/c.jpg" alt="{"x" * 5000}">',
    )
    with LocalSite(pages, Answer(jpeg("x"))) as site:
        site.pages["/robots.txt"] = Answer(b"", 404)
        rows = crawl(site, tmp_path)
    assert rows["/a.jpg"].caption == "Forehead of a man | Acne, 17 years"
    assert rows["/b.jpg"].caption == "Lower back"
    assert len(rows["/c.jpg"].caption) == 2000
    assert '"caption": "Lower back"' in (tmp_path / "ledger.jsonl").read_text()
    assert json.loads((tmp_path / "ledger.jsonl").read_text().splitlines()[-1])
