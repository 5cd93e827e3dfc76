"""PDF reports of the page: of exactly the answer that was given, to the user it was given to."""

import base64
import gc
import weakref
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from echo_app import ask
from fastapi import FastAPI
from painted_answers import jpeg, rich

from skindx.core.errors import UserError
from skindx.diagnosis.case import Case, Patient
from skindx.diagnosis.filing import Filing
from skindx.diagnosis.photo_checks import Refused
from skindx.diagnosis.report import PdfPart
from skindx.diagnosis.report.answer_report import report_pdf
from skindx.diagnosis.report.unjudged_report import unjudged, unjudged_pdf
from skindx.ui.http.answer_forms import PATH, Reports, made_pdf, report_routes
from skindx.ui.http.asgi import USER, Message, Receive, Send

WHEN = datetime(2026, 3, 1, 9, 30, tzinfo=UTC)
ANSWER = rich(Case((jpeg(80, 60),)))


def asked(reports: Reports, sealed: str, user: str = "", query: str = "") -> httpx.Response:
    app = FastAPI()
    app.include_router(report_routes(reports))

    async def logged_in(scope: Message, receive: Receive, send: Send) -> None:
        await app({**scope, USER: user}, receive, send)

    return ask(logged_in, "POST", PATH + query, content=sealed.encode())


def test_a_sealed_answer_comes_back_as_its_report() -> None:
    reports = Reports({"pictures": 7})
    sealed = reports.sealed(ANSWER, WHEN, "ann")
    answered = asked(reports, sealed, "ann")
    assert answered.status_code == 200
    assert answered.headers["content-type"] == "application/pdf"
    assert answered.content == report_pdf(ANSWER, {"pictures": 7}, WHEN)


def test_a_pseudonym_after_the_seal_stands_in_the_record() -> None:
    reports = Reports(None)
    sealed = reports.sealed(ANSWER, WHEN, "ann")
    named = asked(reports, f"{sealed}\n P-017 ", "ann")
    assert named.content == report_pdf(ANSWER, None, WHEN, Filing("P-017"))
    assert "-P-017-20260301-093000-preliminary.pdf" in named.headers["content-disposition"]
    refused = asked(reports, f"{sealed}\n{'x' * 65}", "ann")
    assert (refused.status_code, "at most 64" in refused.json()["error"]) == (422, True)
    signed = asked(reports, f"{sealed}\nP-017\nAnn  Example\n", "ann")
    assert signed.content == report_pdf(
        ANSWER, None, WHEN, Filing("P-017", clinician="Ann Example")
    )
    refused = asked(reports, f"{sealed}\nP-017\n{'x' * 81}\n", "ann")
    assert (refused.status_code, "at most 80" in refused.json()["error"]) == (422, True)


def test_a_query_asks_for_a_part_of_the_report() -> None:
    reports = Reports(None)
    sealed = reports.sealed(ANSWER, WHEN, "ann")
    parts: tuple[PdfPart, ...] = ("short", "patient")
    for part in parts:
        sent = asked(reports, sealed, "ann", f"?part={part}")
        assert sent.content == report_pdf(ANSWER, None, WHEN, part=part)
        assert f"-preliminary.{part}.pdf" in sent.headers["content-disposition"]
    refused = asked(reports, sealed, "ann", "?part=whole")
    assert (refused.status_code, "valid: full, short" in refused.json()["error"]) == (422, True)


def test_a_refusal_is_sealed_too_and_gets_its_record() -> None:
    reports = Reports(None)
    error = Refused("blur", "The photo is too blurred.")
    case = unjudged(Case((jpeg(80, 60),), Patient(age=54)), error)
    sealed = reports.sealed(case, WHEN, "ann")
    named = asked(reports, f"{sealed}\nP-017", "ann")
    assert named.content == unjudged_pdf(case, WHEN, Filing("P-017"))
    assert "-P-017-20260301-093000-not-judged.pdf" in named.headers["content-disposition"]
    assert asked(reports, sealed, "bob").status_code == 422
    assert asked(reports, f"{sealed}\nMaria Schneider", "ann").json()["doubt"]


@pytest.mark.parametrize("name", ["Maria Schneider", "P 3 May 1961", "1234567890"])
def test_a_name_of_a_person_is_printed_only_where_somebody_says_that_it_is_none(name: str) -> None:
    reports = Reports(None)
    sealed = reports.sealed(ANSWER, WHEN, "ann")
    for body in (f"{sealed}\n{name}", f"{sealed}\n{name}\nann\n"):
        refused = asked(reports, body, "ann")
        said = refused.json()
        assert (refused.status_code, said["doubt"]) == (422, True)
        assert said["error"].startswith(f"The patient {name!r}")
        assert "use a pseudonym such as P-017" in said["error"]
        assert said["error"].endswith("tick the box below and ask for the report again.")
    told = asked(reports, f"{sealed}\n{name}\n\nyes", "ann")
    assert told.content == report_pdf(ANSWER, None, WHEN, Filing(name))


@pytest.mark.parametrize("changed", [0, 31, 32, 36, 200, -1])
def test_a_changed_answer_gets_no_report(changed: int) -> None:
    reports = Reports(None)
    data = bytearray(base64.b64decode(reports.sealed(ANSWER, WHEN, "")))
    data[changed] ^= 1
    refused = asked(reports, base64.b64encode(data).decode())
    assert refused.status_code == 422
    assert "get the answer again" in refused.json()["error"]


def test_nor_does_another_users_answer_or_one_from_before_a_restart() -> None:
    reports = Reports(None)
    sealed = reports.sealed(ANSWER, WHEN, "ann")
    refused = asked(reports, sealed, "bob")
    assert (refused.status_code, "another user" in refused.json()["error"]) == (422, True)
    with pytest.raises(UserError, match="since it was started"):
        Reports(None).pdf(sealed.encode(), "ann")


@pytest.mark.parametrize("sent", ["", "A", "AAAA", "no base64 é", "A" * 400])
def test_what_is_no_sealed_answer_is_refused_in_a_sentence(sent: str) -> None:
    refused = asked(Reports(None), sent)
    assert refused.status_code == 422
    assert refused.json()["error"].endswith("get the answer again.")


def test_what_reports_leave_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[weakref.ref[Any]] = []

    class Remains:
        """An object in a circle."""

    def leaving(*_: object) -> bytes:
        remains = Remains()
        remains.itself = remains  # type: ignore[attr-defined]
        left.append(weakref.ref(remains))
        return b"%PDF"

    monkeypatch.setattr("skindx.diagnosis.report.answer_report.report_pdf", leaving)
    gc.disable()
    try:
        for _ in range(20):
            made_pdf(ANSWER, None, WHEN)
            assert sum(one() is not None for one in left) <= 8
    finally:
        gc.enable()
