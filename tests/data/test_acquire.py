"""The crawl against real servers on loopback: politeness, kills and resuming, errors."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from local_site import Answer, LocalSite, Page, category, closed_port, figures, html, jpeg
from warm_modules import cold_crawls

from skindx.core.errors import JobError, UserError
from skindx.data.build.acquire import acquire
from skindx.data.build.build_dataset import build
from skindx.data.crawl.fetch_settings import FetchSettings, OriginPolicy
from skindx.data.layout import LEDGER, LOG
from skindx.data.ledger import read_ledger
from skindx.data.recipe import BuildSettings
from skindx.data.sources.api import OpenverseSource
from skindx.data.sources.atlas import AtlasSource

ROBOTS = b"User-agent: *\nDisallow: /no/\n"
FAST = OriginPolicy(concurrency=8, delay_s=0)


def atlas(site: LocalSite, path: str = "/") -> AtlasSource:
    return AtlasSource(kind="atlas", start=site.origin + path)


def to(where: str, status: int = 302) -> Answer:
    return Answer(b"elsewhere", status, {"Location": where})


def test_other_hosts_stay_polite_beside_an_impolite_one(tmp_path: Path) -> None:
    # Longer than the delay: with two at once the second would come while the first is served.
    slow = Answer(jpeg("slow"), after_s=1.3)
    with (
        LocalSite(default=Answer(jpeg("fast"), after_s=0.3)) as own,
        LocalSite({"/robots.txt": Answer(status=404)}, slow) as other,
        LocalSite({"/robots.txt": Answer(status=404)}, slow) as named,
    ):
        by_name = f"localhost:{named.port}"
        own.pages = {
            "/robots.txt": Answer(status=404),
            "/": html(category("/c/", "Acne")),
            "/c/": html(
                figures(*(f"/{number}.jpg" for number in range(16)), "/away.jpg"),
                figures(f"{other.origin}/1.jpg", f"{other.origin}/2.jpg"),
                figures(f"http://{by_name}/1.jpg", f"http://{by_name}/2.jpg"),
            ),
            "/away.jpg": to(f"{other.origin}/3.jpg"),
        }
        fetch = FetchSettings(
            origins={own.origin: FAST}, allow_private=(own.netloc, other.netloc, by_name)
        )
        rows = acquire([atlas(own)], fetch, tmp_path)
    assert {row.status for row in rows} == {"stored"}
    assert len(rows) == 21
    assert 2 < own.at_once <= 8
    assert (other.at_once, named.at_once) == (1, 1)
    assert sorted(other.asked) == ["/1.jpg", "/2.jpg", "/3.jpg", "/robots.txt"]
    log = (tmp_path / LOG).read_text()
    assert f"{own.origin}: 8 at once, delay 0.00 s, AutoThrottle off" in log
    for origin in (other.origin, f"http://{by_name}"):
        reported = re.search(
            rf"{re.escape(origin)}: 1 at once, delay (\S+) s, AutoThrottle on", log
        )
        assert reported
        assert float(reported[1]) >= 1


ACQUIRE = """
import sys
from pathlib import Path
from skindx.data.build.acquire import acquire
from skindx.data.crawl.fetch_settings import FetchSettings
from skindx.data.sources.atlas import AtlasSource
fetch = FetchSettings.model_validate_json(sys.argv[2])
acquire([AtlasSource(kind="atlas", start=sys.argv[1])], fetch, Path(sys.argv[3]))
"""


def kill_the_crawl(done: int, _: int) -> None:
    """Kill the crawl process as soon as it has brought something; other children stay."""
    if done >= 10:
        for task in Path("/proc/self/task").iterdir():
            for pid in (task / "children").read_text().split():
                if b"skindx.data.crawl.crawl_process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(int(pid), signal.SIGKILL)


def test_killed_at_any_moment_the_same_call_goes_on(tmp_path: Path) -> None:
    paths = [f"/{number}.jpg" for number in range(100)]
    with LocalSite({path: Answer(jpeg(path), after_s=0.1) for path in paths}) as site:
        site.pages |= {"/": html(category("/c/", "Acne")), "/c/": html(figures(*paths))}
        fetch = FetchSettings(origins={site.origin: FAST}, allow_private=(site.netloc,))

        # Its process is known by its command line.
        with cold_crawls(), pytest.raises(RuntimeError, match="run the same command") as died:
            acquire([atlas(site)], fetch, tmp_path, on_progress=kill_the_crawl)
        assert "Spider opened" in str(died.value)
        first = {row.url for row in read_ledger(tmp_path)}
        assert 10 <= len(first) < 100
        first_asked = len(site.asked)
        with (tmp_path / LEDGER).open("ab") as file:
            file.write(b'{"url": "http://torn')

        arguments = [site.origin + "/", fetch.model_dump_json(), str(tmp_path)]
        parent = subprocess.Popen([sys.executable, "-c", ACQUIRE, *arguments])
        while len(read_ledger(tmp_path)) < len(first) + 10:
            assert parent.poll() is None
            time.sleep(0.02)
        parent.kill()
        parent.wait()
        second = {row.url for row in read_ledger(tmp_path)}
        second_asked = len(site.asked)

        progress: list[tuple[int, int]] = []
        rows = acquire(
            [atlas(site)], fetch, tmp_path, on_progress=lambda *count: progress.append(count)
        )
    assert {row.status for row in rows} == {"stored"}
    assert sorted(row.url for row in rows) == sorted(site.origin + path for path in paths)
    for kept, asked in ((first, first_asked), (second, second_asked)):
        assert kept.isdisjoint(site.origin + path for path in site.asked[asked:])
    lines = Counter(re.findall(r'^{"url": "([^"]+)"', (tmp_path / LEDGER).read_text(), re.M))
    assert set(lines.values()) == {1}
    # Had the orphaned crawl gone on, nothing would have been left to do.
    assert progress[0][0] < progress[-1][0] == 100


def test_the_next_run_asks_only_for_what_is_missing(tmp_path: Path) -> None:
    pages: dict[str, Page] = {
        "/": html(category("/c/", "Acne")),
        "/c/": html(figures("/kept.jpg", "/lost.jpg", "/gone.jpg", "/ill.jpg", "/no/x.jpg")),
        "/robots.txt": Answer(ROBOTS),
        "/kept.jpg": Answer(jpeg("kept")),
        "/lost.jpg": Answer(jpeg("lost")),
        "/ill.jpg": Answer(b"", 500),
    }
    with LocalSite(pages) as site:
        fetch = FetchSettings(origins={site.origin: FAST}, allow_private=(site.netloc,), retries=0)
        before = {row.url: row for row in acquire([atlas(site)], fetch, tmp_path)}
        (tmp_path / before[f"{site.origin}/lost.jpg"].path).unlink()
        site.pages["/ill.jpg"] = Answer(jpeg("well"))
        site.asked.clear()
        after = {row.url: row for row in acquire([atlas(site)], fetch, tmp_path)}
    images = [path for path in site.asked if path.endswith(".jpg")]
    assert sorted(images) == ["/ill.jpg", "/lost.jpg"]
    changed = {url for url in after if after[url].status != before[url].status}
    assert changed == {f"{site.origin}/ill.jpg"}
    assert Counter(row.status for row in after.values()) == {
        "stored": 3,
        "dead-link": 1,
        "robots": 1,
    }
    assert (tmp_path / after[f"{site.origin}/lost.jpg"].path).read_bytes() == jpeg("lost")


def test_what_could_not_be_reached_today_is_asked_for_again(tmp_path: Path) -> None:
    port = closed_port()
    gone = f"http://127.0.0.1:{port}/picture.jpg"
    with LocalSite({"/": html(category("/c/", "Acne")), "/c/": html(figures(gone))}) as site:
        fetch = FetchSettings(
            origins={site.origin: FAST, f"http://127.0.0.1:{port}": FAST},
            allow_private=(site.netloc, f"127.0.0.1:{port}"),
        )
        (before,) = acquire([atlas(site)], fetch, tmp_path)
        pages: dict[str, Page] = {"/picture.jpg": Answer(jpeg("back"))}
        with LocalSite(pages, port=port):
            (after,) = acquire([atlas(site)], fetch, tmp_path)
    assert (before.status, after.status) == ("unreachable", "stored")


def test_without_a_network_the_crawl_ends_soon_with_one_sentence(tmp_path: Path) -> None:
    origin = f"http://127.0.0.1:{closed_port()}"
    searches = {f"label {number}": "words" for number in range(30)}
    source = OpenverseSource(kind="openverse", api=f"{origin}/v1/images/", searches=searches)
    fetch = FetchSettings(
        contact="me@example.org",
        origins={origin: OriginPolicy(concurrency=1, delay_s=0)},
        allow_private=(origin.removeprefix("http://"),),
    )
    with pytest.raises(UserError, match=r"30 labels.*refuses to connect"):
        acquire([source], fetch, tmp_path)
    assert (tmp_path / LOG).read_text().count("again (") == fetch.retries
    assert read_ledger(tmp_path) == []


def test_a_build_says_once_that_nobody_can_be_reached(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "t.csv").write_text("url,label\nftp://a,Acne\n,Acne\nhttp://127.0.0.1:1/x,Acne\n")
    raw = {"name": "x", "sources": [{"kind": "table", "path": str(tmp_path / "t.csv")}]}
    out = tmp_path / "out"
    said = rf"\(1 bad-url, 1 private-address, 1 no-url\); {out}/ledger.jsonl says it URL by URL"
    with pytest.raises(UserError, match=said):
        build(BuildSettings.parse(raw), out)
    assert [record.message for record in caplog.records] == [FetchSettings().warning]


def test_a_start_page_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with LocalSite() as site:
        fetch = FetchSettings(origins={site.origin: FAST}, allow_private=(site.netloc,))
        with pytest.raises(UserError, match=rf"{site.origin}/atlas.*answered 404.*`start`"):
            acquire([atlas(site, "/atlas")], fetch, tmp_path)


def test_sources_without_matching_links_say_which_selector_failed() -> None:
    source = AtlasSource(kind="atlas", start="http://a.org/")
    assert "category = 'a.category'" in source.barren(0, [])
    sentence = source.barren(3, ["http://a.org/c: Answered 404."])
    assert "none of 3 categories" in sentence
    assert "figure = 'figure.picture'" in sentence
    assert "http://a.org/c: Answered 404." in sentence


def test_a_crawl_that_breaks_shows_the_end_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("in the way of the folder")
    with LocalSite({"/": html(category("/c/", "Acne")), "/c/": html(figures("/1.jpg"))}) as site:
        site.pages["/1.jpg"] = Answer(jpeg("1"))
        fetch = FetchSettings(origins={site.origin: FAST}, allow_private=(site.netloc,))
        with pytest.raises(JobError, match=r"fetch\.log(.|\n)*(FileExists|NotADirectory)Error"):
            acquire([atlas(site)], fetch, tmp_path)
    assert read_ledger(tmp_path) == []


def test_two_runs_do_not_write_into_one_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skindx.data.ledger._WAIT_S", 0.2)
    with (tmp_path / LEDGER).open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another crawl is running in"):
            acquire([AtlasSource(kind="atlas", start="http://a.org/")], FetchSettings(), tmp_path)
