"""The guards and settings of the crawl one by one; test_acquire.py drives them together."""

import ipaddress
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy.http import HtmlResponse
from twisted.internet.address import IPv4Address, IPv6Address

from skindx.core.errors import UserError
from skindx.data.crawl.fetch_outcome import opt_out
from skindx.data.crawl.fetch_settings import FetchSettings, OriginPolicy, origin_of, scrapy_settings
from skindx.data.crawl.middleware import _NO_TRAINING, carried, retry_after_s
from skindx.data.crawl.transport import AddressGuard, PrivateAddressError, is_public
from skindx.data.sources.atlas import AtlasSource, categories, figures_of, next_pages, web_url

DEMO = "http://127.0.0.1:8000"


def test_only_the_named_origin_leaves_the_polite_default() -> None:
    fetch = FetchSettings(origins={DEMO: OriginPolicy()}, allow_private=("127.0.0.1:8000",))
    assert fetch.policy(DEMO) == OriginPolicy(concurrency=8, delay_s=0)
    for other in (
        "https://127.0.0.1:8000",
        "http://127.0.0.1:8001",
        "http://localhost:8000",
        "http://dermnetnz.org:80",
    ):
        assert fetch.policy(other) == OriginPolicy(concurrency=1, delay_s=1)
    scrapy = scrapy_settings(fetch)
    assert scrapy["DOWNLOAD_SLOTS"] == {DEMO: {"concurrency": 8, "delay": 0}}
    assert scrapy["CONCURRENT_REQUESTS_PER_DOMAIN"] == 1
    assert scrapy["DOWNLOAD_DELAY"] == scrapy["AUTOTHROTTLE_START_DELAY"] == 1
    assert scrapy["AUTOTHROTTLE_ENABLED"]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("concurrency", 8, "less than or equal to 2"),
        ("delay_s", 0, "greater than or equal to 1"),
        ("origins", {"http://127.0.0.1": {}}, "scheme://host:port"),
        ("origins", {"http://127.0.0.1:8000/": {}}, "scheme://host:port"),
        ("origins", {"127.0.0.1:8000": {}}, "scheme://host:port"),
        ("origins", {"http://*:80": {"delay": 0}}, "there is no setting"),
        ("allow_private", ["127.0.0.1"], "host:port"),
        ("allow_private", ["127.0.0.0/8"], "host:port"),
        ("allow_private", ["http://127.0.0.1:80"], "host:port"),
        ("contact", "me\r\nCookie: x", "only ASCII characters"),
        ("max_pixels", 1000, "screen.max_pixels"),
    ],
)
def test_the_polite_default_cannot_be_widened(key: str, value: object, said: str) -> None:
    with pytest.raises(UserError, match=said):
        FetchSettings.parse({key: value})


def test_recipes_of_older_versions_are_read() -> None:
    assert FetchSettings.parse({"max_pixels": 50_000_000}) == FetchSettings()


def test_the_user_agent_says_who_asks() -> None:
    assert FetchSettings(contact="me@example.org").user_agent.endswith("(+me@example.org)")
    assert not FetchSettings(contact="me@example.org").warning
    assert FetchSettings().user_agent.startswith("skindx/")
    assert "fetch.contact" in FetchSettings().warning


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://A.org/x?y", "http://a.org:80"),
        ("https://a.org", "https://a.org:443"),
        ("http://[::1]:8000/x", "http://[::1]:8000"),
    ],
)
def test_origins(url: str, origin: str) -> None:
    assert origin_of(url) == origin


