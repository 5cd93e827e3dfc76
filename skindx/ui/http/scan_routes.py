"""The routes of scans: /v1/scan takes one, /v1/scan/{id} says how far it is.

/v1/scan/ruler gives the ruler on a photo, for a person to confirm before a scan.
"""

from datetime import UTC, datetime, timedelta
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from skindx.core.errors import JobError, UserError
from skindx.diagnosis.case import MAX_PHOTOS
from skindx.scan.outputs.scan_pages import PAGE
from skindx.texts.catalogue import joined, text
from skindx.ui.http.api_schemas import (
    ScanStatus,
    problem,
    problems,
    ruler_form_schema,
    scan_form_schema,
)
from skindx.ui.http.asgi import USER, root_of
from skindx.ui.http.forms import SCALE, read_photo, read_scan
from skindx.ui.http.request_limits import client_of
from skindx.ui.http.server_metrics import Metrics
from skindx.ui.page_basics import sentence
from skindx.ui.scans.rulers import RulerAnswer
from skindx.ui.scans.scan_answer import ScanAnswer
from skindx.ui.scans.scan_job import ANSWER, LIST, RESULTS, NoScans, ScanJob, ScanRefused
from skindx.ui.scans.scan_jobs import ScanJobs

if TYPE_CHECKING:
    from fastapi import APIRouter


_PROBLEMS = problems(
    {
        400: "The form is invalid.",
        409: "The server's bundle has no detector.",
        413: "The request is too large.",
        422: "The photo shows no ruler that can be read.",
        429: "Your last photo is still searched for a ruler; see `Retry-After`.",
        500: "The search failed.",
        501: "The server lacks packages that scans need.",
        503: "Too many photos wait; see `Retry-After`.",
        507: "The server's disk is full.",
    }
)


def add_ruler_route(router: "APIRouter", jobs: ScanJobs | None, unable: NoScans | None) -> None:
    """Add the route, before the ones with an id; `unable` says why a server takes no scans."""

    @router.post(
        "/ruler",
        response_model=RulerAnswer,
        responses=_PROBLEMS,
        summary="Find the ruler on a wide photo, for a person to confirm",
        openapi_extra={"requestBody": ruler_form_schema()},
    )
    async def find_ruler(request: Request) -> Response:
        """Send one photo, show a person the image of the answer, and begin a scan only then.

        Nothing of it is used by itself: if the person says that each thin line lies on a tick and
        the thick ones are 1 cm apart, send `mm_per_pixel` as `scale_mm_per_pixel` with the scan.
        The photo is deleted before the answer is sent.

        `curl -F photo=@back.jpg http://127.0.0.1:7860/v1/scan/ruler`
        """
        if unable is not None or jobs is None:
            return _no_scans(unable)
        try:
            photo = await read_photo(request)
        except UserError as error:
            return problem(400, str(error))
        return await _ruler_answer(jobs, photo, client_of(request.scope))


def _no_scans(unable: NoScans | None) -> Response:
    return problem(unable.status if unable else 501, str(unable or text("scan_takes_none")))


async def _ruler_answer(jobs: ScanJobs, photo: bytes, client: str) -> Response:
    try:
        ruler = await jobs.rulers.find(photo, client)
    except ScanRefused as error:
        return problem(error.status, str(error), retry_after_s=error.retry_after_s)
    except UserError as error:
        return problem(422, str(error))
    except JobError as error:
        return problem(500, str(error))
    except OSError:
        return problem(507, text("scan_full"))
    return Response(ruler.model_dump_json(), media_type="application/json")


PATH = "/v1/scan"
BY_PAGE = "x-skindx-page"
"""Header of requests that the page sends, so that they are counted as its own."""

_TOP = b"<header>\n"
"""What a scan's page begins with: where people log in, a button to log out stands there."""
_TAKEN: dict[int | str, dict[str, Any]] = {
    202: {"model": ScanStatus, "description": "The scan was taken; `Location` is where to ask."},
    **problems(
        {
            400: "The form is invalid.",
            409: "The server's bundle has no detector.",
            413: "The request is too large.",
            429: "You have scans at work; see `Retry-After`.",
            501: "The server lacks packages that scans need.",
            503: "Too many scans wait; see `Retry-After`.",
            507: "The server's disk is full.",
        }
    ),
}
_MISSING = problems({404: "There is no such scan, or no more."})


