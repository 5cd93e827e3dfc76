"""Reports on kept cases: the PDF, FHIR and DICOM that a fresh answer has, under its pseudonym.

A case that a clinician gave another diagnosis has an amended report. Only the owner of a case gets
one. The case book keeps no heat maps and no similar images, and the report says so.
"""

import asyncio
import io
import zipfile
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from skindx.casebook.kept_case import KeptCase, filing_of
from skindx.casebook.lesion_state import lesion_state
from skindx.clinic.fhir import Attachments, Subject, fhir_json
from skindx.clinic.source_photos import Named
from skindx.core.errors import UserError
from skindx.core.machine import missing_modules, require_extra
from skindx.diagnosis.filing import Filing
from skindx.diagnosis.record import CaseAnswer, PhotoView
from skindx.diagnosis.report import PdfPart
from skindx.models.bundle.bundle import Bundle
from skindx.ui.http.answer_forms import CONTENT_TYPE, made_pdf, part_of_query, pdf_ending
from skindx.ui.http.api_schemas import problem
from skindx.ui.http.asgi import USER

if TYPE_CHECKING:
    from fastapi import APIRouter

    from skindx.casebook.casebook import Casebook

PATH = "/kept/{case}/{form}"
Metrics = dict[str, object] | None
MakeFile = Callable[[KeptCase, Filing, Metrics, datetime, PdfPart], bytes]


def pdf_of(
    case: KeptCase, filing: Filing, metrics: Metrics, when: datetime, part: PdfPart = "full"
) -> bytes:
    """Return the printed report. Raises UserError without fpdf2."""
    views = tuple(PhotoView(jpeg) for jpeg in case.photos)
    return made_pdf(CaseAnswer(case.diagnosis, views), metrics, when, filing, part)


def fhir_of(
    case: KeptCase, filing: Filing, metrics: Metrics, when: datetime, _: PdfPart = "full"
) -> bytes:
    """Return the FHIR bundle, with the PDF within. Raises UserError without fhir.resources."""
    printed = b"" if missing_modules("fpdf") else pdf_of(case, filing, metrics, when)
    attached = Attachments(pdf=printed)
    subject = Subject(filing.patient)
    return fhir_json(case.diagnosis, metrics, when, subject, attached, filing=filing)


def dicom_of(
    case: KeptCase, filing: Filing, metrics: Metrics, when: datetime, _part: PdfPart = "full"
) -> bytes:
    """Return a ZIP of the structured report and the wrapped photos. Raises UserError."""
    require_extra("clinic", "highdicom", "pydicom", purpose="a DICOM report")
    from skindx.clinic.report_files import dicom_files

    named, headers = Named(filing.patient), [None] * len(case.photos)
    report, wrapped, _ = dicom_files(
        case.diagnosis, case.photos, headers, metrics, when, named=named, filing=filing
    )
    files = {"report.dcm": report}
    files |= {f"report-photo-{number}.dcm": photo for number, photo in wrapped.items()}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, when.timetuple()[:6]), data)
    return packed.getvalue()


FORMS: dict[str, tuple[MakeFile, str]] = {
    "report.pdf": (pdf_of, "application/pdf"),
    "report.json": (fhir_of, CONTENT_TYPE),
    "report.zip": (dicom_of, "application/zip"),
}
"""What makes each file, and its media type."""


def kept_report_routes(book: "Casebook", bundle: Bundle) -> "APIRouter":
    """Return the router of the files in FORMS."""
    from fastapi import APIRouter

    from skindx.casebook.casebook import NoSuchCase

    router = APIRouter()
    making = asyncio.Semaphore(1)  # pure Python, as in `report_routes`
    measured = bundle.metrics()

    def made(owner: str, case_id: str, form: str, part: PdfPart) -> tuple[bytes, str]:
        case = book.case(owner, case_id)
        when = case.reported
        # Of another evaluation than the one that the answer rests on, no figure may stand here.
        same = case.diagnosis.source.evaluation == bundle.evaluation
        metrics = measured if same else None
        of_lesion = book.cases(owner, case.patient, case.lesion)
        state = lesion_state(book.lesion(owner, case), bundle.taxonomy)
        filing = filing_of(case, bundle.taxonomy, of_lesion)
        filing = replace(filing, is_untreated=state.diagnosed is not None)
        ending = form.rpartition(".")[2]
        ending = pdf_ending(part) if ending == "pdf" else ending
        return FORMS[form][0](case, filing, metrics, when, part), filing.file_name(when, ending)

    @router.get(PATH, include_in_schema=False)
    async def kept_report(case: str, form: str, request: Request) -> Response:
        owner = str(request.scope.get(USER) or "")
        if form not in FORMS:
            return problem(404, f"a kept case has no such file; it has {', '.join(FORMS)}.")
        try:
            part = part_of_query(request.query_params.get("part"))
            async with making:
                data, name = await asyncio.to_thread(made, owner, case, form, part)
        except NoSuchCase as error:
            return problem(404, str(error))
        except UserError as error:
            return problem(422, str(error))
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(data, media_type=FORMS[form][1], headers=headers)

    return router
