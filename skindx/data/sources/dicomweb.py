"""A DICOMweb server as this package asks it: QIDO-RS lists, WADO-RS gives, one host and no other.

DICOM PS3.18 2024e, sections 8.3 (paging), 10.6 (search) and 10.4 (retrieve), RFC 2387 for the
bodies. Every address is made here, of the server that the recipe names and of UIDs; none that an
answer names is asked and no redirect is followed, so that neither requests nor the secret can be
led elsewhere.
"""

import base64
import http.client
import ipaddress
import json
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from email.message import Message
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.secret_hosts import check_secret
from skindx.core.settings_base import Settings
from skindx.core.untrusted import read_plain

_JSON = "application/dicom+json"
_WHOLE = 'multipart/related; type="application/dicom"; transfer-syntax=*'
_JSON_BYTES = 20_000_000
_SECRET_BYTES = 16_384
_PIECE = 65_536
_UID = re.compile(r"[0-9.]{1,64}")
_PASSING = frozenset({"unreachable", "timeout", "server-error", "half-answer"})
"""Statuses that a later run may not meet again."""


class DicomWebError(Exception):
    """What a server did instead of answering; `status` is a fixed short word."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.wait_s = 0.0
        """Seconds that the server asks to wait (Retry-After)."""

    @property
    def hopeless(self) -> bool:
        """Tell whether nothing else of the server will be answered either."""
        return self.status in {
            "login", "redirect", "untrusted", "private-address", "too-many-pages"
        }  # fmt: skip


class DicomWebServer(Settings):
    """A DICOMweb server, what it is asked for, and how long and how much it may answer.

    A secret is never a value of the recipe: `secret` says where it is. Without `user` it is sent
    as a bearer token, with it as the password of a basic login.
    """

    url: str = Field(pattern=r"^https?://[^/\s?#@]+(/[^\s?#@]*)?$")
    """Base address of the server, such as https://pacs.example/dicom-web."""
    secret: str = ""
    """env:NAME, an environment variable, or file:PATH, a file that holds nothing else."""
    user: str = Field("", pattern=r"^[^:\x00-\x1f]*$")
    ca_file: Path | None = None
    """Certificates (PEM) of the authority that signed the server's; null: those of this machine."""
    modalities: tuple[str, ...] = Field(("XC", "DMS"), min_length=1)
    """Modalities of the series to read: XC photographs, DMS dermoscopy."""
    query: Mapping[str, str] = Field(default_factory=dict)
    """What studies must match, such as {StudyDate: 20250101-20251231}; keywords of DICOM."""
    page: int = Field(100, ge=1, le=5000)
    """Results that one answer is asked for."""
    max_pages: int = Field(1000, ge=1, le=10**9, exclude_if=lambda pages: pages == 1000)
    """Most answers to one search; a server that has more to say stops the build."""
    timeout_s: float = Field(60.0, gt=0, le=3600)
    """Most seconds of one answer, from the connection to its last byte."""
    max_bytes: int = Field(200_000_000, ge=1, le=10**10)
    """Most bytes of one image file."""
    retries: int = Field(2, ge=0, le=10)

    @property
    def host(self) -> str:
        """host:port, as messages name the server."""
        return urlsplit(self.url).netloc.lower()

    def authorization(self) -> str:
        """Return the header that logs in, "" for none. Raises UserError, without the secret."""
        if not self.secret:
            if self.user:
                raise UserError(
                    "`server.user` is set without `server.secret`; set `server.secret` to "
                    "env:NAME or file:PATH."
                )
            return ""
        where, _, name = self.secret.partition(":")
        if where == "env" and re.fullmatch(r"\w+", name):
            secret = os.environ.get(name, "").strip()
            if not secret:
                raise UserError(
                    f"`server.secret` names the environment variable {name}, which is not set; "
                    f"run `export {name}=SECRET` first."
                )
        elif where == "file" and name:
            secret = (
                read_plain(Path(name).resolve(), _SECRET_BYTES).decode("utf-8", "replace").strip()
            )
        else:
            raise UserError(
                "`server.secret` in the recipe must not be the secret itself; store the secret "
                "in an environment variable or a private file, and write env:NAME or file:PATH."
            )
        if not secret or not secret.isprintable() or (not self.user and not secret.isascii()):
            raise UserError(f"the secret in {self.secret} must be one line of text; correct it.")
        if urlsplit(self.url).scheme == "http" and not _is_loopback(urlsplit(self.url).hostname):
            raise UserError(
                f"the secret would be sent to {self.host} unencrypted; change `server.url` in the "
                "recipe to https."
            )
        check_secret(name, self.host, "the recipe")
        if self.user:
            return "Basic " + base64.b64encode(f"{self.user}:{secret}".encode()).decode()
        return f"Bearer {secret}"


