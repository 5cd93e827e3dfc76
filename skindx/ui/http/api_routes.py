"""The routes /v1/diagnose, /v1/health and /v1/metrics, and the interface described for people."""

import asyncio
import base64
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from skindx.clinic.fhir import MEDIA_TYPE
from skindx.core.errors import UserError
from skindx.diagnosis.case import MAX_PHOTOS, Case
from skindx.diagnosis.checklist_advice import unanswered_step
from skindx.diagnosis.filing import Filing
from skindx.diagnosis.network_gates import WideRule
from skindx.diagnosis.photo_checks import Refused
from skindx.diagnosis.record import CaseAnswer
from skindx.models.bundle.bundle import Bundle
from skindx.models.bundle.bundle_index import used_fields
from skindx.monitor.monitor_file import MonitorState, charts, class_rows, summary
from skindx.texts.catalogue import speaking
from skindx.ui.diagnosis_pool import Busy, Diagnoser, Unanswered
from skindx.ui.http.answer_forms import (
    NotAcceptable,
    check_included,
    fhir_answer,
    fhir_problem,
    made_pdf,
    name_doubt,
    wants_fhir,
)
from skindx.ui.http.api_schemas import INCLUDES, Answered, Health, form_schema, problem, problems
from skindx.ui.http.forms import AskedCase, read_case
from skindx.ui.http.server_metrics import Metrics
from skindx.ui.page_basics import render
from skindx.ui.scans.scan_job import seen_of_refused
from skindx.workers.worker_pool import PoolStatus

if TYPE_CHECKING:
    from fastapi import APIRouter


def docs_html(openapi: dict[str, Any]) -> str:
    """Return a page that lists routes, fields, answers and examples."""
    routes = _routes(openapi)
    return render(
        "docs.html.jinja", info=openapi["info"], routes=routes, values=_values(openapi, routes)
    )


def monitor_html(state: MonitorState) -> str:
    """Return the page of a monitor: alarms in words, a chart a stream, the mix of classes."""
    return render(
        "monitor.html.jinja",
        lines=summary(state),
        alarmed=bool(state.alarms),
        charts=charts(state),
        classes=class_rows(state),
        kept=len(state.numbers_KN),
    )


def _routes(openapi: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "method": method.upper(),
            "path": path,
            "summary": route.get("summary", ""),
            "about": route.get("description", ""),
            "fields": _fields(openapi, route),
            "answers": [
                {"status": status, "about": answer["description"], **_body(openapi, answer)}
                for status, answer in route["responses"].items()
            ],
        }
        for path, methods in openapi["paths"].items()
        for method, route in methods.items()
    ]


