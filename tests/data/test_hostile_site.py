"""One crawl and one screening of everything that can go wrong, against real servers on loopback.

FAULTS, GOOD and PICTURES are the table: what is served, what the ledger must say, and of what is
stored, what the screening must say or what the decoded picture must look like.
"""

import gzip
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import cv2
import numpy as np
import pytest
from decoder_watch import Watch
from hostile_pictures import (
    animated,
    in_mode,
    memory_bomb,
    pixel_bomb,
    scan_bomb,
    see_through_palette,
    sixteen_bits,
    text_bomb,
    torn_in_the_middle,
    with_exif,
)
from local_site import Answer, LocalSite, Page, category, closed_port, figures, html, jpeg
from numpy.typing import NDArray
from paint_pictures import encode, paint

from skindx.data.acquire import LOG, acquire
from skindx.data.fetch.settings import FetchSettings, OriginPolicy
from skindx.data.ledger import LEDGER, LedgerRow
from skindx.data.screening.decode import decode
from skindx.data.screening.magic import picture_suffix
from skindx.data.screening.screen import Screened, ScreenSettings, screen_files
from skindx.data.sources import AtlasSource

MAX_BYTES = 400_000
FAST = OriginPolicy(concurrency=8, delay_s=0)


def atlas(site: LocalSite, path: str = "/") -> AtlasSource:
    return AtlasSource(kind="atlas", start=site.origin + path)


def to(where: str, status: int = 302) -> Answer:
    return Answer(b"elsewhere", status, {"Location": where})


def drip(request: BaseHTTPRequestHandler) -> None:
    """Send a byte now and then, so that no single read ever times out."""
    request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n\xff\xd8\xff\xe0")
    for _ in range(100):
        request.wfile.write(b".")
        request.wfile.flush()
        time.sleep(0.1)


def endless(request: BaseHTTPRequestHandler) -> None:
    """Send chunks for ever and never say how many."""
    request.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        request.wfile.write(b"2000\r\n" + jpeg("", 0x2000 - 4) + b"\r\n")
        request.wfile.flush()


def broken_off(request: BaseHTTPRequestHandler) -> None:
    """Promise more than comes."""
    request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + jpeg("half", 1000))
    request.wfile.flush()
    request.connection.shutdown(socket.SHUT_RDWR)


def reset(request: BaseHTTPRequestHandler) -> None:
    """Break the connection with a reset in the middle of the body."""
    request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + jpeg("reset", 1000))
    request.wfile.flush()
    linger = struct.pack("ii", 1, 0)
    request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    for each in (request.rfile, request.wfile, request.connection):  # the last one closes it
        each.close()


def more_than_said(request: BaseHTTPRequestHandler) -> None:
    """Send a whole picture, but say that it is shorter."""
    data = encode(paint(20))
    head = f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len(data) // 2}\r\n\r\n"
    request.wfile.write(head.encode() + data)
    request.close_connection = True


@dataclass
class Hostile:
    """One crawl of everything that can go wrong, and the servers that saw it."""

    rows: dict[str, list[LedgerRow]]
    """By path of the URL, or by the URL itself on other hosts."""
    sites: dict[str, LocalSite]
    dataset: Path
    pages: list[LedgerRow]
    progress: list[tuple[int, int]]
    screened: dict[str, Screened]
    """By path of a stored picture in the dataset folder."""
    watch: Watch
    """Of the crawl's and the decoders' processes."""


