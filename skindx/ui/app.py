"""The whole server as one application: interface and page behind gate, guard and limits."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.routing import BaseRoute, Match, Mount

from skindx import __version__
from skindx.core.errors import UserError
from skindx.diagnosis.bundle_statement import bundle_version
from skindx.diagnosis.photo_checks import MAX_BYTES
from skindx.models.bundle.bundle import Bundle
from skindx.models.bundle.use_limits import NO_EXAMPLES, Examples
from skindx.models.shipped_detector import ShippedDetector
from skindx.monitor.monitor_file import MonitorFile
from skindx.texts.catalogue import AUTO, LANGUAGE, accepted, languages, speaking
from skindx.ui.diagnosis_pool import DiagnosisPool, worker_command
from skindx.ui.http.answer_forms import PATH as REPORT
from skindx.ui.http.answer_forms import SEALED_BYTES, Reports, report_routes
from skindx.ui.http.answer_rows import PATH as ROW
from skindx.ui.http.answer_rows import answer_row_routes
from skindx.ui.http.api_routes import docs_html, monitor_html, routes
from skindx.ui.http.asgi import USER, App, Message, Receive, Send, header, refuse, respond
from skindx.ui.http.browser_rules import Headers, HostCheck
from skindx.ui.http.forms import FORM_BYTES
from skindx.ui.http.guard import Guard
from skindx.ui.http.kept_reports import kept_report_routes
from skindx.ui.http.login import Gate
from skindx.ui.http.request_limits import PER_ADDRESS, BodyLimit, ConnectionQuota, RequestQuota
from skindx.ui.http.scan_routes import PATH as SCAN
from skindx.ui.http.scan_routes import scan_routes
from skindx.ui.http.server_metrics import CountingDiagnoser, Metrics
from skindx.ui.http.users import Users
from skindx.ui.page.answer_html import PageScans
from skindx.ui.page_basics import gradio_options, sentence
from skindx.ui.scans.scan_job import ScanServing, why_no_scans
from skindx.ui.scans.scan_jobs import ScanBundle, ScanJobs
from skindx.ui.uploads import REQUEST_BYTES, ROUTE, UploadFolder, Uploads, example_routes
from skindx.workers.worker_pool import PoolSettings

if TYPE_CHECKING:
    import gradio as gr
    from fastapi import FastAPI

    from skindx.casebook.casebook import Casebook


_GRADIO = "/gradio_api/"
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


class Methods:
    """ASGI middleware: HEAD and OPTIONS are answered, other methods of our routes refused by 405.

    Gradio's page is mounted over every path, so the router takes one of ours with another method
    for a page that is not there and answers 404. `routes` are those of a FastAPI application,
    `more_paths` further ones.
    """

    def __init__(
        self, app: App, routes: Iterable[BaseRoute], more_paths: Mapping[str, frozenset[str]]
    ) -> None:
        self.app, self._more_paths = app, more_paths
        self._routes = [route for route in routes if not isinstance(route, Mount)]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on by a method that its path has, GET for HEAD, without a last slash."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        method, path = scope["method"], scope["path"]
        bare = path.rstrip("/")
        allowed = self._allowed(scope, bare)
        if allowed:
            scope = {**scope, "path": bare, "raw_path": bare.encode()}
        if method == "OPTIONS":
            allowed_names = ", ".join(sorted(allowed or _READING))
            await respond(send, 204, b"", headers={"allow": allowed_names})
        elif allowed and method not in allowed:
            allowed_names = ", ".join(sorted(allowed))
            sentence = f"This address is asked by {allowed_names}, not by {method[:20]}."
            await refuse(send, 405, sentence, {"allow": allowed_names})
        elif method == "HEAD" and _GRADIO not in path:
            # The server sends no body to HEAD, whatever is answered.
            await self.app({**scope, "method": "GET"}, receive, send)
        else:
            await self.app(scope, receive, send)

    def _allowed(self, scope: Message, path: str) -> frozenset[str]:
        """Return the methods of one of our paths; empty: it is none, and may be Gradio's."""
        methods = self._more_paths.get(path, frozenset())
        for method in _METHODS:
            probe = {**scope, "path": path, "method": method}
            if any(route.matches(probe)[0] is Match.FULL for route in self._routes):
                methods |= {method}
        if "GET" in methods:
            methods |= {"HEAD"}
        return methods | {"OPTIONS"} if methods else methods


_SPOKEN = "skindx_language"
"""Key of a request's language in its scope."""
_ENGLISH = (_GRADIO, "/docs", "/v1/monitor")
"""Paths that speak English: their sentences are not all translated, or, of Gradio's events, run in
tasks of its own, in the language in which the page was built."""


