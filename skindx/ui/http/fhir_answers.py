"""Answers of /v1/diagnose in FHIR, for a client whose Accept header prefers it."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from python_multipart.multipart import parse_options_header
from starlette.responses import JSONResponse, Response

from skindx.clinic.fhir import MEDIA_TYPE, VERSION, Attachments, fhir_json, outcome, require_fhir
from skindx.clinic.source_photos import Named, read_headers
from skindx.clinic.structured_report import subject_of
from skindx.core.errors import UserError
from skindx.diagnosis.photo_checks import Refused
from skindx.diagnosis.record import CaseAnswer
from skindx.ui.http.pdf_reports import made_pdf
from skindx.ui.page_basics import sentence

CONTENT_TYPE = f"{MEDIA_TYPE}; fhirVersion={VERSION}"
INCLUDED = ("views", "pdf")
"""What a FHIR bundle can carry of what may be included: as Media and as the report's form."""
_ABOUT_JSON = {"application/json", "application/*", "*/*"}


class NotAcceptable(UserError):  # noqa: N818
    """A client takes only forms of an answer that the server does not make."""


def wants_fhir(accept: str) -> bool:
    """Return whether an Accept header prefers FHIR to our JSON, which is also the answer to none.

    Raises NotAcceptable for a header that takes FHIR in other forms alone. A header that names
    neither gets JSON, as clients do that were written before there was a choice.
    """
    fhir = json = 0.0
    other = False
    for part in accept.split(","):
        media_type, options = _media_type(part)
        if media_type == MEDIA_TYPE and options.get("fhirversion", VERSION) == VERSION:
            fhir = max(fhir, _weight(options))
        elif media_type in _ABOUT_JSON:
            json = max(json, _weight(options))
        else:
            other |= media_type.startswith("application/fhir+")
    if other and not fhir and not json:
        raise NotAcceptable(
            f"FHIR is answered as {CONTENT_TYPE} alone; ask for that, or for application/json."
        )
    if not fhir or fhir < json:
        return False
    try:
        require_fhir("an answer in FHIR")
    except UserError as error:
        raise NotAcceptable(str(error)) from None
    return True


def _media_type(part: str) -> tuple[str, Mapping[str, str]]:
    media_type, options = parse_options_header(part.strip())
    values = {name.decode().lower(): value.decode("latin-1") for name, value in options.items()}
    return media_type.decode("latin-1").lower(), values


def _weight(options: Mapping[str, str]) -> float:
    try:
        weight = float(options.get("q", "1"))
    except ValueError:
        return 0.0
    return weight if 0 <= weight <= 1 else 0.0


def check_included(include: Sequence[str]) -> None:
    """Raise UserError for a part that FHIR has no place for."""
    for part in include:
        if part not in INCLUDED:
            raise UserError(
                f"{part!r} has no place in FHIR; include {' or '.join(INCLUDED)}, or ask for "
                "application/json."
            )


async def fhir_answer(
    answer: CaseAnswer,
    photos: Sequence[bytes],
    include: Sequence[str],
    metrics: dict[str, Any] | None,
) -> Response:
    """Return an answer as a FHIR Bundle, about whom DICOM photos name."""
    return await asyncio.to_thread(_made, answer, photos, include, metrics)


def _made(
    answer: CaseAnswer,
    photos: Sequence[bytes],
    include: Sequence[str],
    metrics: dict[str, Any] | None,
) -> Response:
    when = datetime.now().astimezone()
    attached = Attachments(
        photos=[view.jpeg for view in answer.views] if "views" in include else (),
        pdf=made_pdf(answer, metrics, when) if "pdf" in include else b"",
    )
    subject = subject_of(read_headers(photos, Named()))
    body = fhir_json(answer.diagnosis, metrics, when, subject, attached)
    return Response(body, media_type=CONTENT_TYPE)


def fhir_problem(
    status: int,
    error: str,
    *,
    refused: Refused | None = None,
    retry_after_s: int | None = None,
    wide: Sequence[int] = (),
) -> Response:
    """Return an error as an OperationOutcome; takes what `api_schemas.problem` takes."""
    headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}
    body = outcome(status, sentence(error), refused)
    if wide:
        photos = ", ".join(str(place + 1) for place in wide)
        text = f"Several lesions, each small against the photo: {photos}; /v1/scan judges each."
        body["issue"].append(
            {"severity": "information", "code": "informational", "details": {"text": text}}
        )
    return JSONResponse(body, status, headers, media_type=CONTENT_TYPE)
