"""FHIR from /v1/diagnose, for clients whose Accept header prefers it."""

from typing import Any

import httpx
import pytest
from clinical_answers import answered
from fastapi import FastAPI
from test_api import Fake, ask, served

from skindx.core.errors import UserError
from skindx.diagnosis.photo_checks import Refusal, Refused
from skindx.diagnosis.scope import not_judged
from skindx.ui.diagnosis_pool import Busy
from skindx.ui.http.answer_forms import NotAcceptable, wants_fhir

pytest.importorskip("fhir.resources", reason="fhir.resources is not installed: extra clinic")

FHIR = "application/fhir+json"


def diagnose(app: FastAPI, accept: str = FHIR, **options: Any) -> httpx.Response:
    options = {"files": {"photo": b"x"}, "headers": {"accept": accept}, **options}
    return ask(app, "POST", "/v1/diagnose", **options)


@pytest.mark.parametrize(
    ("accept", "fhir"),
    [
        (FHIR, True),
        ("Application/FHIR+JSON;charset=utf-8", True),
        (f"{FHIR}; fhirVersion=4.0", True),
        (f"{FHIR}, */*", True),
        (f"application/json;q=0.5, {FHIR};q=0.9", True),
        ("application/fhir+xml, application/fhir+json;q=0.5", True),
        ("", False),
        ("*/*", False),
        ("text/html, application/json", False),
        ("text/html", False),
        (f"{FHIR};q=0", False),
        (f"{FHIR};q=lots, */*", False),
        (f"application/json, {FHIR};q=0.9", False),
        ("application/fhir+xml, application/json", False),
    ],
)
def test_the_header_decides(accept: str, fhir: bool) -> None:
    assert wants_fhir(accept) is fhir


@pytest.mark.parametrize("accept", ["application/fhir+xml", f"{FHIR}; fhirVersion=5.0"])
def test_other_forms_of_fhir_are_refused_before_any_work(accept: str) -> None:
    fake = Fake(answered())
    app, _ = served(fake)
    before = fake.case
    refused = diagnose(app, accept)
    assert refused.status_code == 406
    assert "or application/json" in refused.json()["error"]
    assert fake.case is before


def test_the_answer_is_a_bundle_with_what_was_included() -> None:
    app, _ = served(Fake(answered()))
    answer = diagnose(app, data={"include": "views,pdf"})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == f"{FHIR}; fhirVersion=4.0"
    report, *others = (entry["resource"] for entry in answer.json()["entry"])
    assert report["presentedForm"][0]["contentType"] == "application/pdf"
    (media,) = (one for one in others if one["resourceType"] == "Media")
    assert media["content"]["contentType"] == "image/jpeg"
    assert "Patient" not in {one["resourceType"] for one in others}
    alone = diagnose(app).json()["entry"]  # the PDF comes unasked
    assert "presentedForm" in alone[0]["resource"]
    without = diagnose(app, data={"exclude": "pdf", "patient_id": "P-017"}).json()["entry"]
    assert "presentedForm" not in without[0]["resource"]
    (patient,) = (
        one["resource"] for one in without if one["resource"]["resourceType"] == "Patient"
    )
    assert patient["identifier"] == [{"value": "P-017"}]
    assert diagnose(app, "application/json").json()["diagnosis"]


@pytest.mark.parametrize(
    ("error", "options", "status", "code", "texts"),
    [
        (Refused.from_photos([Refusal(0, "blur", "it is blurred.")], 1), {}, 422, "processing",
         [f"It is blurred. {not_judged()}"]),
        (UserError("it is odd."), {}, 422, "processing", ["It is odd."]),
        (Busy(7), {}, 503, "throttled", None),
        (UserError("-"), {"data": {"age": "old"}}, 400, "invalid", None),
        (UserError("-"), {"data": {"include": "heat"}}, 400, "invalid", None),
        (UserError("-"), {"data": {"exclude": "views"}}, 400, "invalid", None),
        (UserError("-"), {"data": {"patient_id": "a\\b"}}, 400, "invalid", None),
    ],
)  # fmt: skip
def test_an_error_is_an_outcome(
    error: Exception, options: dict[str, Any], status: int, code: str, texts: list[str] | None
) -> None:
    app, _ = served(Fake(error))
    answer = diagnose(app, **options)
    assert (answer.status_code, answer.json()["resourceType"]) == (status, "OperationOutcome")
    assert answer.headers["content-type"] == f"{FHIR}; fhirVersion=4.0"
    issues = answer.json()["issue"]
    assert {issue["code"] for issue in issues} == {code}
    if texts:
        assert [issue["details"]["text"] for issue in issues] == texts
    assert answer.headers.get("retry-after") == ("7" if status == 503 else None)


def test_a_server_without_the_library_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skindx.core.machine.missing_modules", lambda *names: list(names))
    with pytest.raises(NotAcceptable, match=r"needs fhir, .*\[clinic\]"):
        wants_fhir(FHIR)
    assert not wants_fhir("application/json")
    app, _ = served(Fake(answered()))
    assert diagnose(app).status_code == 406
