"""What the interface says: bodies of its answers and errors, each with an example."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from skindx.diagnosis.record import Diagnosis
from skindx.diagnosis.refusal import Gate

INCLUDES = ("views", "heat", "thumbnails", "pdf")
"""What a client may ask for beside the diagnosis; each costs bytes, so none comes unasked."""

_MEANINGS = {
    "sex": "Of the person.",
    "site": "Where on the body it is.",
    "duration": "For how long it has been there.",
    "skin_type": "Fitzpatrick's, as the person says; it chooses the set's threshold where known.",
}


class Answered(BaseModel):
    """A diagnosis, and the photos that were asked for, all base64."""

    diagnosis: Diagnosis
    views: tuple[str, ...] | None = Field(None, description="JPEG of each photo, upright.")
    heat: tuple[str, ...] | None = Field(
        None, description="PNG to lie over each view; empty where no heat map was made."
    )
    thumbnails: tuple[str, ...] | None = Field(
        None, description="JPEG of each similar case; empty where its licence forbids showing it."
    )
    pdf: str | None = Field(None, description="The report to take to a clinician.")


class RefusedPhoto(BaseModel):
    """Why one photo of the case is not judged."""

    photo: int = Field(description="Which photo of the case, from 0.")
    gate: Gate = Field(description="Which check refused it.")
    error: str = Field(description="What is wrong with it and what to do, in one sentence.")


_BLURRED = "The photo is too blurred to be judged; hold still and take it again."


class Problem(BaseModel):
    """Why there is no answer."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "error": _BLURRED,
                    "gate": "blur",
                    "photo": 0,
                    "refusals": [{"photo": 0, "gate": "blur", "error": _BLURRED}],
                }
            ]
        }
    )
    error: str = Field(description="What is wrong and what to do, in one sentence.")
    gate: Gate | None = Field(
        None, description="Which check refused the first refused photo; null: another cause."
    )
    photo: int | None = Field(None, description="Which photo was refused first, from 0.")
    refusals: tuple[RefusedPhoto, ...] = Field(
        (), description="Every photo that was refused, and why; empty: another cause."
    )


class Health(BaseModel):
    """How the server is."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "status": "ok",
                    "bundle": "skindx-demo",
                    "version": "9f2c1e0b7a55",
                    "digest": "1b6453892473a467",
                    "workers": 2,
                    "ready": 2,
                    "waiting": 0,
                    "capacity": 128,
                    "restarts": 0,
                    "problem": "",
                }
            ]
        }
    )
    status: str = Field(description="`ok`, or `unavailable` while no worker is ready.")
    bundle: str
    version: str = Field(description="SHA-256 over everything that decides an answer.")
    digest: str = Field(description="SHA-256 of the bundle's index, as `--expect` takes it.")
    workers: int
    ready: int = Field(description="Workers that are running.")
    waiting: int = Field(description="Cases that wait for a worker.")
    capacity: int = Field(description="Cases that may wait; one more gets 503.")
    restarts: int = Field(description="Workers that ended and were started again.")
    problem: str = Field(description="Why the last worker ended; empty when none did.")


def form_schema(choices: Mapping[str, Sequence[Any]], most: int) -> dict[str, Any]:
    """Return the OpenAPI description of a case as multipart form data."""
    fields: dict[str, Any] = {
        "photo": {
            "type": "array",
            "minItems": 1,
            "maxItems": most,
            "items": {"type": "string", "format": "binary"},
            "description": "JPEG, PNG, WebP or HEIC, of the same place on the skin.",
        },
        "age": {"type": "integer", "minimum": 0, "maximum": 120, "description": "Years."},
    }
    for name, values in choices.items():
        kind = "integer" if isinstance(values[0], int) else "string"
        fields[name] = {"type": kind, "enum": list(values), "description": _MEANINGS[name]}
    fields["include"] = {
        "type": "string",
        "description": f"What to send beside the diagnosis, by commas: {', '.join(INCLUDES)}.",
        "example": "views,heat",
    }
    schema = {"type": "object", "required": ["photo"], "properties": fields}
    return {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
