"""The bodies of the interface's answers about scans."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from skindx.ui.scanning.answer import ScanAnswer
from skindx.ui.scanning.job import Stage, State


class ScanStatus(BaseModel):
    """A scan that was taken: how far it is, and what it found."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "kq1Yb0oHqk2vM7d3pXe5sT8uWcZfA9rL",
                    "url": "/v1/scan/kq1Yb0oHqk2vM7d3pXe5sT8uWcZfA9rL",
                    "status": "running",
                    "stage": "searching",
                    "scans_before": 0,
                    "tiles_done": 48,
                    "tiles_known": 182,
                    "error": "",
                    "expires_at": None,
                    "result": None,
                }
            ]
        }
    )
    id: str = Field(description="Who knows it can read the scan; it cannot be guessed.")
    url: str = Field(description="Where to ask for it.")
    status: State = Field(description="`queued`, `running`, `done` or `failed`.")
    stage: Stage = Field(description="What a running scan does.")
    scans_before: int = Field(description="How many are done before a scan that waits.")
    tiles_done: int
    tiles_known: int = Field(description="0 until the photos are opened.")
    error: str = Field(description="Why it failed and what to do, in a sentence.")
    expires_at: datetime | None = Field(
        description="When it is deleted; null while it waits or is at work."
    )
    result: ScanAnswer | None = Field(description="null until it is done.")


def scan_form_schema(most: int, scale: str) -> dict[str, Any]:
    """Return the OpenAPI description of a scan's form."""
    fields = {
        "photo": {
            "type": "array",
            "minItems": 1,
            "maxItems": most,
            "items": {"type": "string", "format": "binary"},
            "description": (
                "One to three wide photos of one person: JPEG, PNG, WebP, TIFF or HEIC."
            ),
        },
        scale: {
            "type": "number",
            "description": (
                "Millimetres in a pixel, of all photos; or once for each photo, in their order, "
                "`none` where unknown. Without it sizes are in pixels."
            ),
        },
    }
    return _form(fields)


def ruler_form_schema() -> dict[str, Any]:
    """Return the OpenAPI description of the form that asks for a ruler."""
    photo = {"type": "string", "format": "binary", "description": "One wide photo with a ruler."}
    return _form({"photo": photo})


def _form(fields: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "required": ["photo"], "properties": fields}
    return {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