class Speaking:
    """ASGI middleware: a request is answered in its language, by a header or the operator."""

    def __init__(self, app: App, language: str) -> None:
        self.app, self._language = app, language

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, and speak its language meanwhile."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        language = self._language
        if language == AUTO:
            language = accepted(header(scope, b"accept-language"))
        scope[_SPOKEN] = language
        english = scope["path"].startswith(_ENGLISH)
        with speaking(LANGUAGE if english else language):
            await self.app(scope, receive, send)


def _by_language(hosts: Mapping[str, App]) -> App:
    """Return what passes a request to the page of its language."""

    async def passed(scope: Message, receive: Receive, send: Send) -> None:
        await hosts[scope.get(_SPOKEN, LANGUAGE)](scope, receive, send)

    return passed


FORMS = ("/v1/diagnose", ROW, SCAN, f"{SCAN}/ruler")
"""Routes that take photos as a form."""
ALIVE = "/healthz"
"""Says only that the server runs; open to all, for monitoring."""
_CLIENT_BYTES, _IN_FLIGHT_BYTES = 192 << 20, 512 << 20
"""Most bytes of bodies that arrive or are being answered, from one address and in all."""
_OTHER_BYTES = 1 << 20
_BOTH = frozenset({"GET", "POST"})
_OTHER_ROUTES = {"/login": _BOTH, "/logout": _BOTH, ROUTE: frozenset({"POST"})}
"""Answered before the application."""


@dataclass(frozen=True)
class Wiring:
    """What a server is made of beside its bundle."""

    uploads: Path
    pool: PoolSettings
    users: Users | None = None
    casebook: "Casebook | None" = None
    frames: Sequence[str] = ()
    """Sites that may show the page in a frame of theirs."""
    expect: str | None = None
    """The digest of the only bundle that may be served; None: its version may not change."""
    host: str = "127.0.0.1"
    """The address that the server listens on."""
    allowed_hosts: Sequence[str] = ()
    """Further names that requests may be for."""
    per_address: int = PER_ADDRESS
    """Requests at a time."""
    miss_rate: float | None = None
    """The level of the urgent risk by which answers are urgent; None: the bundle's default."""
    scans: Path | None = None
    """A private folder for scans; None: the server takes none."""
    scan_serving: ScanServing = field(default_factory=ScanServing)
    prevalence: Path | None = None
    """A file of the mix of diseases that shown probabilities hold for; None: the bundle's."""
    monitor: Path | None = None
    """The file of a monitor; None: photos are not counted."""
    examples: Examples = NO_EXAMPLES
    """Photos that the page offers to try the bundle with."""
    language: str = LANGUAGE
    """Language of pages and answers; AUTO: the one of the catalogue's that a browser asks for."""
    detector: ShippedDetector | None = None
    """What takes the place of the bundle's detector in scans; None: the bundle's own."""


