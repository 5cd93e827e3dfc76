"""One crawl and one screening of everything that can go wrong; hostile_site.py has the table."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hostile_site import (
    BAD_LINKS,
    FAULTS,
    GOOD,
    IMAGES,
    ROBOTS,
    SOUND,
    Hostile,
    atlas,
    crawl_hostile,
)
from local_site import Answer, LocalSite, jpeg

from skindx.data.build import build_dataset as building
from skindx.data.layout import LEDGER, LOG
from skindx.data.manifest import read_issues, read_manifest
from skindx.data.recipe import BuildSettings
from skindx.data.screening import screen
from skindx.imaging.decode import decode
from skindx.imaging.image_formats import image_suffix


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    dataset = tmp_path_factory.mktemp("hostile")
    slow_robots = Answer(b"\xef\xbb\xbf" + ROBOTS, after_s=1.0)
    with ExitStack() as stack:
        sites = {
            "main": LocalSite(
                {path: page for path, (_, page) in FAULTS.items()}
                | {path: page for path, (page, _) in IMAGES.items()}
                | GOOD
            ),
            "secret": LocalSite(default=Answer(jpeg("secret"))),
            # As some editors write it, with a byte order mark.
            "rules": LocalSite({"/robots.txt": slow_robots}, Answer(jpeg("rules"))),
            "ruleless": LocalSite({"/robots.txt": Answer(b"", 500)}, Answer(jpeg("x"))),
            "tired": LocalSite(
                {"/a.jpg": [Answer(b"", 429, {"Retry-After": "1"}), Answer(jpeg("a"))]},
                Answer(jpeg("tired")),
            ),
            "closed": LocalSite({}, Answer(b"", 503, {"Retry-After": "86400"})),
            "signal": LocalSite(
                {
                    "/robots.txt": Answer(
                        b"User-Agent: *\nContent-signal: search=yes, ai-train=no\n"
                    )
                },
                Answer(jpeg("x")),
            ),
            "proxy": LocalSite(default=Answer(jpeg("proxy"))),
        }
        for site in sites.values():
            stack.enter_context(site)
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            environment.setenv(name, sites["proxy"].origin)
        yield crawl_hostile(sites, dataset)


def test_good_images_are_stored_as_they_came(hostile: Hostile) -> None:
    for path in (*GOOD, "/late.jpg"):
        for row in hostile.rows[path]:
            assert (row.status, row.detail) == ("stored", ""), row
            data = (hostile.dataset / row.path).read_bytes()
            assert row.size_bytes == len(data)
            assert Path(row.path).suffix == image_suffix(data)
            assert (row.licence, row.creator) == ("CC0", "A. Painter")
    stored = hostile.rows["/ok.jpg"][0]
    assert (hostile.dataset / stored.path).read_bytes() == jpeg("ok")
    inside = [path for path in hostile.dataset.rglob("*") if path.is_file()]
    assert {path.relative_to(hostile.dataset).parts[0] for path in inside} == {LEDGER, LOG, "store"}


@pytest.mark.parametrize("path", FAULTS)
def test_each_fault_has_its_reason(hostile: Hostile, path: str) -> None:
    (row,) = hostile.rows[path]
    assert row.status == FAULTS[path][0], row
    assert row.detail.endswith(".")
    assert not row.path


@pytest.mark.parametrize("path", IMAGES)
def test_each_stored_image_is_sound_or_has_its_reason(hostile: Hostile, path: str) -> None:
    (row,) = hostile.rows[path]
    assert (row.status, row.detail) == ("stored", ""), row
    verdict = hostile.screened[row.path]
    expected = IMAGES[path][1]
    if isinstance(expected, str):
        assert verdict.reason == expected, verdict
        assert verdict.detail
    else:
        assert verdict.reason is None, verdict
        assert verdict.sha256 == row.sha256
        pixels = decode((hostile.dataset / row.path).read_bytes())
        assert (verdict.height, verdict.width) == pixels.shape[:2]
        assert expected(pixels)


def test_the_table_has_many_kinds_of_fault() -> None:
    refused = [path for path, (_, expected) in IMAGES.items() if isinstance(expected, str)]
    assert len(FAULTS) + len(refused) >= 35
    assert len({status for status, _ in FAULTS.values()}) >= 9


def test_crawler_and_decoders_stay_small_and_know_no_torch(hostile: Hostile) -> None:
    peaks = hostile.watch.peak_mb
    assert {name for _, name in peaks} == {
        "skindx.data.crawl.crawl_process",
        "skindx.workers.sandbox",
    }
    # Images that cost too much are refused by their header: no decoder dies of them, since another
    # would follow it. One of the two may find no file left to decode.
    # The processes that fork them are our children: another test may have left one behind.
    parents = hostile.watch.parents
    ours = {pid for pid, name in peaks if name == "skindx.workers.sandbox"}
    assert sum(parents[pid] != os.getpid() for pid in ours) in (1, 2)
    assert "decode-crash" not in {verdict.reason for verdict in hostile.screened.values()}
    assert max(peaks.values()) < 500, peaks
    assert not hostile.watch.with_torch


def test_links_that_are_no_web_address_have_a_row(hostile: Hostile) -> None:
    for link in BAD_LINKS:
        assert [row.status for row in hostile.rows[link]] == ["bad-url"]


def test_no_private_address_is_reached_by_link_or_redirect(hostile: Hostile) -> None:
    private = [row for rows in hostile.rows.values() for row in rows if "secret.jpg" in row.url]
    private += [rows[0] for path, rows in hostile.rows.items() if path.startswith("/hop")]
    private += hostile.rows["http://169.254.169.254/latest.jpg"]
    assert len(private) >= 45
    assert {(row.status, row.url) for row in private if row.status != "private-address"} == set()
    assert hostile.sites["secret"].asked == []
    assert "/secret.jpg" not in hostile.sites["main"].asked


def test_hosts_that_are_not_there_are_unreachable(hostile: Hostile) -> None:
    gone = [
        rows[0] for url, rows in hostile.rows.items() if url.endswith("/x.jpg") and url[0] == "h"
    ]
    assert {row.status for row in gone} == {"unreachable"}
    assert len(gone) == 2


def test_nothing_goes_through_a_proxy_variable(hostile: Hostile) -> None:
    assert hostile.sites["proxy"].asked == []


def test_a_url_under_two_labels_has_two_rows_and_one_fetch(hostile: Hostile) -> None:
    first, second = hostile.rows["/shared.jpg"]
    assert {first.label, second.label} == {"Acne", "Eczema"}
    assert first.sha256 == second.sha256
    assert hostile.sites["main"].asked.count("/shared.jpg") == 1
    assert len(hostile.rows["/ok.jpg"]) == 1
    assert hostile.sites["main"].asked.count("/ok.jpg") == 1


def test_no_disallowed_url_is_asked_while_robots_txt_is_slow(hostile: Hostile) -> None:
    site = hostile.sites["rules"]
    assert site.asked[0] == "/robots.txt"
    assert set(site.asked[1:]) == {f"/yes/{number}.jpg" for number in range(7)}
    refused = [hostile.rows[f"{site.origin}/no/{number}.jpg"][0] for number in range(13)]
    assert {row.status for row in refused} == {"robots"}


def test_a_host_without_readable_rules_is_left_alone(hostile: Hostile) -> None:
    site = hostile.sites["ruleless"]
    assert set(site.asked) == {"/robots.txt"}
    row = hostile.rows[f"{site.origin}/0.jpg"][0]
    assert row.status == "robots"
    assert "RFC 9309" in row.detail
    assert "500" in row.detail


def test_a_host_whose_robots_txt_forbids_training_is_left_alone(hostile: Hostile) -> None:
    site = hostile.sites["signal"]
    assert site.asked == ["/robots.txt"]
    row = hostile.rows[f"{site.origin}/0.jpg"][0]
    assert row.status == "opt-out"
    assert "(Content-signal: search=yes, ai-train=no)" in row.detail


def test_retry_after_is_waited_for_by_the_whole_host(hostile: Hostile) -> None:
    site = hostile.sites["tired"]
    assert {hostile.rows[f"{site.origin}/{name}.jpg"][0].status for name in "abc"} == {"stored"}
    refused = site.asked.index("/a.jpg")
    # The client's wait begins after the server's answer: the gap can be longer, never shorter.
    assert site.times[refused + 1] - site.times[refused] >= 1


def test_a_host_that_asks_for_too_long_a_wait_is_left_alone(hostile: Hostile) -> None:
    site = hostile.sites["closed"]
    assert site.asked == ["/robots.txt"]
    assert "86400" in hostile.rows[f"{site.origin}/0.jpg"][0].detail


def test_pages_that_could_not_be_read_are_reported(hostile: Hostile) -> None:
    reported = {(row.label, row.status) for row in hostile.pages}
    assert reported == {("Lost", "dead-link"), ("Ftp", "bad-url"), ("Endless", "too-many-pages")}


def test_a_page_that_forbids_learning_keeps_its_images(hostile: Hostile) -> None:
    assert hostile.rows["/never.jpg"][0].status == "opt-out"
    assert "/never.jpg" not in hostile.sites["main"].asked


def test_requests_say_who_asks_and_carry_nothing_else(hostile: Hostile) -> None:
    for site in hostile.sites.values():
        for headers in site.headers:
            assert headers["user-agent"].startswith("skindx/")
            assert headers["accept-encoding"] == "identity"
            assert "cookie" not in headers
            assert "proxy-authorization" not in headers


def test_progress_ends_with_everything_done(hostile: Hostile) -> None:
    count = sum(len(rows) for rows in hostile.rows.values())
    assert hostile.progress[-1] == (count, count)
    assert hostile.progress == sorted(hostile.progress)


def test_a_sound_dataset_comes_of_it(
    hostile: Hostile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Crawled and screened once, above; the rest of the build is the real one."""
    out = tmp_path / "out"
    shutil.copytree(hostile.dataset, out)
    monkeypatch.setattr(building, "acquire", lambda *_, **__: hostile.found)
    screened = hostile.screened
    monkeypatch.setattr(
        screen,
        "screen_files",
        lambda files, *_, **__: [screened[file.relative_to(out).as_posix()] for file in files],
    )
    source = atlas(hostile.sites["main"]).model_dump(mode="json")
    summary = building.build(BuildSettings.parse({"name": "hostile", "sources": [source]}), out)
    records, issues = read_manifest(out), read_issues(out)
    assert summary.found == len(hostile.found) == len(records) + len(issues)
    main = hostile.sites["main"].origin
    sound = {main + path for path, (_, said) in IMAGES.items() if not isinstance(said, str)}
    assert {record.source_url for record in records} == sound | {main + path for path in SOUND}
    reasons = {issue.url.removeprefix(main): issue.reason for issue in issues}
    expected = {path: reason for path, (reason, _) in FAULTS.items()}
    expected |= {path: said for path, (_, said) in IMAGES.items() if isinstance(said, str)}
    assert {path: reasons[path] for path in expected} == expected
    assert {decode((out / record.path).read_bytes()).dtype.name for record in records} == {"uint8"}
