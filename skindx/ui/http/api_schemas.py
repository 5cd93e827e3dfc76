"""The bodies of the interface's answers and errors, with examples."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from skindx.diagnosis.case import Patient, limits_of, skin_type_chooses, values_of
from skindx.diagnosis.checklist_advice import UnansweredStep, unanswered_step
from skindx.diagnosis.intake import INTAKE
from skindx.diagnosis.photo_checks import Gate, Refused
from skindx.diagnosis.record import Diagnosis
from skindx.diagnosis.scope import unjudged
from skindx.imaging.photo_gates import Kind
from skindx.taxonomy import Urgency
from skindx.texts.catalogue import languages, text
from skindx.ui.page_basics import sentence
from skindx.ui.scans.scan_answer import ScanAnswer
from skindx.ui.scans.scan_job import Stage, State

INCLUDES = ("views", "heat", "thumbnails", "pdf")
"""What a client may ask for beside the diagnosis; each costs bytes, so none comes unasked."""

_UNUSED = "It does not change the answer, and is printed in the report."
_USED = "It changes the answer where it is given; `used_facts` says how."


_WIDE = (
    "Indices of photos that show several lesions, each small against the photo, from 0: `/v1/scan` "
    "judges each lesion. Missing where there is none."
)


class Answered(BaseModel):
    """A diagnosis, and the images and report that `include` asks for, in base64."""

    diagnosis: Diagnosis
    views: tuple[str, ...] | None = Field(None, description="Each photo as JPEG, upright.")
    heat: tuple[str, ...] | None = Field(
        None,
        description=(
            "Heat map of each photo, a PNG to overlay on its view; empty where there is none; "
            "of the condition `next_step.decided_by`, or else of the first candidate."
        ),
    )
    thumbnails: tuple[str, ...] | None = Field(
        None,
        description=(
            "JPEG of each similar training image; empty where its licence forbids showing it."
        ),
    )
    pdf: str | None = Field(None, description="The report, to file or to take to a clinician.")
    patient_doubt: str | None = Field(
        None, description="Why `patient_id`, which the PDF names, may tell who the patient is."
    )
    wide_photos: tuple[int, ...] | None = Field(None, description=_WIDE)


def _example(**values: Any) -> ConfigDict:
    """Return the configuration of a body of which documentation shows these values."""
    return ConfigDict(json_schema_extra={"examples": [values]})


class RefusedPhoto(BaseModel):
    """Why one photo of the case is not judged."""

    photo: int = Field(description="Index of the photo in the case, from 0.")
    gate: Gate = Field(description="The check that refused it.")
    error: str = Field(
        description="What is wrong with it and what to do; a refusal says nothing about the lesion."
    )
    unless: Kind | Literal[""] = Field(
        "", description="The `modality` that a person may say to get an answer; empty: none helps."
    )


class RefusedStep(BaseModel):
    """What to do where the model gives no answer."""

    urgency: Urgency
    advice: str = Field(description="What to do.")
    sooner: str = Field(description="When to do it sooner; empty where the advice says it.")
    because: str = Field(description="The reason; empty where the advice has it.")


def step_of(step: UnansweredStep) -> dict[str, str]:
    """Return the next step after a refusal as the body of an error has it."""
    names = ("urgency", "advice", "sooner", "because")
    return {name: getattr(step, name) for name in names}


_BLURRED = unjudged(text("refused_blurred"))


class Problem(BaseModel):
    """Why there is no answer."""

    model_config = _example(
        error=_BLURRED,
        gate="blur",
        photo=0,
        refusals=[{"photo": 0, "gate": "blur", "error": _BLURRED, "unless": ""}],
        next_step=step_of(unanswered_step(Patient())),
    )
    error: str = Field(description="What is wrong and what to do, in one sentence.")
    gate: Gate | None = Field(
        None, description="The check that refused the first refused photo; null for another cause."
    )
    photo: int | None = Field(None, description="Index of the first refused photo, from 0.")
    refusals: tuple[RefusedPhoto, ...] = Field(
        (), description="Every refused photo with the reason; empty for another cause."
    )
    next_step: RefusedStep | None = Field(
        None, description="What to do all the same; null where no photo was refused."
    )
    wide_photos: tuple[int, ...] | None = Field(None, description=_WIDE)


def problems(meanings: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
    """Return the description of each status at which a route answers with a problem."""
    return {
        status: {"model": Problem, "description": meaning} for status, meaning in meanings.items()
    }


class Health(BaseModel):
    """The state of the server."""

    model_config = _example(
        status="ok",
        bundle="skindx-demo",
        version="9f2c1e0b7a55",
        digest="1b6453892473a467",
        evaluation="5c1f7a3e90d2b864",
        workers=2,
        ready=2,
        waiting=0,
        capacity=128,
        restarts=0,
        problem="",
    )
    status: str = Field(description="`ok`, or `unavailable` while no worker is ready.")
    bundle: str
    version: str = Field(description="SHA-256 over everything that decides an answer.")
    digest: str = Field(description="SHA-256 of the bundle's index, as `--expect` takes it.")
    evaluation: str = Field(description="SHA-256 of the evaluation beside it; empty: none.")
    workers: int
    ready: int = Field(description="Workers that are running.")
    waiting: int = Field(description="Cases that wait for a worker.")
    capacity: int = Field(description="Most cases that may wait; further cases get 503.")
    restarts: int = Field(description="Workers that ended and were started again.")
    problem: str = Field(description="Why the last worker ended; empty when none did.")


class ScanStatus(BaseModel):
    """A scan that was taken: how far it is, and what it found."""

    model_config = _example(
        id="kq1Yb0oHqk2vM7d3pXe5sT8uWcZfA9rL",
        url="/v1/scan/kq1Yb0oHqk2vM7d3pXe5sT8uWcZfA9rL",
        status="running",
        stage="searching",
        scans_before=0,
        tiles_done=48,
        tiles_known=182,
        error="",
        expires_at=None,
        result=None,
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


_LIMITS = ("minimum", "maximum")


def form_schema(most: int, used: Sequence[str] = ()) -> dict[str, Any]:
    """Return the OpenAPI description of a case as multipart form data.

    `used` are the facts about the person that change an answer.
    """

    def described(name: str) -> dict[str, Any]:
        fact, values = INTAKE[name], values_of(name)
        use = _USED if name in used else _UNUSED
        if fact.use == "thresholds":
            use = skin_type_chooses()
        if fact.use == "checklist":
            use = text("asks_means")
        kind = "integer" if INTAKE[name].number else "string"
        allowed = (
            {"enum": list(values)} if values else dict(zip(_LIMITS, limits_of(name), strict=True))
        )
        return {"type": kind, **allowed, "description": f"{fact.meaning} {use}"}

    fields: dict[str, Any] = {
        "photo": _photos(most, "photos of one place on the skin: JPEG, PNG, WebP, HEIC or DICOM."),
        **{name: described(name) for name in INTAKE},
    }
    fields["include"] = {
        "type": "string",
        "description": (
            f"What to return beside the diagnosis, separated by commas: {', '.join(INCLUDES)}."
        ),
        "example": "views,heat",
    }
    fields["exclude"] = {
        "type": "string",
        "enum": ["pdf"],
        "description": "FHIR leaves out the PDF report, which it carries as `presentedForm`.",
    }
    fields["language"] = {
        "type": "string",
        "enum": list(languages()),
        "description": "Language of the answer; another one gets English. Without it that of the "
        "server holds, or on one with `--language auto` that of `Accept-Language`.",
    }
    fields["modality"] = {
        "type": "string",
        "enum": list(get_args(Kind)),
        "description": "How a person says that the photos were taken: dermoscopic, through a "
        "dermatoscope, or clinical. A photo that the check of modality alone refuses is then "
        "answered, and `modality_said` says so. No other check is passed by it.",
    }
    fields["patient_id"] = {
        "type": "string",
        "maxLength": 64,
        "description": "A pseudonym or an ID of the patient, for the PDF report and FHIR.",
    }
    return _form(fields)


def scan_form_schema(most: int, scale: str) -> dict[str, Any]:
    """Return the OpenAPI description of a scan's form."""
    meaning = (
        "Millimetres in a pixel, of all photos; or once for each photo, in their order, "
        "`none` where unknown. Without it sizes are in pixels."
    )
    photos = _photos(most, "wide photos of one person: JPEG, PNG, WebP, TIFF, HEIC or DICOM.")
    return _form({"photo": photos, scale: {"type": "number", "description": meaning}})


