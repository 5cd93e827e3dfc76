"""Everything that can go wrong with a site, served for real on loopback, and one crawl of it.

FAULTS, GOOD and PICTURES are the table: what is served, what the ledger must say, and of what is
stored, what the screening must say or what the decoded image must look like.
"""

import gzip
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import cv2
import numpy as np
from decoder_watch import Watch
from hostile_images import (
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
from paint_images import encode, paint
from warm_modules import cold_crawls

from skindx.data.build.acquire import acquire
from skindx.data.crawl.fetch_settings import FetchSettings, OriginPolicy
from skindx.data.ledger import LedgerRow
from skindx.data.screening.screen import Screened, ScreenSettings, screen_files
from skindx.data.sources.atlas import AtlasSource

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


def endless_head(request: BaseHTTPRequestHandler) -> None:
    """Send headers for ever: no body, so no cap on it, and never an answer."""
    request.wfile.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        request.wfile.write(b"X-More: %b\r\n" % (b"x" * 8000) * 16)


def patience(request: BaseHTTPRequestHandler) -> None:
    """Say for ever that the answer is about to come."""
    while True:
        request.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


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
    for stream in (request.rfile, request.wfile, request.connection):  # the last one closes it
        stream.close()


def more_than_said(request: BaseHTTPRequestHandler) -> None:
    """Send a whole image, but say that it is shorter."""
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
    found: list[LedgerRow]
    """All rows, as a build gets them."""
    pages: list[LedgerRow]
    progress: list[tuple[int, int]]
    screened: dict[str, Screened]
    """By path of a stored image in the dataset folder."""
    watch: Watch
    """Of the crawl's and the decoders' processes."""


FAULTS: dict[str, tuple[str, Page]] = {
    "/gone404.jpg": ("dead-link", Answer(b"", 404)),
    "/gone410.jpg": ("dead-link", Answer(b"", 410)),
    "/forbidden.jpg": ("forbidden", Answer(b"", 403)),
    "/login.jpg": ("forbidden", Answer(b"", 401)),
    "/broken500.jpg": ("server-error", Answer(b"", 500)),
    "/brokenoff.jpg": ("server-error", broken_off),
    "/drip.jpg": ("timeout", drip),
    "/silent.jpg": ("timeout", Answer(jpeg("late"), after_s=60)),
    "/endless.jpg": ("too-large", endless),
    "/endless-head.jpg": ("too-large", endless_head),
    "/patience.jpg": ("too-large", patience),
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
    "/vector.svg": ("unsupported-format", Answer(b"<svg xmlns='http://www.w3.org/2000/svg'/>")),
    "/film.gif": ("unsupported-format", Answer(b"GIF89a" + bytes(50))),
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
    """Tell whether a decoded image is the painted one, but for what JPEG loses."""
    return lambda pixels: float(np.abs(pixels.astype(int) - paint(seed)).mean()) < most


def half_white(pixels: NDArray[np.uint8]) -> bool:
    return bool((pixels[:, 45:] == 255).all() and (pixels[:, :35] < 230).all())


def striped(pixels: NDArray[np.uint8]) -> bool:
    """Tell whether 16 bits became 8 by division: clipped, nearly all would be white."""
    return bool((pixels[1, :, 0] == np.arange(256)).all() and (pixels[0] == pixels[1, ::-1]).all())


def grey_of(seed: int) -> Looks:
    expected = cv2.cvtColor(paint(seed), cv2.COLOR_RGB2GRAY).astype(int)
    return lambda pixels: float(np.abs(pixels[:, :, 1] - expected).mean()) < 8


# What is stored -> the reason of the screening, or what the decoded image looks like.
IMAGES: dict[str, tuple[Page, str | Looks]] = {
    "/truncated.jpg": (Answer(encode(paint(10))[:-900]), "damaged"),
    "/mid-stream.jpg": (Answer(torn_in_the_middle()), "damaged"),
    "/shorter-than-sent.jpg": (more_than_said, "damaged"),
    "/text-bomb.png": (Answer(text_bomb()), "too-dark"),  # its comment is never unpacked
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
SOUND = {f"/sound{n}.jpg": Answer(encode(paint(40 + n))) for n in range(4)}
"""A second class, so that a dataset can come of it all."""
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


def crawl_hostile(sites: dict[str, LocalSite], dataset: Path) -> Hostile:
    main, secret, refusing = sites["main"], sites["secret"], closed_port()
    private = [*spellings(secret.port), *spellings(main.port), "http://169.254.169.254/latest.jpg"]
    for number, where in enumerate([secret.origin + "/secret.jpg", *private]):
        main.pages[f"/hop{number}.jpg"] = to(where)
    hops = [path for path in main.pages if path.startswith("/hop")]
    main.pages |= {
        **SOUND,
        "/target.jpg": Answer(jpeg("target")),
        "/": html(
            category("/good/", "Acne"),
            category("/faults/", "Acne"),
            category("/pictures/", "Acne"),
            category("/shared/", "Eczema"),
            category("/sound/", "Psoriasis"),
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
        "/pictures/": html(figures(*IMAGES)),
        "/shared/": html(figures("/shared.jpg")),
        "/sound/": html(figures(*SOUND)),
        "/forbidding/": html(figures("/never.jpg"), head='<meta name="ROBOTS" content="noai">'),
        "/rules/": html(
            figures(*(f"{sites['rules'].origin}/no/{number}.jpg" for number in range(13))),
            figures(*(f"{sites['rules'].origin}/yes/{number}.jpg" for number in range(7))),
            figures(*(f"{sites['ruleless'].origin}/{number}.jpg" for number in range(3))),
            figures(*(f"{sites['tired'].origin}/{name}.jpg" for name in "abc")),
            figures(*(f"{sites['closed'].origin}/{number}.jpg" for number in range(3))),
            figures(f"{sites['signal'].origin}/0.jpg"),
        ),
        "/endless/": html(category("/endless/0", "Endless")),
    }
    for number in range(10):
        main.pages[f"/endless/{number}"] = html(
            figures("/ok.png"), f'<a class="next" href="/endless/{number + 1}">'
        )
    served = [sites[name].origin for name in ("main", "rules", "ruleless", "closed", "signal")]
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
        max_pages=10,
    )
    progress: list[tuple[int, int]] = []
    with Watch("skindx.data.crawl.crawl_process", "skindx.workers.sandbox") as watch:
        with cold_crawls():
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
    return Hostile(by_path, sites, dataset, rows, pages, progress, screened, watch)
