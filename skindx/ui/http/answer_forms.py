"""Answers as PDF reports, one at a time, and in FHIR for a client whose Accept header prefers it.

The server keeps no answer. So what a report is made of lies in the page, with a seal (HMAC-SHA256,
RFC 2104) under a key that this process alone has: nobody can have another answer printed as one of
this server's. A report is some megabytes of objects that refer to each other in circles. Python
frees those only when it collects garbage, which by its own count of objects comes after hundreds of
reports, so it is collected here.
"""

import asyncio
import base64
import gc
import hashlib
import hmac
import itertools
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from io import BytesIO
from typing import TYPE_CHECKING, Any, cast, get_args

from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from skindx.casebook.case_names import LONGEST_NAME, IdentifyingName, identifying
from skindx.clinic.fhir import MEDIA_TYPE, VERSION, Attachments, fhir_json, outcome, require_fhir
from skindx.clinic.report_files import subject_of
from skindx.clinic.source_photos import Named, read_headers
from skindx.core.errors import UserError
from skindx.core.machine import missing_modules
from skindx.diagnosis.checklist_advice import UnansweredStep
from skindx.diagnosis.filing import NOT_FILED, Filing
from skindx.diagnosis.photo_checks import Refused
from skindx.diagnosis.record import CaseAnswer
from skindx.diagnosis.report import PdfPart
from skindx.diagnosis.report.unjudged_report import UnjudgedCase, unjudged_pdf
from skindx.texts.catalogue import text
from skindx.ui.http.api_schemas import problem
from skindx.ui.http.asgi import USER
from skindx.ui.http.forms import AskedCase
from skindx.ui.page_basics import sentence
from skindx.workers import worker_process

if TYPE_CHECKING:
    from fastapi import APIRouter


_EVERY = 8
"""Reports from one collection to the next: their remains take some tens of megabytes."""
_THRESHOLDS = (2_000, 10, 10)

# Pure Python, so that two at a time would only slow each other down, and the page with them.
_making = threading.Lock()
_made = itertools.count(1)


def made_pdf(
    answer: CaseAnswer,
    metrics: dict[str, Any] | None,
    when: datetime,
    filing: Filing = NOT_FILED,
    part: PdfPart = "full",
) -> bytes:
    """Return the report on an answer as `report_pdf` does. Raises UserError without fpdf2."""
    from skindx.diagnosis.report.answer_report import report_pdf

    with _making:
        try:
            return report_pdf(answer, metrics, when, filing, part)
        finally:
            if next(_made) % _EVERY == 0:
                gc.collect()


def settle() -> None:
    """Leave what a server has imported and built out of every later collection of garbage.

    Then a collection looks through requests alone, takes milliseconds, and may come often.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


SEALED_BYTES = 32 << 20
"""More than a sealed answer has: three photos of 1280 pixels with heat maps, in base64."""
_TAG_BYTES = hashlib.sha256().digest_size
_BROKEN = (
    "this answer is not one that the server gave since it was started, so there is no report on "
    "it; get the answer again."
)
_ANOTHER_USERS = "this answer was given to another user; get the answer again."


class Reports:
    """Seals answers, and makes the reports on those that come back; `metrics` are the bundle's."""

    def __init__(self, metrics: dict[str, Any] | None) -> None:
        self._metrics, self._key = metrics, secrets.token_bytes(32)

    def sealed(self, answer: CaseAnswer | UnjudgedCase, when: datetime, user: str) -> str:
        """Return an answer given at `when` to `user` ("" without logins) as base64 with a seal.

        A case without an answer has a record of its refusal.
        """
        kind = "unjudged"
        if isinstance(answer, CaseAnswer):
            kind, answer = "answer", replace(answer, features=())
        plain = worker_process.plain(answer)
        packed = worker_process.pack({"user": user, "when": when.isoformat(), kind: plain})
        return base64.b64encode(self._tag(packed) + packed).decode()

    def pdf(self, sent: bytes, user: str, part: PdfPart = "full") -> tuple[bytes, str]:
        """Return the report on a sealed answer, and its name; the same answer gives the same bytes.

        Lines after the seal, which it does not cover: the patient's pseudonym, the clinician's
        name, and `yes` where the pseudonym names nobody although it may seem so. Raises
        IdentifyingName for one that seems so, UserError for anything else, for another user's
        answer, and without fpdf2.
        """
        sealed, *lines = sent.split(b"\n")
        said = [" ".join(line.decode("utf-8", "replace").split()) for line in lines]
        patient, clinician, no_person = (*said, "", "", "")[:3]
        try:
            data = base64.b64decode(sealed, validate=True)
        except ValueError:
            raise UserError(_BROKEN) from None
        tag, packed = data[:_TAG_BYTES], data[_TAG_BYTES:]
        if not hmac.compare_digest(tag, self._tag(packed)):  # before anything of it is parsed
            raise UserError(_BROKEN)
        message = worker_process.receive(BytesIO(packed).read)
        if message["user"] != user:
            raise UserError(_ANOTHER_USERS)
        if len(clinician) > LONGEST_NAME:
            raise UserError(text("finding_clinician", most=LONGEST_NAME))
        filing = Filing(Named(patient).patient_id, clinician=clinician)
        if no_person != "yes" and (doubt := name_doubt(patient)):
            raise IdentifyingName(f"{doubt} {text('report_names_nobody')}")
        when, name = datetime.fromisoformat(message["when"]), filing.file_name
        if "unjudged" in message:
            case = worker_process.rebuilt(UnjudgedCase, message["unjudged"])
            with _making:
                printed = unjudged_pdf(case, when, filing, part)
            return printed, name(when, pdf_ending(part), "not-judged")
        answer = worker_process.rebuilt(CaseAnswer, message["answer"])
        printed = made_pdf(answer, self._metrics, when, filing, part)
        return printed, name(when, pdf_ending(part))

    def _tag(self, packed: bytes) -> bytes:
        return hmac.digest(self._key, packed, "sha256")


