"""What a robots.txt asks for between two requests is kept, also by origins of one's own."""

from itertools import pairwise
from pathlib import Path

import pytest
from local_site import Answer, LocalSite, category, figures, html, jpeg

from skindx.data.build.acquire import acquire
from skindx.data.crawl.fetch_settings import FetchSettings, OriginPolicy
from skindx.data.layout import LOG
from skindx.data.sources.atlas import AtlasSource


def test_crawl_delay_is_kept_capped_and_reported(tmp_path: Path) -> None:
    slow = {"/robots.txt": Answer(b"User-agent: *\nCrawl-delay: 0.8\n")}
    greedy = {"/robots.txt": Answer(b"User-agent: skindx\nCrawl-delay: 6000\n")}
    absurd = {"/robots.txt": Answer(b"User-agent: *\nCrawl-delay: soon\n")}
    with (
        LocalSite(default=Answer(jpeg("own"))) as own,
        LocalSite(slow, Answer(jpeg("slow"), after_s=0.1)) as slow_site,
        LocalSite(greedy, Answer(jpeg("greedy"))) as greedy_site,
        LocalSite(absurd, Answer(jpeg("absurd"))) as absurd_site,
    ):
        sites = (own, slow_site, greedy_site, absurd_site)
        addresses = [f"{site.origin}/{n}.jpg" for site in sites for n in range(3)]
        own.pages = {
            "/robots.txt": Answer(status=404),
            "/": html(category("/c/", "Acne")),
            "/c/": html(figures(*addresses)),
        }
        fast = OriginPolicy(concurrency=8, delay_s=0)
        fetch = FetchSettings(
            origins={site.origin: fast for site in sites},
            allow_private=tuple(site.netloc for site in sites),
            crawl_delay_s=1,
        )
        rows = acquire([AtlasSource(kind="atlas", start=f"{own.origin}/")], fetch, tmp_path)
    assert {row.status for row in rows} == {"stored"}
    assert len(rows) == 12
    log = (tmp_path / LOG).read_text()
    for site, delay in ((slow_site, 0.8), (greedy_site, 1)):
        assert f"{site.origin}: 1 at once, delay {delay:.2f} s, AutoThrottle off" in log
        assert site.at_once == 1
        # Between servers' clocks a request may be late; half of the delay stays for certain.
        assert all(after - before > delay / 2 for before, after in pairwise(site.times))
    for site in (own, absurd_site):
        assert f"{site.origin}: 8 at once, delay 0.00 s" in log
    assert "asks for 0.8 s between requests\n" in log
    assert "asks for 6000 s between requests, of which crawl_delay_s keeps 1 s\n" in log


@pytest.mark.parametrize(("asked", "kept"), [("Crawl-delay: 5", 5), ("Crawl-delay: 31", 30)])
def test_the_default_cap_is_thirty_seconds(asked: str, kept: float) -> None:
    from types import SimpleNamespace

    from protego import Protego

    from skindx.data.crawl.middleware import RobotsGuard

    guard = RobotsGuard(SimpleNamespace(settings={"SKINDX_FETCH": FetchSettings()}))
    assert guard._delay_s(Protego.parse(f"User-agent: *\n{asked}\n"), "x") == kept