FAULTS: dict[str, tuple[str, Page]] = {
    "/gone404.jpg": ("dead-link", Answer(b"", 404)),
    "/gone410.jpg": ("dead-link", Answer(b"", 410)),
    "/forbidden.jpg": ("dead-link", Answer(b"", 403)),
    "/broken500.jpg": ("server-error", Answer(b"", 500)),
    "/brokenoff.jpg": ("server-error", broken_off),
    "/drip.jpg": ("timeout", drip),
    "/silent.jpg": ("timeout", Answer(jpeg("late"), after_s=60)),
    "/endless.jpg": ("too-large", endless),
    "/toolong.jpg": ("too-large", Answer(jpeg("long", MAX_BYTES + 1))),
    "/bomb.jpg": (
        "compressed",
        Answer(gzip.compress(bytes(50_000_000)), headers={"Content-Encoding": "gzip"}),
    ),
    "/reset.jpg": ("server-error", reset),
    "/to-ftp.jpg": ("bad-url", to("ftp://127.0.0.1/x.jpg")),
    "/gzip.jpg": ("compressed", Answer(jpeg("gz"), headers={"Content-Encoding": "gzip"})),
    "/page.jpg": (
        "not-a-picture",
        Answer(b"<!doctype html>", headers={"Content-Type": "image/jpeg"}),
    ),
    "/vector.svg": ("not-a-picture", Answer(b"<svg xmlns='http://www.w3.org/2000/svg'/>")),
    "/film.gif": ("not-a-picture", Answer(b"GIF89a" + bytes(50))),
    "/zero.jpg": ("empty", Answer(b"")),
    "/nothing.jpg": ("empty", Answer(b"", 204)),
    "/film.mp4": ("not-a-picture", Answer(b"\0\0\0\x18ftypmp42" + bytes(50))),
    "/noai.jpg": ("opt-out", Answer(jpeg("noai"), headers={"X-Robots-Tag": "noindex, noai"})),
    "/tdm.jpg": ("opt-out", Answer(jpeg("tdm"), headers={"tdm-reservation": "1"})),
    "/loop-a.jpg": ("redirect-loop", to("/loop-b.jpg")),
    "/loop-b.jpg": ("redirect-loop", to("/loop-a.jpg")),
    "/to-gone.jpg": ("dead-link", to("/gone404.jpg")),
    "/to-file.jpg": ("bad-url", to("file:///etc/passwd")),
    "/to-user.jpg": ("bad-url", to("http://user:secret@127.0.0.1/")),
}
GOOD: dict[str, Page] = {
    "/ok.jpg": Answer(jpeg("ok"), headers={"Content-Type": "text/html", "Set-Cookie": "a=b"}),
    "/ok.png": Answer(b"\x89PNG\r\n\x1a\n" + bytes(40)),
    "/shared.jpg": Answer(jpeg("shared")),
    "/%C3%A4%20..%2F..%2Fetc.jpg": Answer(jpeg("traversal")),
    "/noindex.jpg": Answer(jpeg("noindex"), headers={"X-Robots-Tag": "noindex"}),
    "/to-ok.jpg": to("/target.jpg", 301),
    "/busy.jpg": [Answer(b"", 503), Answer(jpeg("busy"))],
}
Looks = Callable[[NDArray[np.uint8]], bool]


def like(seed: int, most: float = 8) -> Looks:
    """Tell whether a decoded picture is the painted one, but for what JPEG loses."""
    return lambda pixels: float(np.abs(pixels.astype(int) - paint(seed)).mean()) < most


def half_white(pixels: NDArray[np.uint8]) -> bool:
    return bool((pixels[:, 45:] == 255).all() and (pixels[:, :35] < 230).all())


def striped(pixels: NDArray[np.uint8]) -> bool:
    """Tell whether 16 bits became 8 by division: clipped, nearly all would be white."""
    return bool((pixels[1, :, 0] == np.arange(256)).all() and (pixels[0] == pixels[1, ::-1]).all())


def grey_of(seed: int) -> Looks:
    expected = cv2.cvtColor(paint(seed), cv2.COLOR_RGB2GRAY).astype(int)
    return lambda pixels: float(np.abs(pixels[:, :, 1] - expected).mean()) < 8