@pytest.mark.parametrize(
    "url", ["ftp://a/x", "data:,x", "/x", "http://", "http://u@a/", "http://a:x"]
)
def test_urls_without_an_origin(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|port|Port"):
        origin_of(url)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("127.255.0.3", False),
        ("0.0.0.0", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::", False),
        ("::1", False),
        ("::1%lo", False),
        ("::7f00:1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:8.8.8.8", True),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::808:808", True),
        ("64:ff9b:1::808:808", False),
        ("2002:7f00:1::", False),
        ("2001:0:7f00:1::", False),
        ("fe80::1%eth0", False),
        ("fec0::1", False),
        ("fd00::1", False),
        ("ff02::1", False),
        ("2001:db8::1", False),
        ("localhost", False),
        ("2130706433", False),
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(address) is public


@given(st.ip_addresses(v=4))
def test_wrapping_an_address_in_ipv6_changes_nothing(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    for wrapped in (0xFFFF << 32 | number, 0x2002 << 112 | number << 80, 0x64FF9B << 96 | number):
        assert is_public(str(ipaddress.IPv6Address(wrapped))) == is_public(str(address))


class Network:
    """Stands in for the reactor: names resolve as scripted, connections are only recorded."""

    def __init__(self, names: dict[str, list[str]]) -> None:
        self.names = names
        self.connected: list[tuple[str, int]] = []
        self.nameResolver = self

    def resolveHostName(self, receiver: Any, hostName: str, portNumber: int) -> None:
        for address in self.names[hostName]:
            kind = IPv6Address if ":" in address else IPv4Address
            receiver.addressResolved(kind("TCP", address, portNumber))

    def installNameResolver(self, resolver: Any) -> None:
        self.nameResolver = resolver

    def connectTCP(self, host: str, port: int, factory: object) -> None:
        self.connected.append((host, port))

    def ask(self, name: str, port: int) -> list[str]:
        """Connect as an endpoint does: resolve, then connect to what came."""
        found: list[Any] = []
        receiver = SimpleNamespace(addressResolved=found.append)
        self.nameResolver.resolveHostName(receiver, name, portNumber=port)
        refused = []
        for address in found:
            try:
                self.connectTCP(address.host, address.port, None)
            except PrivateAddressError as error:
                refused.append(str(error))
        return refused


def test_the_address_that_is_connected_to_counts() -> None:
    names = {"own": ["::1", "127.0.0.1"], "evil.org": ["127.0.0.1"], "rebound.org": ["8.8.8.8"]}
    network = Network(names)
    AddressGuard(network, FetchSettings(allow_private=("own:80",))).install_on_reactor()
    assert network.ask("own", 80) == []
    assert network.connected == [("::1", 80), ("127.0.0.1", 80)]
    network.connected.clear()
    # Neither another port of an allowed host, nor another name for its exact address and port.
    assert network.ask("own", 81)
    assert network.ask("evil.org", 80)
    assert network.connected == []
    assert network.ask("rebound.org", 80) == []
    names["rebound.org"] = ["169.254.169.254", "::ffff:10.0.0.1"]
    assert len(network.ask("rebound.org", 80)) == 2
    assert network.connected == [("8.8.8.8", 80)]
    # A connection that came round the resolver is refused as well.
    with pytest.raises(PrivateAddressError, match=r"10\.0\.0\.1:22"):
        network.connectTCP("10.0.0.1", 22, None)


def test_retry_after_is_seconds_or_a_date() -> None:
    assert retry_after_s("7") == 7
    soon = retry_after_s(format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True))
    assert soon is not None
    assert 0 < soon <= 90
    assert retry_after_s("Sun, 06 Nov 1994 08:49:37 GMT") == 0
    for unusable in ("", "soon", "-1", "1.5", "²"):
        assert retry_after_s(unusable) is None


@pytest.mark.parametrize(
    ("robots", "tdm", "said"),
    [
        ("noai", "", "noai"),
        ("noindex, NoImageAI", "", "noimageai"),
        ("somebot: noai", "", "noai"),
        ("", " 1 ", "tdm-reservation: 1"),
        ("noindex, nofollow, none", "0", ""),
        ("noairplanes, x-noai", "", ""),
    ],
)
def test_opt_out_words(robots: str, tdm: str, said: str) -> None:
    assert opt_out(robots, tdm) == said


@pytest.mark.parametrize(
    ("line", "forbids"),
    [
        ("Content-Signal: search=yes,ai-train=no", True),
        ("content-signal: /pictures/ ai-train = NO, search=yes", True),
        ("Content-Usage: train-ai=n", True),
        ("Content-Signal: ai-train=yes, ai-input=no", False),
        ("Content-Usage: train-ai=y", False),
        ("# Content-Signal: ai-train=no", False),
        ("Disallow: /content-signal:ai-train=no", False),
    ],
)
def test_words_of_robots_txt_against_training(line: str, forbids: bool) -> None:
    text = f"User-agent: *\r\n{line}\r\nAllow: /\r\n"
    assert bool(_NO_TRAINING.search(text)) is forbids


def page(body: str) -> HtmlResponse:
    return HtmlResponse("http://a.org/atlas/page", body=body.encode(), encoding="utf-8")


def test_an_index_page_gives_labels_from_attribute_or_text() -> None:
    source = AtlasSource(kind="atlas", start="http://a.org/")
    links = '<a class="category" href="/1" data-label="Acne">42 pictures</a>'
    links += '<a class="category" href="2"><b>Eczema</b></a><a class="category">no address</a>'
    links += '<a class="category" href="/3"> </a><a class="next" href="?p=2">more</a>'
    assert list(categories(source, page(links))) == [("/1", "Acne"), ("2", "Eczema")]
    assert list(next_pages(source, page(links))) == ["?p=2"]


def test_licence_and_creator_come_from_the_image_s_own_figure() -> None:
    source = AtlasSource(
        kind="atlas", start="http://a.org/", default_licence="CC BY 4.0", attribution="© Atlas"
    )
    body = '<figure class="picture"><a class="full" href="1.jpg#zoom"></a>'
    body += '<i class="licence">CC0</i><i class="creator">Ann</i></figure>'
    body += '<figure class="picture"><a class="full" href="//b.org/ü 2.jpg"></a></figure>'
    body += '<a class="full" href="/advert.jpg"></a><i class="creator">Bob</i>'
    (first,), (second,) = figures_of(source, page(body), "Acne")
    assert (first.url, first.licence, first.creator) == ("http://a.org/atlas/1.jpg", "CC0", "Ann")
    assert (second.url, second.licence) == ("http://b.org/%C3%BC%202.jpg", "CC BY 4.0")
    assert second.creator == ""
    assert {first.attribution, second.attribution} == {"© Atlas"}
    assert first.page_url == "http://a.org/atlas/page"


@pytest.mark.parametrize(
    "address",
    [
        "data:image/png;base64,AA",
        "file:///etc/passwd",
        "ftp://a/x",
        "javascript:x()",
        "mailto:a@b",
        "http://[bad/",
        "http://a:99999/",
        "http://user:pass@a/",
        "http://a:0/",
    ],
)
def test_addresses_that_are_no_web_url(address: str) -> None:
    assert web_url(page(""), address) is None


def test_long_data_urls_stay_short_and_different() -> None:
    source = AtlasSource(kind="atlas", start="http://a.org/")
    body = "".join(
        f'<figure class="picture"><a class="full" href="data:,{"x" * 5000}{end}"></a></figure>'
        for end in "ab"
    )
    rows = [row for (row,) in figures_of(source, page(body), "Acne")]
    assert {row.status for row in rows} == {"bad-url"}
    assert len({row.url for row in rows}) == 2
    assert all(len(row.url) < 200 for row in rows)


def test_a_selector_that_is_no_css_is_named() -> None:
    source = AtlasSource(kind="atlas", start="http://a.org/", picture="a[")
    with pytest.raises(UserError, match=r"`picture` of the source .* is 'a\['"):
        source.check_selectors()


def test_neither_the_recipe_nor_the_crawl_imports_what_it_does_not_need() -> None:
    code = """
import json, sys
import skindx.data.sources.image_source, skindx.data.crawl.fetch_settings, skindx.data.build.acquire
light = sorted({"scrapy", "twisted", "torch", "parsel", "numpy"} & set(sys.modules))
import skindx.data.crawl.crawl_process, skindx.data.crawl.spider, skindx.data.crawl.transport
import skindx.data.crawl.middleware
print(json.dumps([light, sorted({"torch", "cv2", "sklearn"} & set(sys.modules))]))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) == [[], []]


@pytest.mark.parametrize(
    ("url", "inner"),
    [
        ("https://web.archive.org/web/2020id_/https://a.org/no/1.jpg", ["https://a.org/no/1.jpg"]),
        ("https://web.archive.org/web/2020/http:/a.org/1.jpg?x=1", ["http://a.org/1.jpg?x=1"]),
        ("https://web.archive.org/web/20200101im_/a.org/1.jpg", ["http://a.org/1.jpg"]),
        ("https://i0.wp.com/a.org/no/1.jpg?w=300", ["https://a.org/no/1.jpg"]),
        ("https://p.org/i?url=https%3A%2F%2Fa.org%2F1.jpg&w=9", ["https://a.org/1.jpg"]),
        ("https://p.org/i?url=//a.org/image/7", ["https://a.org/image/7"]),
        ("https://a.org/thumb.php?src=no/1.jpg&w=90", ["https://a.org/no/1.jpg"]),
        ("https://a.org/_next/image?url=%2Fno%2F1.png&q=75", ["https://a.org/no/1.png"]),
        (
            "https://p.org/?u=https://q.org/web/2020/http://a.org/1.jpg",
            ["https://q.org/web/2020/http://a.org/1.jpg", "http://a.org/1.jpg"],
        ),
        ("https://a.org/1.jpg?next=/login&ref=https://b.org/page&v=2", []),
        ("https://a.org/https/1.jpg", []),
        ("https://a.org/1.jpg?url=http://[", []),
        ("https://[a.org/1.jpg?url=/b.jpg", []),
    ],
)
def test_addresses_that_an_archive_a_proxy_or_a_resizer_carries(url: str, inner: list[str]) -> None:
    assert carried(url) == inner
