"""The route from which the page gets a PDF report; it is no part of the interface under /v1."""

import asyncio
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from skindx.core.errors import UserError
from skindx.ui.api.problem import problem
from skindx.ui.asgi import USER
from skindx.ui.reports.sealed import Reports

if TYPE_CHECKING:
    from fastapi import APIRouter

PATH = "/report"


def report_routes(reports: Reports) -> "APIRouter":
    """Return the router. What is sent is held while its report is made, and no longer."""
    from fastapi import APIRouter

    router = APIRouter()
    # Pure Python, so that two at a time would only slow each other down, and the page with them.
    making = asyncio.Semaphore(1)

    @router.post(PATH, include_in_schema=False)
    async def report(request: Request) -> Response:
        user = str(request.scope.get(USER) or "")
        try:
            sealed = await request.body()
            async with making:
                pdf = await asyncio.to_thread(reports.pdf, sealed, user)
        except ClientDisconnect:
            return Response(status_code=400)
        except UserError as error:
            return problem(422, str(error))
        return Response(pdf, media_type="application/pdf")

    return router