# What is stored -> the reason of the screening, or what the decoded picture looks like.
PICTURES: dict[str, tuple[Page, str | Looks]] = {
    "/truncated.jpg": (Answer(encode(paint(10))[:-900]), "damaged"),
    "/mid-stream.jpg": (Answer(torn_in_the_middle()), "damaged"),
    "/shorter-than-sent.jpg": (more_than_said, "damaged"),
    "/text-bomb.png": (Answer(text_bomb()), "damaged"),
    "/pixel-bomb.png": (Answer(pixel_bomb()), "too-many-pixels"),
    "/memory-bomb.png": (Answer(memory_bomb()), "decode-memory"),
    "/scan-bomb.jpg": (Answer(scan_bomb(3500)), "decode-timeout"),
    "/tiny.jpg": (Answer(encode(paint(11, 40, 40))), "too-small"),
    "/banner.jpg": (Answer(encode(paint(12, 728, 90))), "bad-aspect"),
    "/black.jpg": (Answer(encode(paint(13) // 40)), "too-dark"),
    "/white.jpg": (Answer(encode(255 - paint(14) // 80)), "too-bright"),
    "/placeholder.png": (Answer(encode(np.full((90, 90, 3), 128, np.uint8), "PNG")), "blank"),
    "/blurred.jpg": (Answer(encode(cv2.GaussianBlur(paint(15), (0, 0), 20))), "blurred"),
    "/cmyk.jpg": (Answer(in_mode(16, "CMYK", "JPEG")), like(16)),
    "/grey.jpg": (Answer(in_mode(17, "L", "JPEG")), grey_of(17)),
    "/sixteen.png": (Answer(sixteen_bits()), striped),
    "/palette.png": (Answer(see_through_palette()), half_white),
    "/rotated.jpg": (
        Answer(with_exif(18, {274: 6})),
        lambda pixels: like(18)(np.rot90(pixels)),
    ),
    "/gps.jpg": (Answer(with_exif(19, {271: "Camera"}, gps=True)), like(19)),
    "/animated.png": (Answer(animated("PNG", 21)), like(21)),
    "/animated.webp": (Answer(animated("WEBP", 24)), like(24)),
    "/polyglot.jpg": (Answer(encode(paint(27)) + b"<script>alert(1)</script>"), like(27)),
    "/%E7%9A%AE%E8%86%9A%20%F0%9F%92%A9.jpg": (Answer(encode(paint(28))), like(28)),
    "/really.png": (Answer(encode(paint(29)), headers={"Content-Type": "image/png"}), like(29)),
}
BAD_LINKS = (
    "data:image/png;base64,AAAA",
    "ftp://127.0.0.1/x.jpg",
    "file:///etc/passwd",
    "http://[x/",
)
ROBOTS = b"User-agent: *\nDisallow: /no/\n"


def spellings(port: int) -> list[str]:
    """Loopback by other names; none of them may be reached, the exact allowed pair or not."""
    hosts = ("localhost", "2130706433", "0177.0.0.1", "0x7f.1", "127.1", "0", "[::1]")
    mapped = ("[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "127.0.0.2")
    return [f"http://{host}:{port}/secret.jpg" for host in (*hosts, *mapped)]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    dataset = tmp_path_factory.mktemp("hostile")
    slow_robots = Answer(ROBOTS, after_s=1.0)
    with ExitStack() as stack:
        sites = {
            "main": LocalSite(
                {path: page for path, (_, page) in FAULTS.items()}
                | {path: page for path, (page, _) in PICTURES.items()}
                | GOOD
            ),
            "secret": LocalSite(default=Answer(jpeg("secret"))),
            "rules": LocalSite({"/robots.txt": slow_robots}, Answer(jpeg("rules"))),
            "ruleless": LocalSite({"/robots.txt": Answer(b"", 500)}, Answer(jpeg("x"))),
            "tired": LocalSite(
                {"/a.jpg": [Answer(b"", 429, {"Retry-After": "1"}), Answer(jpeg("a"))]},
                Answer(jpeg("tired")),
            ),
            "closed": LocalSite({}, Answer(b"", 503, {"Retry-After": "86400"})),
            "proxy": LocalSite(default=Answer(jpeg("proxy"))),
        }
        for site in sites.values():
            stack.enter_context(site)
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            environment.setenv(name, sites["proxy"].origin)
        yield crawl_hostile(sites, dataset)


def crawl_hostile(sites: dict[str, LocalSite], dataset: Path) -> Hostile:
    main, secret, refusing = sites["main"], sites["secret"], closed_port()
    private = [*spellings(secret.port), *spellings(main.port), "http://169.254.169.254/latest.jpg"]
    for number, where in enumerate([secret.origin + "/secret.jpg", *private]):
        main.pages[f"/hop{number}.jpg"] = to(where)
    hops = [path for path in main.pages if path.startswith("/hop")]
    main.pages |= {
        "/target.jpg": Answer(jpeg("target")),
        "/": html(
            category("/good/", "Acne"),
            category("/faults/", "Acne"),
            category("/pictures/", "Acne"),
            category("/shared/", "Eczema"),
            category("/forbidding/", "Wart"),
            category("/missing/", "Lost"),
            category("/rules/", "Rules"),
            category("ftp://127.0.0.1/", "Ftp"),
        ),
        "/good/": html(figures(*GOOD, "/ok.jpg", "/ok.jpg#again"), '<a class="next" href="?p=2">'),
        "/good/?p=2": html(figures("/late.jpg"), '<a class="next" href="/good/">first</a>'),
        "/late.jpg": Answer(jpeg("late")),
        "/faults/": html(
            figures(*FAULTS, *BAD_LINKS, *private, *hops),
            figures(f"{secret.origin}/secret.jpg", "http://surely.invalid/x.jpg"),
            figures(f"http://127.0.0.1:{refusing}/x.jpg"),
        ),
        "/pictures/": html(figures(*PICTURES)),
        "/shared/": html(figures("/shared.jpg")),
        "/forbidding/": html(figures("/never.jpg"), head='<meta name="ROBOTS" content="noai">'),
        "/rules/": html(
            figures(*(f"{sites['rules'].origin}/no/{number}.jpg" for number in range(13))),
            figures(*(f"{sites['rules'].origin}/yes/{number}.jpg" for number in range(7))),
            figures(*(f"{sites['ruleless'].origin}/{number}.jpg" for number in range(3))),
            figures(*(f"{sites['tired'].origin}/{name}.jpg" for name in "abc")),
            figures(*(f"{sites['closed'].origin}/{number}.jpg" for number in range(3))),
        ),
        "/endless/": html(category("/endless/0", "Endless")),
    }
    for number in range(10):
        main.pages[f"/endless/{number}"] = html(
            figures("/ok.png"), f'<a class="next" href="/endless/{number + 1}">'
        )
    served = [sites[name].origin for name in ("main", "rules", "ruleless", "closed")]
    slow = OriginPolicy(concurrency=1, delay_s=0)
    fetch = FetchSettings(
        origins=dict.fromkeys(served, FAST) | {sites["tired"].origin: slow},
        allow_private=(
            *(origin.removeprefix("http://") for origin in served),
            sites["tired"].netloc,
            f"127.0.0.1:{refusing}",
        ),
        timeout_s=2,
        retries=1,
        retry_after_s=10,
        max_bytes=MAX_BYTES,
        max_pages=9,
    )
    progress: list[tuple[int, int]] = []
    with Watch("skindx.data.fetch", "skindx.data.screening.decoders") as watch:
        rows = acquire(
            [atlas(main), atlas(main, "/endless/")],
            fetch,
            dataset,
            on_progress=lambda done, known: progress.append((done, known)),
        )
        stored = sorted({row.path for row in rows if row.status == "stored"})
        verdicts = screen_files(
            [dataset / path for path in stored],
            ScreenSettings(timeout_s=4),
            ("perceptual", "difference"),
            workers=2,
        )
    by_path: dict[str, list[LedgerRow]] = {}
    for row in rows:
        if row.page_url != row.url:
            by_path.setdefault(row.url.removeprefix(main.origin), []).append(row)
    pages = [row for row in rows if row.page_url == row.url]
    screened = dict(zip(stored, verdicts, strict=True))
    return Hostile(by_path, sites, dataset, pages, progress, screened, watch)


def test_good_pictures_are_stored_as_they_came(hostile: Hostile) -> None:
    for path in (*GOOD, "/late.jpg"):
        for row in hostile.rows[path]:
            assert (row.status, row.detail) == ("stored", ""), row
            data = (hostile.dataset / row.path).read_bytes()
            assert row.size_bytes == len(data)
            assert Path(row.path).suffix == picture_suffix(data)
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


@pytest.mark.parametrize("path", PICTURES)
def test_each_stored_picture_is_sound_or_has_its_reason(hostile: Hostile, path: str) -> None:
    (row,) = hostile.rows[path]
    assert (row.status, row.detail) == ("stored", ""), row
    verdict = hostile.screened[row.path]
    expected = PICTURES[path][1]
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
    refused = [path for path, (_, expected) in PICTURES.items() if isinstance(expected, str)]
    assert len(FAULTS) + len(refused) >= 35
    assert len({status for status, _ in FAULTS.values()}) >= 9


def test_crawler_and_decoders_stay_small_and_know_no_torch(hostile: Hostile) -> None:
    peaks = hostile.watch.peak_mb
    assert {name for _, name in peaks} == {"skindx.data.fetch", "skindx.data.screening.decoders"}
    # The scan bomb cost one decoder its life, so there were more than two.
    assert sum(name == "skindx.data.screening.decoders" for _, name in peaks) >= 3
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


def test_pages_that_could_not_be_read_are_told(hostile: Hostile) -> None:
    told = {(row.label, row.status) for row in hostile.pages}
    assert told == {("Lost", "dead-link"), ("Ftp", "bad-url"), ("Endless", "too-many-pages")}


def test_a_page_that_forbids_learning_keeps_its_pictures(hostile: Hostile) -> None:
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