def _is_loopback(host: str | None) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


class DicomWebClient:
    """One connection at a time to a server; a context manager. No thread may share it."""

    def __init__(self, server: DicomWebServer) -> None:
        """Read the secret. Raises UserError."""
        self._server = server
        parts = urlsplit(server.url)
        self._base = parts.path.rstrip("/")
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "skindx"}
        if login := server.authorization():
            self._headers["Authorization"] = login
        try:
            host, port = parts.hostname or "", parts.port
            if parts.scheme == "https":
                trusted = ssl.create_default_context(cafile=server.ca_file)
                self._link: http.client.HTTPConnection = http.client.HTTPSConnection(
                    host, port, timeout=server.timeout_s, context=trusted
                )
            else:
                self._link = http.client.HTTPConnection(host, port, timeout=server.timeout_s)
        except (OSError, ValueError) as error:
            raise UserError(
                f"`server.url` or `server.ca_file` in the recipe cannot be used ({error}); correct "
                "that setting."
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()

    def studies(self) -> Iterator[dict[str, str]]:
        """Yield the ids of the studies that match the query and may hold such images.

        Modalities are not asked for: Orthanc gives only the first page of a search by
        ModalitiesInStudy. Raises DicomWebError, as the others do.
        """
        for study in self._search("/studies", "study_uid", self._server.query):
            if not {"", *self._server.modalities}.isdisjoint(texts(study, "modalities")):
                names = ("patient_id", "accession_number", "study_uid")
                yield {name: text(study, name) for name in names}

    def images(self, study: Mapping[str, str]) -> Iterator[dict[str, str]]:
        """Yield the ids of each image of a study."""
        below = f"/studies/{uid_of(study['study_uid'])}/series"
        for one in self._search(below, "series_uid"):
            if text(one, "modality") in self._server.modalities:
                series = uid_of(text(one, "series_uid"))
                for image in self._search(f"{below}/{series}/instances", "instance_uid"):
                    uids = {"series_uid": series, "instance_uid": text(image, "instance_uid")}
                    yield {**study, **uids}

    def _search(
        self, path: str, identity: str, matching: Mapping[str, str] | None = None
    ) -> Iterator["Result"]:
        """Yield the results of a search, page after page, each once.

        A page ends the search where it is empty or brings nothing new: servers may give fewer
        results than `limit`, and some know no `offset`. Raises DicomWebError for a server that
        brings something new for ever.
        """
        seen: set[str] = set()
        offset = 0
        for _ in range(self._server.max_pages):
            words = {**(matching or {}), "limit": self._server.page, "offset": offset}
            results = self._page(f"{path}?{urlencode(words)}", first=not offset)
            new = {text(one, identity): one for one in results if text(one, identity) not in seen}
            yield from new.values()
            if not new:
                return
            seen.update(new)
            offset += len(results)
        raise DicomWebError(
            "too-many-pages",
            f"a search at {self._server.host} has more answers than server.max_pages = "
            f"{self._server.max_pages} allows; narrow server.query, or set a larger number",
        )

    def _page(self, path: str, *, first: bool) -> list["Result"]:
        try:
            kind, body = self._get(path, _JSON, _JSON_BYTES)
        except DicomWebError as error:
            if error.status == "not-found" and not first:
                return []  # so some servers say that there is no further page
            raise
        if not body:
            return []
        try:
            results = json.loads(body)
        except (ValueError, RecursionError):
            results = None
        if not isinstance(results, list) or not all(isinstance(one, dict) for one in results):
            raise DicomWebError(
                "unreadable-answer",
                f"{self._server.host} answered a search with {kind[:40] or '?'}, not with a JSON "
                "list; check that server.url is the DICOMweb address",
            )
        return results

    def instance(self, ids: Mapping[str, str]) -> bytes:
        """Return one image as a DICOM file, as it is stored. Raises DicomWebError."""
        study, series, image = (
            uid_of(ids[f"{one}_uid"]) for one in ("study", "series", "instance")
        )
        path = f"/studies/{study}/series/{series}/instances/{image}"
        kind, body = self._get(path, _WHOLE, self._server.max_bytes)
        file = body if kind.startswith("application/dicom") else only_part(kind, body)
        if file[128:132] != b"DICM":
            raise DicomWebError("unreadable-answer", "the answer of the server has no DICOM file")
        return file

    def _get(self, path: str, accept: str, most: int) -> tuple[str, bytes]:
        """Return content type and body; what may pass is tried again. Raises DicomWebError."""
        for left in range(self._server.retries, -1, -1):
            try:
                return self._once(path, accept, most)
            except DicomWebError as error:
                self._link.close()
                too_long = error.wait_s > self._server.timeout_s
                if error.status not in _PASSING or not left or too_long:
                    raise
                time.sleep(max(error.wait_s, 0.5 * 2 ** (self._server.retries - left)))
        raise AssertionError("the last try returns or raises")

    def _once(self, path: str, accept: str, most: int) -> tuple[str, bytes]:
        server, link = self._server, self._link
        alarm = threading.Timer(server.timeout_s, self._cut)
        self._late = False
        try:
            if link.sock is None:
                link.connect()
                _refuse_link_local(link, server.host)
            alarm.start()
            link.request("GET", self._base + path, headers={**self._headers, "Accept": accept})
            answer = link.getresponse()
            self._check_head(answer, most)
            body = _body(answer, most)
        except (OSError, http.client.HTTPException) as error:
            raise self._problem(error) from None
        finally:
            alarm.cancel()
        if self._late:
            raise self._problem(TimeoutError())
        return answer.headers.get("Content-Type", ""), body

    def _cut(self) -> None:
        self._late = True
        with suppress(OSError, AttributeError):
            self._link.sock.shutdown(socket.SHUT_RDWR)

    def _problem(self, error: Exception) -> DicomWebError:
        host = self._server.host
        if self._late or isinstance(error, TimeoutError):
            return DicomWebError(
                "timeout", f"{host} did not answer within {self._server.timeout_s:g} s"
            )
        if isinstance(error, ssl.SSLCertVerificationError):
            return DicomWebError(
                "untrusted",
                f"the certificate of {host} is not trusted ({error.verify_message}); set "
                "server.ca_file to the certificate of your authority",
            )
        if isinstance(error, http.client.HTTPException):
            return DicomWebError("half-answer", f"{host} broke its answer off")
        reason = (error.strerror if isinstance(error, OSError) else "") or type(error).__name__
        return DicomWebError("unreachable", f"{host} cannot be reached ({reason})")

    def _check_head(self, answer: http.client.HTTPResponse, most: int) -> None:
        host, code = self._server.host, answer.status
        to = urlsplit(answer.headers.get("Location", "")).netloc[:100] or "another address"
        if code in (401, 403):
            status = "login" if code == 401 else "forbidden"
            detail = f"{host} answered {code}: it does not accept server.user and server.secret"
        elif 300 <= code < 400:
            status = "redirect"
            detail = (
                f"{host} sends on to {to}, and redirects are not followed; set server.url to where "
                "the DICOMweb server is"
            )
        elif code not in (200, 204):
            status = "server-error" if code >= 500 or code in (408, 429) else "not-found"
            detail = f"{host} answered {code}"
        elif answer.headers.get("Content-Encoding", "identity").lower() != "identity":
            status, detail = "unreadable-answer", f"{host} compressed its answer unasked"
        elif (answer.length or 0) > most:
            status, detail = "too-large", f"the answer has more than {most} bytes"
        else:
            return
        error = DicomWebError(status, detail)
        wanted = answer.headers.get("Retry-After", "").strip()
        if status == "server-error" and wanted.isascii() and wanted.isdigit() and len(wanted) < 7:
            error.wait_s = float(wanted)
            error.detail += f" and asked to wait {wanted} s"
        raise error


def uid_of(text: str) -> str:
    """Return a UID that a server named. Raises DicomWebError for anything else."""
    if not _UID.fullmatch(text):
        raise DicomWebError("odd-uid", "the server gave an identifier that is not a DICOM UID")
    return text


def _refuse_link_local(link: http.client.HTTPConnection, host: str) -> None:
    """Raise DicomWebError for an address where clouds keep their machines' secrets."""
    address = ipaddress.ip_address(link.sock.getpeername()[0].partition("%")[0])
    inner = getattr(address, "ipv4_mapped", None) or address
    if inner.is_link_local or inner.is_multicast or inner.is_unspecified:
        raise DicomWebError(
            "private-address", f"{host} has the address {inner}, which cannot be a PACS"
        )


def _body(answer: http.client.HTTPResponse, most: int) -> bytes:
    pieces, size = [], 0
    while piece := answer.read(_PIECE):
        pieces.append(piece)
        size += len(piece)
        if size > most:
            raise DicomWebError("too-large", f"the answer of the server has more than {most} bytes")
    if answer.length:  # http.client tells of a short body only who reads it at once
        raise http.client.IncompleteRead(b"")
    return b"".join(pieces)


def only_part(content_type: str, body: bytes) -> bytes:
    """Return the one part of a multipart/related body. Raises DicomWebError."""
    head = Message()
    head["Content-Type"] = content_type
    boundary = head.get_boundary("").encode("latin-1", "replace")
    if not boundary or head.get_content_maintype() != "multipart":
        what = content_type[:60] or "nothing"
        raise DicomWebError(
            "unreadable-answer", f"the answer of the server is {what!r}, not multipart"
        )
    mark = b"\r\n--" + boundary
    body = b"\r\n" + body
    begin, end = body.find(mark), body.rfind(mark + b"--")
    content = body.find(b"\r\n\r\n", begin)
    if begin < 0 or end < 0:
        raise DicomWebError(
            "half-answer", "the answer of the server is cut off: its last boundary is missing"
        )
    if not begin < content < end or body.find(mark, content, end) >= 0:
        raise DicomWebError(
            "unreadable-answer",
            "the answer of the server must have exactly one part, but has none or several",
        )
    return body[content + 4 : end]


Result = Mapping[str, Any]
"""One result of a search, in the DICOM JSON model (PS3.18, annex F)."""
_TAGS = {
    "patient_id": "00100020",
    "accession_number": "00080050",
    "study_uid": "0020000D",
    "series_uid": "0020000E",
    "instance_uid": "00080018",
    "modality": "00080060",
    "modalities": "00080061",
}


def texts(result: Result, name: str) -> list[str]:
    """Return the texts of an attribute; one that is empty where there is none."""
    attribute = result.get(_TAGS[name])
    values = attribute.get("Value") if isinstance(attribute, dict) else None
    listed = values if isinstance(values, list) else []
    return [one.strip() for one in listed if isinstance(one, str)] or [""]


def text(result: Result, name: str) -> str:
    return texts(result, name)[0]