def part_of_query(value: str | None) -> PdfPart:
    """Return which part of a report a query asks for. Raises UserError for none that there is."""
    for part in get_args(PdfPart):
        if (value or "full") == part:
            return cast(PdfPart, part)
    valid = ", ".join(get_args(PdfPart))
    raise UserError(f"a report has no part {(value or '')[:20]!r}; valid: {valid}.")


def pdf_ending(part: PdfPart) -> str:
    """Return how the file of a part ends, so that no two parts have one name."""
    return "pdf" if part == "full" else f"{part}.pdf"


def name_doubt(patient: str) -> str:
    """Return in a sentence why a patient's name on a report may tell who it is; "" for nothing."""
    return sentence(identifying(patient, "", "lesion")) if patient else ""


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
            part = part_of_query(request.query_params.get("part"))
            sealed = await request.body()
            async with making:
                pdf, name = await asyncio.to_thread(reports.pdf, sealed, user, part)
        except ClientDisconnect:
            return Response(status_code=400)
        except IdentifyingName as error:
            return JSONResponse({"error": str(error), "doubt": True}, 422)
        except UserError as error:
            return problem(422, str(error))
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(pdf, media_type="application/pdf", headers=headers)

    return router


CONTENT_TYPE = f"{MEDIA_TYPE}; fhirVersion={VERSION}"
INCLUDED = ("views", "pdf")
"""What a FHIR bundle can carry of what may be included: as Media and as the report's form, which
comes unasked."""
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
            "the Accept header requests a form of FHIR that this server does not have; request "
            f"{CONTENT_TYPE} or application/json."
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
                f"an answer in FHIR cannot include {part!r}; include {' or '.join(INCLUDED)}, or "
                "request application/json."
            )


async def fhir_answer(
    answer: CaseAnswer, asked: AskedCase, metrics: dict[str, Any] | None
) -> Response:
    """Return an answer as a FHIR Bundle, about whom the form or DICOM photos name.

    It carries the PDF report unless the form excludes it, or fpdf2 is not installed.
    """
    return await asyncio.to_thread(_fhir_body, answer, asked, metrics)


def _fhir_body(answer: CaseAnswer, asked: AskedCase, metrics: dict[str, Any] | None) -> Response:
    when = datetime.now().astimezone()
    subject = subject_of(read_headers(asked.case.photos, asked.named), asked.named)
    printed = "pdf" not in asked.exclude and not missing_modules("fpdf")
    filing = Filing(subject.patient_id)
    attached = Attachments(
        photos=[view.jpeg for view in answer.views] if "views" in asked.include else (),
        pdf=made_pdf(answer, metrics, when, filing) if printed else b"",
    )
    body = fhir_json(answer.diagnosis, metrics, when, subject, attached)
    return Response(body, media_type=CONTENT_TYPE)


def fhir_problem(
    status: int,
    error: str,
    *,
    refused: Refused | None = None,
    retry_after_s: int | None = None,
    wide: Sequence[int] = (),
    step: UnansweredStep | None = None,  # each refusal says what to do
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
