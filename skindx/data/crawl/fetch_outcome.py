"""Outcome of a request for an image: one status word and a sentence."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapy import exceptions
from scrapy.exceptions import IgnoreRequest
from scrapy.http import HtmlResponse
from twisted.internet import error

from skindx.data.blocklist import TAKEN_DOWN, BlockList, withheld
from skindx.data.crawl.fetch_settings import origin_of
from skindx.data.crawl.transport import (
    MAX_HEAD_BYTES,
    PrivateAddressError,
    head_too_long,
    why_undecodable,
)
from skindx.data.labels import UNMAPPED, unmapped_label
from skindx.data.layout import store_bytes
from skindx.data.ledger import LedgerRow, LedgerWriter, file_name, now
from skindx.imaging.image_formats import HEAD, image_suffix, unusable
from skindx.taxonomy import Taxonomy

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

REFUSALS = frozenset({"robots", "opt-out", "forbidden", TAKEN_DOWN})
"""An owner's no: it counts for every address of the same image."""

_FORBIDDING = {
    401: "it asks for a login",
    402: "it asks for payment",
    403: "it forbids access",
    451: "it may not give it for legal reasons",
}
_STAND_IN = re.compile(
    r"(photo_unavailable|placeholder|no[-_]?(image|photo)|(image|photo)[-_]?not[-_]?found)"
    r"[^.]*\.\w+|removed\.\w+",
    re.IGNORECASE,
)
"""Names of files to which servers send on whoever asks for a picture that is gone."""
_GONE = {404: "there is nothing at this address", 410: "what was there is gone for good"}

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
        why = _FORBIDDING.get(code) or _GONE.get(code)
        detail = f"The server answered {code}{f': {why}' if why else ''}."
        return FetchOutcome("forbidden" if code in _FORBIDDING else "dead-link", detail)
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
    # Flickr and Imgur send on to a picture that says so.
    urls = response.request.meta.get("redirect_urls", ()) if response.request else ()
    names = [file_name(url) for url in (*urls, response.url)]
    if names[0] != names[-1] and _STAND_IN.fullmatch(names[-1]):
        return FetchOutcome("dead-link", f"The server shows {response.url[:200]} in its place.")
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


_DECIDED = ("status", "detail", "sha256", "path", "size_bytes", "retrieved")

_READ = frozenset({"more-results", "no-pictures", "nothing-found", "too-many-pages"})
"""What is wrong with pages that were read, or need not be."""

_ANOTHER = "Its owner forbids another address of the same image."
_ANOTHER_UNREAD = "Whether its owner permits another address of the same image is not known today."