def ruler_form_schema() -> dict[str, Any]:
    """Return the OpenAPI description of the form that asks for a ruler."""
    photo = {"type": "string", "format": "binary", "description": "One wide photo with a ruler."}
    return _form({"photo": photo})


def _photos(most: int, what: str) -> dict[str, Any]:
    return {
        "type": "array",
        "minItems": 1,
        "maxItems": most,
        "items": {"type": "string", "format": "binary"},
        "description": f"One to three {what}",
    }


def _form(fields: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "required": ["photo"], "properties": fields}
    return {"required": True, "content": {"multipart/form-data": {"schema": schema}}}


def problem(
    status: int,
    error: str,
    *,
    refused: Refused | None = None,
    retry_after_s: int | None = None,
    wide: Sequence[int] = (),
    step: UnansweredStep | None = None,
) -> Response:
    """Return an error in the form of the interface; `step` is what to do after a refusal."""
    headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}
    body: dict[str, Any] = {
        "error": sentence(error),
        "gate": refused.gate if refused else None,
        "photo": refused.photo if refused else None,
        "refusals": [
            {
                "photo": refusal.photo,
                "gate": refusal.gate,
                "error": sentence(refusal.text),
                "unless": refusal.unless,
            }
            for refusal in (refused.refusals if refused else ())
        ],
        "next_step": step_of(step) if step else None,
    }
    if wide:
        body["wide_photos"] = list(wide)
    return JSONResponse(body, status, headers)
