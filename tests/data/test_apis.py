"""The API adapters on answers served by a real server on loopback.

The committed answers are *unverified live*: written from the APIs' documentation and source code
(tests/data/answers, where record.py replaces them). What is asserted here holds for any answer.
"""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from api_site import CONTACT, FAST, KINDS, moved, recorded, serve, source_of
from hypothesis import given
from hypothesis import strategies as st
from local_site import Answer, LocalSite, jpeg

from skindx.core.errors import UserError
from skindx.data.build.acquire import acquire
from skindx.data.crawl.crawl_process import check_sources, with_endpoints
from skindx.data.crawl.fetch_settings import FetchSettings
from skindx.data.ledger import LedgerRow
from skindx.data.sources.api import ApiSource, OpenverseSource, WikimediaSource, licence
from skindx.data.sources.image_source import Page, UnreadablePageError
from skindx.data.sources.isic import IsicSource


def fetching(site: LocalSite, **settings: Any) -> FetchSettings:
    return FetchSettings(
        contact=CONTACT, origins={site.origin: FAST}, allow_private=(site.netloc,), **settings
    )


def openverse_expected(bodies: list[dict[str, Any]]) -> dict[str, tuple[str, ...]]:
    return {
        row["url"]: (row["creator"] or "", row["attribution"], row["foreign_landing_url"])
        for body in bodies
        for row in body["results"]
    }


def isic_expected(bodies: list[dict[str, Any]]) -> dict[str, tuple[str, ...]]:
    expected = {}
    for row in (row for body in bodies for row in body["results"]):
        clinical = row["metadata"]["clinical"]
        group = clinical.get("patient_id") or clinical.get("lesion_id") or ""
        expected[row["files"]["full"]["url"]] = (group, row["attribution"])
    return expected


def wikimedia_expected(bodies: list[dict[str, Any]]) -> dict[str, tuple[str, ...]]:
    pages = [page for body in bodies for page in body["query"]["pages"] if "imageinfo" in page]
    infos = [page["imageinfo"][0] for page in pages]
    return {
        info["url"]: (info["extmetadata"]["LicenseShortName"]["value"], info["descriptionurl"])
        for info in infos
    }


def test_openverse_rows_are_what_its_answers_say(tmp_path: Path) -> None:
    with LocalSite() as site:
        bodies = serve("openverse", site)
        rows = acquire([source_of("openverse", site)], fetching(site), tmp_path)
    images = {row.url: row for row in rows if row.page_url != row.url}
    expected = openverse_expected(bodies)
    reported = {r.url: (r.creator, r.attribution, r.page_url) for r in images.values()}
    assert reported == expected
    assert {row.status for row in rows} == {"stored"}
    assert {row.label for row in rows} == set(recorded("openverse")["settings"]["searches"])
    assert all(re.match(r"(CC0|CC BY|Public Domain Mark) ?\S*", row.licence) for row in rows)
    assert {row.source for row in rows} == {"openverse"}


def test_isic_rows_carry_patient_or_lesion(tmp_path: Path) -> None:
    with LocalSite() as site:
        bodies = serve("isic", site)
        rows = acquire([source_of("isic", site)], fetching(site), tmp_path)
        agents = {headers["user-agent"] for headers in site.headers}
    assert agents == {FetchSettings(contact=CONTACT).user_agent}
    reported = {row.url: (row.group, row.attribution) for row in rows}
    assert reported == isic_expected(bodies)
    assert {row.status for row in rows} == {"stored"}
    assert {row.licence for row in rows} <= {"CC0 1.0", "CC BY 4.0", "CC BY-NC 4.0"}
    assert all(row.skin_type in {None, 1, 2, 3, 4, 5, 6} for row in rows)


def test_wikimedia_follows_continue_and_its_api_though_robots_txt_disallows_pages(
    tmp_path: Path,
) -> None:
    with LocalSite() as site:
        bodies = serve("wikimedia", site)
        rows = acquire([source_of("wikimedia", site)], fetching(site), tmp_path)
        answers = [path for path in site.asked if "/w/api.php" in path]
        assert len(answers) == len(bodies)
    named = [row for row in rows if row.status != "no-url"]
    reported = {row.url: (row.licence, row.page_url) for row in named}
    assert reported == wikimedia_expected(bodies)
    assert {row.status for row in named} <= {"stored", "unsupported-format"}
    assert "<" not in "".join(row.creator + row.attribution for row in rows)
    assert all(row.creator for row in named)


def test_only_the_api_s_own_path_is_free_of_robots_txt(tmp_path: Path) -> None:
    with LocalSite() as site:
        serve("openverse", site)
        site.pages["/robots.txt"] = Answer(
            b"User-agent: *\nDisallow: /api.openverse.org/\nDisallow: /live.staticflickr.com/\n"
            b"Disallow: /elsewhere\n"
        )
        first = recorded("openverse")["answers"][0]
        path = moved(first["url"], site).removeprefix(site.origin)
        site.pages["/elsewhere"] = site.pages[path]
        source = source_of("openverse", site)
        statuses = {row.status for row in acquire([source], fetching(site), tmp_path / "1")}
        assert "robots" in statuses
        assert not [asked for asked in site.asked if "staticflickr" in asked]
        # A redirect that leaves the API is a page like any other.
        site.pages[path] = Answer(b"moved", 302, {"Location": "/elsewhere"})
        rows = acquire([source], fetching(site), tmp_path / "2")
        assert "/elsewhere" not in site.asked
    (lost,) = [row for row in rows if row.page_url == row.url]
    assert lost.status == "robots"


