"""An error in the form of the interface."""

from collections.abc import Sequence
from typing import Any

from starlette.responses import JSONResponse, Response

from skindx.diagnosis.photo_checks import Refused
from skindx.ui.html import sentence


def problem(
    status: int,
    error: str,
    *,
    refused: Refused | None = None,
    retry_after_s: int | None = None,
    wide: Sequence[int] = (),
) -> Response:
    """Return an error in the form of the interface."""
    headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}
    said: dict[str, Any] = {
        "error": sentence(error),
        "gate": refused.gate if refused else None,
        "photo": refused.photo if refused else None,
        "refusals": [
            {"photo": refusal.photo, "gate": refusal.gate, "error": sentence(refusal.message)}
            for refusal in (refused.refusals if refused else ())
        ],
    }
    if wide:
        said["wide_photos"] = list(wide)
    return JSONResponse(said, status, headers)
