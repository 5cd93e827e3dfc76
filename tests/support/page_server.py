"""The page with made-up answers, a process: `python page_server.py PORT LOCKED BUNDLE [BOOK]`.

At the port LOCKED the same page stands behind the login, for the user anna.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import gradio as gr
import uvicorn
from fastapi import FastAPI, Request
from painted_answers import Painter
from some_examples import write_examples
from spot_scan import command

from skindx.casebook.casebook import Casebook
from skindx.core.machine import go_offline
from skindx.core.startup import collect_rarely
from skindx.models.bundle.bundle import Bundle, open_bundle
from skindx.models.bundle.use_limits import read_examples
from skindx.ui.http.answer_forms import Reports, report_routes
from skindx.ui.http.answer_rows import answer_row_routes
from skindx.ui.http.asgi import USER, App
from skindx.ui.http.browser_rules import Headers
from skindx.ui.http.guard import Guard
from skindx.ui.http.kept_reports import kept_report_routes
from skindx.ui.http.login import Gate
from skindx.ui.http.scan_routes import scan_routes
from skindx.ui.http.server_metrics import Metrics
from skindx.ui.http.users import Users, add_user
from skindx.ui.page.answer_html import PageScans
from skindx.ui.page.diagnosis_page import build_page
from skindx.ui.page_basics import theme
from skindx.ui.scans.rulers import _LIMITS, Rulers
from skindx.ui.scans.scan_job import ScanServing
from skindx.ui.scans.scan_jobs import ScanBundle, ScanJobs
from skindx.ui.uploads import UploadFolder, Uploads, example_routes
from skindx.workers.worker_pool import PoolStatus


def app(bundle: Bundle, casebook: Casebook | None) -> FastAPI:
    """Return the page; scans are real, by a detector of dark spots."""
    metrics = Metrics(bundle, "", lambda: PoolStatus(1, 1, 0, 1, 0, ""))
    folder = Path(tempfile.mkdtemp(prefix="skindx-scans-", dir=Path.cwd()))
    served = ScanBundle(bundle.path, bundle.digest)
    jobs = ScanJobs(folder, served, ScanServing(), metrics, command())
    jobs.rulers = Rulers(folder, 200, limits=_LIMITS.model_copy(update={"workers": 1}))

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        async with jobs:
            yield

    app = FastAPI(openapi_url=None, lifespan=running)
    app.include_router(scan_routes(jobs, None, metrics))
    reports = Reports(None)
    app.include_router(report_routes(reports))
    app.include_router(answer_row_routes(Painter(), bundle))
    if casebook is not None:
        app.include_router(kept_report_routes(casebook, bundle))
    write_examples(Path.cwd() / "offered/bundle")
    examples = read_examples(Path.cwd() / "offered/bundle")
    app.include_router(example_routes(examples))

    @app.middleware("http")
    async def log_in(request: Request, call_next):  # type: ignore[no-untyped-def]
        request.scope["skindx_user"] = request.cookies.get("user", "") or request.scope.get(
            USER, ""
        )
        return await call_next(request)

    gr.mount_gradio_app(
        app,
        build_page(
            Painter(),
            bundle,
            reports,
            casebook,
            logged_in=True,
            scans=PageScans(ScanServing(), jobs),
            examples=examples,
        ),
        path="",
        theme=theme(),
        run_history=False,
        footer_links=[],
        show_error=False,
        enable_monitoring=False,
        ssr_mode=False,
    )
    folder = Path(os.environ["GRADIO_TEMP_DIR"])
    app.add_middleware(Uploads, folder=UploadFolder(folder))
    app.add_middleware(Guard)
    return app


PASSWORD = "correct horse battery"


async def serve(page: App, locked: App, ports: list[int]) -> None:
    shared = {"host": "127.0.0.1", "log_level": "warning"}
    behind = uvicorn.Server(
        uvicorn.Config(locked, port=ports[1], lifespan="off", timeout_graceful_shutdown=1, **shared)
    )  # type: ignore[arg-type]
    open_to_all = uvicorn.Server(uvicorn.Config(page, port=ports[0], **shared))  # type: ignore[arg-type]
    with open_to_all.capture_signals():
        first = asyncio.create_task(behind._serve())
        await open_to_all._serve()
        behind.should_exit = True
        await first


if __name__ == "__main__":
    go_offline()
    collect_rarely()
    folder = tempfile.mkdtemp(prefix="skindx-uploads-", dir=Path.cwd())
    os.environ["GRADIO_TEMP_DIR"] = folder
    ports, bundle, book = [int(port) for port in sys.argv[1:3]], Path(sys.argv[3]), sys.argv[4:]
    page = app(open_bundle(bundle), Casebook.open(book[0]) if book else None)
    add_user(Path("users.json"), "anna", PASSWORD)
    locked = Headers(Gate(page, Users(Path("users.json"))))
    print("skindx is at", flush=True)
    asyncio.run(serve(page, locked, ports))