def scan_routes(jobs: ScanJobs | None, unable: NoScans | None, metrics: Metrics) -> "APIRouter":
    """Return the router; `unable` says why a server takes no scans."""
    from fastapi import APIRouter

    router = APIRouter(prefix=PATH)
    add_ruler_route(router, jobs, unable)

    @router.post(
        "",
        status_code=202,
        responses=_TAKEN,
        response_class=JSONResponse,
        summary="Search wide photos for lesions, and diagnose and rank each: take a scan",
        openapi_extra={"requestBody": scan_form_schema(MAX_PHOTOS, SCALE)},
    )
    async def take(request: Request) -> Response:
        """Send 1 to 3 wide photos of one person; poll the URL that the answer names.

        The result is a search for what to look at, and no diagnosis. The photos lie in a private
        folder of the server until the scan ends, results (crops among them) until `expires_at`,
        until they are deleted, or until the server ends. Nothing is logged or sent on.

        `curl -F photo=@back.jpg -F scale_mm_per_pixel=0.1 http://127.0.0.1:7860/v1/scan`
        """
        way = "page" if BY_PAGE in request.headers else "api"
        if unable is not None or jobs is None:
            return _no_scans(unable)
        try:
            photos, mm_per_pixel = await read_scan(request)
        except UserError as error:
            metrics.scan_ended(way, "bad-input", 0.0)
            return problem(400, str(error))
        try:
            job = await jobs.submit(
                photos,
                client=client_of(request.scope),
                owner=_owner(request),
                way=way,
                mm_per_pixel=mm_per_pixel,
            )
        except ScanRefused as error:
            return problem(error.status, str(error), retry_after_s=error.retry_after_s)
        except OSError:
            metrics.scan_ended(way, "failed", 0.0)
            return problem(507, text("scan_full"))
        body = _status(jobs, job, request).model_dump(mode="json")
        return JSONResponse(body, 202, {"location": body["url"]})

    @router.get(
        "/{scan}",
        response_model=ScanStatus,
        responses=_MISSING,
        summary="Get how far a scan is, and what it found when it is done",
    )
    def read(scan: str, request: Request) -> Response:
        """Ask every second or two; a scan that failed says why in `error`."""
        job = jobs.get(scan, _owner(request)) if jobs else None
        if jobs is None or job is None:
            return _gone()
        return Response(
            _status(jobs, job, request).model_dump_json(), media_type="application/json"
        )

    @router.get(
        "/{scan}/page",
        response_class=HTMLResponse,
        responses=_MISSING | problems({409: "The scan is not done."}),
        summary="Get the result as one page that needs nothing else",
    )
    def read_page(scan: str, request: Request) -> Response:
        """Return HTML with the photos, numbered outlines and the lesions by rank.

        With `?download` a browser saves it.
        """
        file = Path(RESULTS) / PAGE
        if "download" in request.query_params:
            saved = {"content-disposition": 'attachment; filename="scan.html"'}
            return _file(scan, request, file, saved)
        answer = _file(scan, request, file, {})
        if not _owner(request) or answer.status_code != 200:
            return answer
        action = f'<form method="post" action="{escape(root_of(request.scope))}/logout">'
        logout = f"{action}<button>{escape(text('log_out'))}</button></form>"
        return HTMLResponse(bytes(answer.body).replace(_TOP, _TOP + logout.encode(), 1))

    @router.get("/{scan}/list", include_in_schema=False)
    def read_list(scan: str, request: Request) -> Response:
        return _file(scan, request, Path(LIST), {})

    @router.delete(
        "/{scan}",
        status_code=204,
        response_class=Response,
        responses=_MISSING,
        summary="Delete a scan and all of its files at once",
    )
    async def delete(scan: str, request: Request) -> Response:
        """A scan that waits or is at work is ended."""
        job = jobs.get(scan, _owner(request)) if jobs else None
        if jobs is None or job is None:
            return _gone()
        await jobs.delete(job)
        return Response(status_code=204)

    def _file(scan: str, request: Request, file: Path, headers: dict[str, str]) -> Response:
        job = jobs.get(scan, _owner(request)) if jobs else None
        if job is None:
            return _gone()
        if job.state != "done":
            return problem(409, job.error or text("scan_not_done"))
        try:
            html = (job.folder / file).read_bytes()
        except OSError:  # deleted meanwhile
            return _gone()
        return HTMLResponse(html, headers=headers)

    return router


def _gone() -> Response:
    return problem(404, joined(text("scan_unknown"), text("scan_unknown_do")))


def _owner(request: Request) -> str:
    return str(request.scope.get(USER) or "")


def _status(jobs: ScanJobs, job: ScanJob, request: Request) -> ScanStatus:
    left_s = jobs.expires_in(job)
    result = None
    if job.state == "done":
        result = ScanAnswer.model_validate_json((job.folder / ANSWER).read_bytes())
    return ScanStatus(
        id=job.id,
        url=f"{root_of(request.scope)}{PATH}/{job.id}",
        status=job.state,
        stage=job.stage,
        scans_before=jobs.before(job),
        tiles_done=job.tiles_done,
        tiles_known=job.tiles_known,
        error=sentence(job.error),
        expires_at=None if left_s is None else datetime.now(UTC) + timedelta(seconds=left_s),
        result=result,
    )