def _values(openapi: dict[str, Any], routes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the fields of every value that the routes' tables name, in the order of naming."""
    schemas = openapi.get("components", {}).get("schemas", {})
    rows_by_name: dict[str, list[dict[str, Any]]] = {}
    waiting = [row for route in routes for answer in route["answers"] for row in answer["rows"]]
    while waiting:
        kind = waiting.pop(0)["kind"]
        for name in set(kind.removeprefix("list of ").split(" or ")) & set(schemas) - set(
            rows_by_name
        ):
            rows_by_name[name] = _rows(openapi, schemas[name])
            waiting += rows_by_name[name]
    return [{"name": name, "rows": rows} for name, rows in rows_by_name.items()]


def _fields(openapi: dict[str, Any], route: dict[str, Any]) -> list[dict[str, Any]]:
    content = route.get("requestBody", {}).get("content", {})
    return [row for body in content.values() for row in _rows(openapi, body.get("schema", {}))]


def _body(openapi: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    schema = answer.get("content", {}).get("application/json", {}).get("schema", {})
    examples = _resolved(openapi, schema).get("examples", [])
    return {
        "rows": _rows(openapi, schema),
        "example": json.dumps(examples[0], indent=2, ensure_ascii=False) if examples else "",
    }


def _rows(openapi: dict[str, Any], schema: dict[str, Any]) -> list[dict[str, Any]]:
    resolved = _resolved(openapi, schema)
    needed = resolved.get("required", [])
    return [
        {
            "name": name,
            "kind": _kind(openapi, field),
            "needed": name in needed,
            "about": field.get("description", ""),
        }
        for name, field in resolved.get("properties", {}).items()
    ]


def _resolved(openapi: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    name = schema["$ref"].rpartition("/")[2]
    resolved: dict[str, Any] = openapi["components"]["schemas"][name]
    return resolved


def _kind(openapi: dict[str, Any], schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(str(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_kind(openapi, option) for option in schema["anyOf"])
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if schema.get("type") == "array":
        items = schema.get("items", {})
        return f"list of {_kind(openapi, items) if isinstance(items, dict) else 'values'}"
    return str(schema.get("format") or schema.get("type", "any"))


_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The diagnosis, and what `include` asked for; a FHIR Bundle where `Accept` "
        "prefers that.",
        "content": {MEDIA_TYPE: {"schema": {"type": "object"}}},
    },
    **problems(
        {
            400: "The form is invalid.",
            406: "`Accept` takes only FHIR that is not made here.",
            413: "The request is too large.",
            422: "A photo was refused.",
            500: "The server failed on this case.",
            503: "Too many cases wait; `Retry-After` says when to try again.",
        }
    ),
}


def routes(
    diagnoser: Diagnoser,
    metrics: Metrics,
    status: Callable[[], PoolStatus],
    bundle: Bundle,
    version: str,
    *,
    rule: WideRule | None = None,
) -> "APIRouter":
    """Return the router; `version` is the bundle's, `rule` says which photos are to be scanned.

    Without a rule no photo is.
    """
    from fastapi import APIRouter

    router = APIRouter(prefix="/v1")
    measured = bundle.metrics()

    @router.post(
        "/diagnose",
        response_model=Answered,
        responses=_ANSWERS,
        summary="Get a diagnosis: what a lesion may be, and what to do next",
        openapi_extra={"requestBody": form_schema(MAX_PHOTOS, used_fields(bundle.spec))},
    )
    async def diagnose(request: Request) -> Response:
        """Send 1 to 3 photos of one place on the skin.

        The photos are held in memory for this answer only and never stored, logged or sent on.

        `curl -F photo=@lesion.jpg -F age=54 -F include=pdf http://127.0.0.1:7860/v1/diagnose`

        `Accept: application/fhir+json` asks for a FHIR R4 Bundle with a DiagnosticReport, which
        carries the PDF report, and whose errors are OperationOutcomes.
        """
        start = time.perf_counter()
        failed: Callable[..., Response] = problem
        try:
            fhir = wants_fhir(request.headers.get("accept", ""))
            failed = fhir_problem if fhir else problem
            asked = await read_case(request)
            if fhir:
                check_included(asked.include)
        except UserError as error:
            metrics.ended("api", "bad-input", time.perf_counter() - start)
            return failed(406 if isinstance(error, NotAcceptable) else 400, str(error))
        with speaking(asked.case.language):
            try:
                answer = await diagnoser.diagnose(asked.case)
                if fhir:
                    return await fhir_answer(answer, asked, measured)
                seen = dict(enumerate(answer.diagnosis.photos))
                wide = tuple(rule.wide(seen)) if rule else ()
                return await asyncio.to_thread(_answer_body, answer, asked, measured, wide)
            except UserError as error:
                return _failure(error, failed, rule, asked.case)

    @router.get(
        "/health", response_model=Health, summary="Get the state of the server and its load"
    )
    def health() -> Response:
        """Return 503 while no worker is ready."""
        now = status()
        body = Health(
            status="ok" if now.ready else "unavailable",
            bundle=bundle.spec.name,
            version=version,
            digest=bundle.digest,
            evaluation=bundle.evaluation,
            **asdict(now),
        )
        return JSONResponse(body.model_dump(), 200 if now.ready else 503)

    @router.get(
        "/metrics",
        summary="Get counters and drift for Prometheus",
        responses={200: {"content": {"text/plain": {}}}},
        response_class=Response,
    )
    def read_metrics() -> Response:
        """Return Prometheus' text format 0.0.4."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router


def _failure(
    error: UserError, failed: Callable[..., Response], rule: WideRule | None, case: Case
) -> Response:
    """Return why there is no answer, in the form that `failed` gives it."""
    if isinstance(error, Refused):
        wide = tuple(rule.wide(seen_of_refused(error))) if rule else ()
        step = unanswered_step(case.patient)
        return failed(422, str(error), refused=error, wide=wide, step=step)
    if isinstance(error, Busy):
        return failed(503, str(error), retry_after_s=error.retry_after_s)
    return failed(500 if isinstance(error, Unanswered) else 422, str(error))


def _answer_body(
    answer: CaseAnswer,
    asked: AskedCase,
    measured: dict[str, Any] | None,
    wide: tuple[int, ...],
) -> Response:
    include = asked.include
    included: dict[str, Any] = {"wide_photos": wide} if wide else {}
    if "views" in include:
        included["views"] = [_text(view.jpeg) for view in answer.views]
    if "heat" in include:
        included["heat"] = [_text(view.heat) for view in answer.views]
    if "thumbnails" in include:
        included["thumbnails"] = [_text(thumbnail) for thumbnail in answer.thumbnails]
    if "pdf" in include:
        now, filing = datetime.now().astimezone(), Filing(asked.named.patient_id)
        included["pdf"] = _text(made_pdf(answer, measured, now, filing))
        if doubt := name_doubt(filing.patient):
            included["patient_doubt"] = doubt
    body = Answered(diagnosis=answer.diagnosis.named(), **included)
    unasked = {name for name in (*INCLUDES, "patient_doubt", "wide_photos") if name not in included}
    return Response(body.model_dump_json(exclude=unasked), media_type="application/json")


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
