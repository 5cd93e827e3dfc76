"""Outcome of a request for an image: one status word and a sentence."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from scrapy import exceptions
from scrapy.exceptions import IgnoreRequest
from scrapy.http import HtmlResponse
from twisted.internet import error

from skindx.data.blocklist import TAKEN_DOWN
from skindx.data.crawl.fetch_settings import origin_of
from skindx.data.crawl.transport import (
    MAX_HEAD_BYTES,
    PrivateAddressError,
    head_too_long,
    why_undecodable,
)
from skindx.data.labels import UNMAPPED
from skindx.data.layout import store_bytes
from skindx.imaging.image_formats import HEAD, image_suffix, unusable

if TYPE_CHECKING:
    from scrapy.http import Response

PASSING = frozenset({"timeout", "server-error", "robots", "unreachable", "compressed"}) | UNMAPPED
"""Reasons that may be gone tomorrow: the next run tries these URLs again, all others are final."""

REPLACEABLE = frozenset(
    {
        *("bad-url", "dead-link", "empty", "not-a-picture", "private-address", "redirect-loop"),
        *("too-large", "unsupported-format"),
    }
)
"""Reasons why an image is asked for at its next address: this one will never give it.

An owner's no is no such reason, and neither is one that passes: the next run may get the image."""

REFUSALS = frozenset({"robots", "opt-out", TAKEN_DOWN})
"""An owner's no: it counts for every address of the same image."""

RETRIED_CODES = frozenset({408, 429, 500, 502, 503, 504, 522, 524})

RETRIED_ERRORS = (
    exceptions.CannotResolveHostError,
    exceptions.DownloadConnectionRefusedError,
    exceptions.DownloadTimeoutError,
    exceptions.DownloadFailedError,
    exceptions.ResponseDataLossError,
    error.ConnectError,
)


UNREACHABLE = (exceptions.CannotResolveHostError, exceptions.DownloadConnectionRefusedError)
"""No network here, or no host there: who asks cannot tell which."""


@dataclass(frozen=True, slots=True)
class FetchOutcome:
    """The fields of a ledger row that fetching decides."""

    status: str
    detail: str
    sha256: str = ""
    path: str = ""
    size_bytes: int = 0
    unread: bool = False
    """Rules that could not be read forbid everything for now; they are no owner's word."""


class RefusedError(IgnoreRequest):  # type: ignore[misc]
    """One of our guards refuses a request before anything is sent."""

    def __init__(self, outcome: FetchOutcome) -> None:
        super().__init__(outcome.detail)
        self.outcome = outcome


def of_error(problem: Exception, timeout_s: float, max_bytes: int, url: str = "") -> FetchOutcome:
    """Say why no answer came; `url` is what was asked for, after redirects."""
    if isinstance(problem, RefusedError):
        return problem.outcome
    if head_too_long(problem):
        return FetchOutcome("too-large", f"More than {MAX_HEAD_BYTES} bytes of headers came.")
    meanings: tuple[tuple[type[Exception], str, str], ...] = (
        (IgnoreRequest, "redirect-loop", "The redirects do not end."),
        (PrivateAddressError, "private-address", _private(url)),
        (exceptions.DownloadTimeoutError, "timeout", f"No whole answer within {timeout_s:g} s."),
        (exceptions.DownloadCancelledError, "too-large", f"Longer than {max_bytes} bytes."),
        (exceptions.CannotResolveHostError, "unreachable", "The host name does not resolve."),
        (exceptions.DownloadConnectionRefusedError, "unreachable", "The host refuses to connect."),
        (exceptions.ResponseDataLossError, "server-error", "The connection broke in the answer."),
    )
    for kind, status, detail in meanings:
        if isinstance(problem, kind):
            return FetchOutcome(status, detail)
    return FetchOutcome(
        "server-error", f"No usable answer came ({type(problem).__name__}: {problem})."
    )


def _private(url: str) -> str:
    sentence = "The host's address is not public"
    try:
        name = urlsplit(origin_of(url)).netloc
    except ValueError:
        return f"{sentence}."
    return f"{sentence}; if {name} is a server of your own, name it in fetch.allow_private."


def of_answer(response: "Response") -> FetchOutcome | None:
    """Say why an answer cannot be used, None if its body can."""
    code = response.status
    if code in RETRIED_CODES or code >= 500:
        return FetchOutcome("server-error", f"The server answered {code}.")
    if 300 <= code < 400:
        where = response.headers.get("Location", b"").decode("latin-1")[:200]
        return FetchOutcome(
            "bad-url", f"The server redirects ({code}) to {where!r}, no http(s) URL."
        )
    if not 200 <= code < 300:
        return FetchOutcome("dead-link", f"The server answered {code}.")
    undecodable = why_undecodable(response.flags)
    if undecodable:
        coding = response.headers.get("Content-Encoding", b"").decode("latin-1").strip().lower()
        return FetchOutcome(
            "compressed",
            f"The body came compressed ({coding[:40]}) though none was asked for, and cannot be "
            f"decoded: {undecodable}.",
        )
    if not response.body:
        return FetchOutcome("empty", "The answer has no body.")
    return None


def of_image(response: "Response", dataset: Path, md5: str = "") -> FetchOutcome:
    """Store the image that an answer holds, its bytes as they came, or say why not.

    With `md5`, in hexadecimal, only bytes of that checksum are stored.
    """
    refused = of_answer(response)
    if refused:
        return refused
    signal = opt_out(
        b", ".join(response.headers.getlist("X-Robots-Tag")).decode("latin-1"),
        response.headers.get("tdm-reservation", b"").decode("latin-1"),
    )
    if signal:
        return FetchOutcome("opt-out", f"The owner forbids this use ({signal}).")
    suffix = image_suffix(response.body[:16])
    if suffix is None:
        content_type = response.headers.get("Content-Type", b"nothing").decode("latin-1")
        reason, why = unusable(response.body[:HEAD], content_type)
        return FetchOutcome(reason, f"{why[0].upper()}{why[1:]}.")
    actual = hashlib.md5(response.body, usedforsecurity=False).hexdigest() if md5 else ""
    if actual != md5:
        return FetchOutcome("md5-mismatch", f"Its MD5 is {actual}, the source says {md5}.")
    sha256, path = store_bytes(dataset, response.body, suffix)
    return FetchOutcome("stored", "", sha256, path, len(response.body))


def opt_out(robots: str, tdm_reservation: str) -> str:
    """Return the words by which an owner forbids machine learning, "" if there are none.

    `robots` is an X-Robots-Tag header or a robots meta tag. noai and noimageai count whichever
    robot they address; tdm-reservation is the W3C's TDM Reservation Protocol.
    """
    if match := re.search(r"(?<![\w-])(noai|noimageai)(?![\w-])", robots, re.IGNORECASE):
        return match[1].lower()
    return "tdm-reservation: 1" if tdm_reservation.strip() == "1" else ""


def page_opt_out(page: "Response") -> str:
    """Return the words by which a page keeps its images from machine learning, else ""."""
    robots = [value.decode("latin-1") for value in page.headers.getlist("X-Robots-Tag")]
    reserved = page.headers.get("tdm-reservation", b"").decode("latin-1")
    if isinstance(page, HtmlResponse):
        robots += page.css('meta[name="robots" i]::attr(content)').getall()
        in_page = page.css('meta[name="tdm-reservation" i]::attr(content)').get("")
        reserved = reserved or in_page
    return opt_out(", ".join(robots), reserved)
