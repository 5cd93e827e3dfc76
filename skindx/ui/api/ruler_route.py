"""The route /v1/scan/ruler: the ruler on a photo, for a person to confirm before a scan."""

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from skindx.core.errors import JobError, UserError
from skindx.ui.api.form import read_photo
from skindx.ui.api.problem import problem
from skindx.ui.api.scan_schemas import ruler_form_schema
from skindx.ui.api.schemas import Problem
from skindx.ui.scanning.errors import NoScans, ScanRefused
from skindx.ui.scanning.jobs import ScanJobs
from skindx.ui.scanning.rulers import RulerAnswer
from skindx.ui.shares import client_of

if TYPE_CHECKING:
    from fastapi import APIRouter

_SAID = {
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
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": said} for status, said in _SAID.items()
}


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
            status = unable.status if unable else 501
            return problem(status, str(unable or "this server takes no scans."))
        try:
            photo = await read_photo(request)
        except UserError as error:
            return problem(400, str(error))
        return await _found(jobs, photo, client_of(request.scope))


async def _found(jobs: ScanJobs, photo: bytes, client: str) -> Response:
    try:
        found = await jobs.rulers.find(photo, client)
    except ScanRefused as error:
        return problem(error.status, str(error), retry_after_s=error.retry_after_s)
    except UserError as error:
        return problem(422, str(error))
    except JobError as error:
        return problem(500, str(error))
    except OSError:
        return problem(507, "the server has no room for photos; try again later.")
    return Response(found.model_dump_json(), media_type="application/json")