class CrawlState:
    """One row a (url, label), one fetch a URL, over all runs that were ever started.

    A URL under two checksums counts as two: what is right for one of them is wrong for the other.

    `earlier` are the rows that the ledger holds when the crawl starts. URLs that are `blocked` or
    that have no class in `taxonomy` are not fetched; the row of a blocked one has no name.
    """

    def __init__(
        self,
        ledger: LedgerWriter,
        earlier: Sequence[LedgerRow],
        dataset: Path,
        *,
        blocked: BlockList | None = None,
        taxonomy: Taxonomy | None = None,
    ) -> None:
        self._taxonomy = taxonomy
        self._blocked = blocked or BlockList()
        self._ledger = ledger
        self._earlier = {(row.url, row.label): row for row in earlier}
        final = [_forbidden_then(row) for row in earlier if _is_final(row, dataset)]
        self._answers = {_address(row): _decided(row) for row in final}
        self._waiting: dict[tuple[str, str], list[LedgerRow]] = {}
        self._known: set[tuple[str, str]] = set()
        self._written: dict[tuple[str, str], str] = {}
        self._had = 0
        self._forbidden: dict[str, FetchOutcome] = {}
        """Refusal of another address of the same image, by URL."""
        self._unread: set[str] = set()
        """URLs of hosts whose rules could not be read."""
        self._stored: dict[str, list[LedgerRow]] = {}
        for row in earlier:
            if row.status == "stored":
                self._stored.setdefault(row.url, []).append(row)
            elif row.detail == _ANOTHER:
                # A page that shows it alone may be read before the one that says whose it is.
                self._forbidden[row.url] = FetchOutcome(row.status, _ANOTHER)

    def wants(self, row: LedgerRow) -> bool:
        """Enter an image that a page shows; tell whether its URL must be fetched now.

        A row that has a status already is written as it is.
        """
        key = (row.url, row.label)
        if key in self._known:
            return False
        self._known.add(key)
        entry = self._blocked.find("", row.url)
        if entry:
            row = withheld(row, entry)
        if not row.status and row.url in self._forbidden:
            row = replace(row, **_decided(self._forbidden[row.url]))
        if row.status:
            self._write(replace(row, retrieved=now()), force=False)
        elif _address(row) in self._answers:
            self._write(replace(row, **self._answers[_address(row)]), force=False)
        elif self._taxonomy and not self._taxonomy.recognise(row.label):
            status, detail = unmapped_label(row.label, self._taxonomy)
            self._write(replace(row, status=status, detail=detail, retrieved=now()), force=False)
        else:
            waiting = self._waiting.setdefault(_address(row), [])
            waiting.append(row)
            return len(waiting) == 1
        return False

    def status(self, row: LedgerRow) -> str:
        """Return the status of an image that was entered, "" while its answer is awaited."""
        return self._written.get((row.url, row.label), "")

    def answer(self, fetched: LedgerRow, outcome: FetchOutcome) -> None:
        """Write what became of a row's URL, for every label under which it was found."""
        address = _address(fetched)
        if outcome.unread:
            self._unread.add(fetched.url)
        outcome = self._forbidden.get(fetched.url, outcome)
        self._answers[address] = {**_decided(outcome), "retrieved": now()}
        for row in self._waiting.pop(address):
            self._write(replace(row, **self._answers[address]))

    def forbid(self, refused: LedgerRow, addresses: Sequence[LedgerRow]) -> None:
        """Apply an owner's refusal of one address of an image to its other `addresses`.

        They are not fetched, whichever page shows them, and what was stored of them before is
        withdrawn. Unreadable rules withdraw nothing: they may permit it tomorrow.
        """
        status = self.status(refused)
        kind = "opt-out" if status == TAKEN_DOWN else status
        unread = refused.url in self._unread
        no = FetchOutcome(kind, _ANOTHER_UNREAD if unread else _ANOTHER)
        for url in (row.url for row in addresses if row.url != refused.url):
            self._forbidden.setdefault(url, no)
            for row in () if unread else self._stored.pop(url, ()):
                self._write(replace(row, **_decided(no), retrieved=now()))

    def page_failed(self, url: str, label: str, source: str, problem: FetchOutcome) -> None:
        """Note a page whose images, or some of them, stay unknown.

        It gets no row of its own: pages are read by every run, and only the last one counts.
        """
        lost = (
            ""
            if problem.status in _READ
            else "A page could not be read, so its images are missing. "
        )
        detail = lost + problem.detail
        row = LedgerRow(
            url, label, problem.status, detail, retrieved=now(), source=source, page_url=url
        )
        self._ledger.note("page", row=asdict(row))

    def source_failed(self, source: str, sentence: str) -> None:
        """Note that a source as a whole gave nothing."""
        self._ledger.note("failed", source=source, detail=sentence)

    def report(self) -> None:
        """Note how many images are known, and how many of them earlier runs had done."""
        self._ledger.note("progress", known=len(self._known), had=self._had)

    def close(self) -> None:
        """Note the end of a whole crawl; without this note the run counts as broken."""
        if self._waiting:
            raise RuntimeError(f"{len(self._waiting)} images never had an answer")
        self.report()
        self._ledger.note("finished")

    def _write(self, row: LedgerRow, *, force: bool = True) -> None:
        """Write a row; without `force` what no request told: the next run would know it too."""
        self._written[row.url, row.label] = row.status
        if row.status == "stored":
            self._stored.setdefault(row.url, []).append(row)
        before = self._earlier.get((row.url, row.label))
        # Of two pages that show one image either may come first; the time is always another.
        if before and replace(before, retrieved=row.retrieved, page_url=row.page_url) == row:
            self._had += 1
        else:
            self._ledger.append(row, force=force)


def _forbidden_then(row: LedgerRow) -> LedgerRow:
    """Return a row of an older version, to which a forbidden image was a dead link, as of today."""
    if row.status == "dead-link":
        for code in _FORBIDDING:
            if row.detail == f"The server answered {code}.":
                return replace(row, status="forbidden")
    return row


def _address(row: LedgerRow) -> tuple[str, str]:
    return row.url, row.md5


def _decided(answer: FetchOutcome | LedgerRow) -> dict[str, Any]:
    return {name: value for name, value in asdict(answer).items() if name in _DECIDED}


def _is_final(row: LedgerRow, dataset: Path) -> bool:
    if row.status == "stored":
        # The store may have been emptied since; the ledger alone is no image.
        file = dataset / row.path
        return file.is_file() and file.stat().st_size == row.size_bytes
    return row.status not in PASSING