def test_caps_hold_for_images_and_pages(tmp_path: Path) -> None:
    with LocalSite() as site:
        bodies = serve("openverse", site)
        few = source_of("openverse", site, max_pictures=1)
        rows = acquire([few], fetching(site), tmp_path / "1")
        more = [row for row in rows if row.status == "more-results"]
        assert [row.label for row in more] == ["Acne_Vulgaris"]
        assert more[0].detail == (
            "The search promises 5 results; what was read names 3 of them. "
            "max_pictures takes the first 1 image of a label."
        )
        rows = [row for row in rows if row not in more]
        assert sorted(row.label for row in rows) == sorted(few.searches)
        assert rows[0].url == bodies[0]["results"][0]["url"]
        assert len([path for path in site.asked if "/v1/images/" in path]) == len(few.searches)
        short = source_of("openverse", site, max_pages=2)
        rows = acquire([short], fetching(site), tmp_path / "2")
    failed = [row for row in rows if row.page_url == row.url]
    assert [row.status for row in failed] == ["too-many-pages"]
    assert "max_pages = 2" in failed[0].detail


def openverse_at(site: LocalSite, *labels: str) -> OpenverseSource:
    searches = {label: (label.lower(),) for label in labels}
    return OpenverseSource(kind="openverse", api=f"{site.origin}/v1/", searches=searches)


def path_of(page: Page, site: LocalSite) -> str:
    return page.url.removeprefix(site.origin)


BROKEN = {
    "Html": (b"<html>busy</html>", "unreadable-page"),
    "List": (b"[1, 2]", "unreadable-page"),
    "Deep": (b"[" * 100_000, "unreadable-page"),
    "Number": (b'{"results": 3}', "unreadable-page"),
    "Words": (b'{"results": ["x"]}', "unreadable-page"),
    "Nothing": (b'{"results": []}', "nothing-found"),
}


def test_a_page_that_cannot_be_read_costs_only_its_own_label(tmp_path: Path) -> None:
    with LocalSite() as site:
        source = openverse_at(site, *BROKEN, "Wart")
        *broken, wart = source.begin()
        site.pages = {path_of(page, site): Answer(BROKEN[page.label][0]) for page in broken}
        result = {"url": f"{site.origin}/1.jpg", "license": "by", "license_version": "4.0"}
        good = {"page": 1, "page_count": 1, "results": [result, {"id": "x"}]}
        site.pages |= {
            path_of(wart, site): Answer(json.dumps(good).encode()),
            "/1.jpg": Answer(jpeg("1")),
        }
        rows = acquire([source], fetching(site), tmp_path)
    reported = {(row.label, row.status, row.licence) for row in rows if row.label == "Wart"}
    assert reported == {("Wart", "stored", "CC BY 4.0"), ("Wart", "no-url", "")}
    assert {row.url for row in rows if row.status == "no-url"} == {"openverse:x"}
    failed = {row.label: row.status for row in rows if row.label != "Wart"}
    assert failed == {label: status for label, (_, status) in BROKEN.items()}


def test_searches_that_find_nothing_at_all_are_one_sentence(tmp_path: Path) -> None:
    said = r"openverse: no search found an image, for any of 2 labels"
    with (
        LocalSite(default=Answer(b'{"results": []}')) as site,
        pytest.raises(UserError, match=said),
    ):
        acquire([openverse_at(site, "Acne", "Wart")], fetching(site), tmp_path)


def test_a_tired_api_is_waited_for_and_an_opt_out_is_kept(tmp_path: Path) -> None:
    with LocalSite() as site:
        source = openverse_at(site, "Acne", "Wart")
        acne, wart = source.begin()
        results = [{"url": f"{site.origin}/1.jpg"}]
        body = json.dumps({"results": results}).encode()
        site.pages = {
            path_of(acne, site): [Answer(b"", 429, {"Retry-After": "1"}), Answer(body)],
            path_of(wart, site): Answer(body, headers={"X-Robots-Tag": "noai"}),
            "/1.jpg": Answer(jpeg("1")),
        }
        rows = acquire([source], fetching(site), tmp_path)
        asked = site.asked.index(path_of(acne, site))
        again = site.asked.index(path_of(acne, site), asked + 1)
        assert site.times[again] - site.times[asked] >= 1
    assert {(row.label, row.status) for row in rows} == {("Acne", "stored"), ("Wart", "opt-out")}