def build_app(bundle: Bundle, wiring: Wiring) -> App:
    """Return the application; its workers run from its startup to its shutdown."""
    from fastapi import FastAPI

    from skindx.ui.page.diagnosis_page import build_page

    version = bundle_version(bundle)
    given = (wiring.expect, wiring.miss_rate, wiring.prevalence)
    examples = wiring.examples
    hashes = tuple(examples.photos)
    command = worker_command(bundle.path, version, *given, monitor=wiring.monitor, examples=hashes)
    pool = DiagnosisPool(command, wiring.pool)
    metrics = Metrics(bundle, version, lambda: pool.status)
    folder = UploadFolder(wiring.uploads)
    unable = why_no_scans(bundle, wiring.detector)
    jobs: ScanJobs | None = None
    if unable is None and wiring.scans is not None:
        served = ScanBundle(bundle.path, bundle.digest, wiring.miss_rate, wiring.detector)
        jobs = ScanJobs(wiring.scans, served, wiring.scan_serving, metrics)
        metrics.scans = lambda: jobs

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        async with pool, jobs or nullcontext():
            clearing = asyncio.create_task(folder.keep_clear())
            yield
            clearing.cancel()

    app = FastAPI(
        title="skindx",
        version=__version__,
        summary="What a skin lesion may be, and what to do next. No medical device.",
        lifespan=running,
        docs_url=None,  # FastAPI's own page is fetched from another host
        redoc_url=None,
    )
    by_api = CountingDiagnoser(pool, metrics, "api", examples)
    rule = wiring.scan_serving.wide if jobs else None
    app.include_router(routes(by_api, metrics, lambda: pool.status, bundle, version, rule=rule))
    app.include_router(scan_routes(jobs, unable, metrics))
    if wiring.monitor is not None:
        metrics.monitor = MonitorFile(wiring.monitor)
        _add_monitor(app, metrics.monitor)
    _add_docs(app)
    logged_in = wiring.users is not None
    by_page = CountingDiagnoser(pool, metrics, "page", examples)
    scans = PageScans(wiring.scan_serving, jobs, bundle.spec.detector is not None)
    reports = Reports(bundle.metrics())
    app.include_router(report_routes(reports))
    app.include_router(answer_row_routes(by_page, bundle))
    if wiring.casebook is not None:
        app.include_router(kept_report_routes(wiring.casebook, bundle))
    app.include_router(example_routes(examples))
    offered: dict[str, Any] = {"logged_in": logged_in, "scans": scans, "examples": examples}
    offered["miss_rate"] = wiring.miss_rate
    make_page = partial(build_page, by_page, bundle, reports, wiring.casebook, **offered)
    events = _add_pages(app, make_page, wiring.language, logged_in=logged_in)
    guarded = Guard(Uploads(app, folder), wiring.uploads, events)
    gate = Gate(guarded, wiring.users, lambda path: path == ALIVE)
    # Outside the login gate, so that the limits hold for clients without a login too.
    limited = BodyLimit(gate, most_bytes, ConnectionQuota(_CLIENT_BYTES, _IN_FLIGHT_BYTES))
    by_method = Methods(limited, app.routes, _OTHER_ROUTES)
    shared = RequestQuota(by_method, wiring.per_address)
    checked = HostCheck(shared, wiring.host, wiring.allowed_hosts)
    return Headers(Speaking(checked, wiring.language), wiring.frames)


def most_bytes(path: str) -> int:
    """Return how many bytes a request to this path may have."""
    path = path.rstrip("/")
    if path in FORMS:
        return FORM_BYTES
    if path == ROUTE:
        return REQUEST_BYTES
    if path == REPORT:
        return SEALED_BYTES
    return _OTHER_BYTES


def _add_docs(app: "FastAPI") -> None:
    @app.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(docs_html(app.openapi()))

    @app.get(ALIVE, include_in_schema=False)
    def alive() -> PlainTextResponse:
        return PlainTextResponse("ok")


def _add_monitor(app: "FastAPI", monitor: MonitorFile) -> None:
    @app.get("/v1/monitor", include_in_schema=False, response_model=None)
    def show_monitor() -> HTMLResponse | PlainTextResponse:
        try:
            return HTMLResponse(monitor_html(monitor.read()))
        except UserError as error:
            return PlainTextResponse(sentence(str(error)), 503)


def _add_pages(
    app: "FastAPI", make_page: "Callable[[], gr.Blocks]", language: str, *, logged_in: bool
) -> frozenset[int]:
    """Add the page of a language, or of AUTO one for each, and return the numbers of its events.

    Of several each has a host of its own, which starts and ends with the application.
    """
    from fastapi import FastAPI

    pages = {}
    for one in languages() if language == AUTO else (language,):
        with speaking(one):
            pages[one] = make_page()
    events = frozenset(event for page in pages.values() for event in page.fns)
    if len(pages) == 1:
        _mount(app, *pages.values(), logged_in=logged_in)
        return events
    hosts = {one: FastAPI(openapi_url=None) for one in pages}
    for one, page in pages.items():
        _mount(hosts[one], page, logged_in=logged_in)
    app.mount("", _by_language(hosts))
    own = app.router.lifespan_context

    @asynccontextmanager
    async def with_hosts(started: "FastAPI") -> AsyncIterator[Any]:
        async with AsyncExitStack() as running:
            state = await running.enter_async_context(own(started))
            for host in hosts.values():
                await running.enter_async_context(host.router.lifespan_context(host))
            yield state

    app.router.lifespan_context = with_hosts
    return events


def _mount(app: "FastAPI", page: "gr.Blocks", *, logged_in: bool) -> None:
    import gradio as gr

    def user(request: Any) -> str | None:
        return request.scope.get(USER) or None

    page.state_session_capacity = 200  # each may hold what its tab shows
    gr.mount_gradio_app(
        app,
        page,
        path="",
        auth_dependency=user if logged_in else None,
        app_kwargs={"openapi_url": None, "docs_url": None, "redoc_url": None},
        max_file_size=MAX_BYTES,
        **gradio_options(),
    )