def test_isic_may_not_lead_out_of_its_api() -> None:
    source = IsicSource(kind="isic", searches={"Nevus": ("x",)})
    (page,) = source.begin()
    found = {"files": {"full": {"url": "https://a.org/1.jpg"}}}
    for next_page in ("http://169.254.169.254/", "https://api.isic-archive.com/admin/", "x:y"):
        with pytest.raises(UnreadablePageError, match="not part of the API"):
            read(source, page, {"results": [found], "next": next_page})


def test_isic_labels_may_be_the_most_exact_diagnosis() -> None:
    source = IsicSource(kind="isic", searches={"all": ("public:true",)}, label="diagnosis")
    (page,) = source.begin()
    clinical = {"diagnosis_1": "Benign", "diagnosis_3": "Nevus", "fitzpatrick_skin_type": "IV"}
    result = {"files": {"full": {"url": "https://a.org/1.jpg"}}, "metadata": {"clinical": clinical}}
    rows = read(source, page, {"results": [result, {"isic_id": "ISIC_1"}]})
    assert [row.label for row in rows if isinstance(row, LedgerRow)] == ["Nevus", ""]
    assert isinstance(rows[0], LedgerRow)
    assert rows[0].skin_type == 4
    assert isinstance(rows[1], LedgerRow)
    assert (rows[1].url, rows[1].status) == ("isic:ISIC_1", "no-label")


def test_wikimedia_errors_come_with_http_200() -> None:
    source = WikimediaSource(kind="wikimedia", searches={"Acne": ("Category:Acne",)})
    (page,) = source.begin()
    error = {"error": {"code": "ratelimited", "info": "You've exceeded your rate limit."}}
    with pytest.raises(UnreadablePageError, match="ratelimited"):
        read(source, page, error)
    with pytest.raises(UnreadablePageError, match="no image"):
        read(source, page, {"batchcomplete": True})


def test_wikimedia_metadata_is_html_and_becomes_text() -> None:
    source = WikimediaSource(kind="wikimedia", searches={"Acne": ("acne",)})
    (page,) = source.begin()
    meta = {"Artist": {"value": '<a href="x">A&nbsp;B</a>\n &lt;C&gt;'}, "Credit": {"value": 7}}
    info = {"url": "https://a.org/1.jpg", "mime": "image/jpeg", "extmetadata": meta}
    (row,) = read(source, page, {"query": {"pages": [{"imageinfo": [info]}]}})
    assert isinstance(row, LedgerRow)
    assert (row.creator, row.attribution, row.licence) == ("A B <C>", "7", "")


@pytest.mark.parametrize(
    ("code", "version", "name"),
    [
        ("by-nc-sa", "2.0", "CC BY-NC-SA 2.0"),
        ("cc0", "1.0", "CC0 1.0"),
        ("pdm", "1.0", "Public Domain Mark 1.0"),
        ("by", "", "CC BY"),
        ("", "4.0", ""),
    ],
)
def test_licences_are_written_as_people_do(code: str, version: str, name: str) -> None:
    assert licence(code, version) == name


def read(source: ApiSource, page: Page, content: object) -> list[Page | LedgerRow]:
    answer: Any = SimpleNamespace(body=json.dumps(content).encode())
    return list(source.read(page, answer))


WORDS = ["results", "query", "pages", "imageinfo", "url", "page", "page_count", "next", "continue"]
WORDS += [
    "files",
    "full",
    "metadata",
    "clinical",
    "extmetadata",
    "Artist",
    "value",
    "index",
    "mime",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(content=JSON, inner=JSON, kind=st.sampled_from(sorted(KINDS)))
def test_no_answer_whatever_breaks_the_crawl(content: object, inner: object, kind: str) -> None:
    source = KINDS[kind].model_validate({"kind": kind, "searches": {"Acne": "acne"}})
    (page,) = source.begin()
    results = [inner] if isinstance(inner, dict) else inner
    for tried in (content, {"results": results, "query": {"pages": results}}):
        try:
            for found in read(source, page, tried):
                assert isinstance(found, Page) or found.url
        except UnreadablePageError as error:
            assert error.detail.endswith(".")  # noqa: PT017


def test_an_api_has_its_own_delay_unless_the_user_names_it() -> None:
    source = OpenverseSource(kind="openverse", searches={"Acne": ("acne",)})
    fetch = with_endpoints(FetchSettings(), [source])
    policy = fetch.policy("https://api.openverse.org:443")
    assert policy.concurrency == 1
    assert policy.delay_s >= 3  # 20 a minute
    own = FetchSettings(origins={"https://api.openverse.org:443": FAST})
    assert with_endpoints(own, [source]).policy("https://api.openverse.org:443") == FAST


def test_commons_is_not_asked_without_a_contact() -> None:
    source = WikimediaSource(kind="wikimedia", searches={"Acne": ("acne",)})
    with pytest.raises(UserError, match=r"fetch\.contact"):
        check_sources([source], FetchSettings())
    assert check_sources([source], FetchSettings(contact=CONTACT))
    own = FetchSettings(origins={"http://127.0.0.1:8000": FAST}, allow_private=("127.0.0.1:8000",))
    mine = source.model_copy(update={"api": "http://127.0.0.1:8000/w/"})
    assert not check_sources([mine], own)
