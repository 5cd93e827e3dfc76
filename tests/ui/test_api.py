"""The interface over made-up answers, and what it counts."""

import asyncio
import base64
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from painted_answers import WIDE, Painter, jpeg, wide

from skindx.core.errors import UserError
from skindx.diagnosis.case import Case
from skindx.diagnosis.network_gates import WideRule
from skindx.diagnosis.photo_checks import MAX_BYTES, Refusal, Refused
from skindx.diagnosis.record import CaseAnswer
from skindx.diagnosis.scope import not_judged
from skindx.texts.catalogue import text
from skindx.ui.diagnosis_pool import Busy, Unanswered
from skindx.ui.http.api_routes import docs_html, routes
from skindx.ui.http.server_metrics import (
    LEAST,
    CountingDiagnoser,
    Metrics,
    class_shares,
    score_shares,
    shift,
)
from skindx.workers.worker_pool import PoolStatus

STATUS = PoolStatus(workers=2, ready=1, waiting=3, capacity=9, restarts=4, problem="")
MEASURED: dict[str, Any] = {
    "classes": [{"key": "melanoma"}, {"key": "nevus"}],
    "confusion": [[3, 1], [1, 5]],
    "reliability": [{"high": 0.5, "n": 1}, {"high": 1.0, "n": 3}],
}


class Fake:
    """Answers what it was told to, and remembers the case."""

    def __init__(self, answer: CaseAnswer | Exception) -> None:
        self.answer, self.case = answer, Case((b"none",))

    async def diagnose(self, case: Case) -> CaseAnswer:
        self.case = case
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture(scope="module")
def painted() -> CaseAnswer:
    return asyncio.run(Painter().diagnose(Case((jpeg(640, 480),))))


BUNDLE: Any = SimpleNamespace(
    spec=SimpleNamespace(name="fake", metadata=None),
    digest="1b64" * 16,
    evaluation="",
    metrics=lambda: MEASURED,
    taxonomy=SimpleNamespace(keys=("melanoma", "nevus")),
)


def served(
    fake: Fake, status: PoolStatus = STATUS, rule: WideRule | None = None
) -> tuple[FastAPI, Metrics]:
    metrics = Metrics(BUNDLE, "0" * 64, lambda: status)
    app = FastAPI()
    watched = CountingDiagnoser(fake, metrics, "api")
    app.include_router(routes(watched, metrics, lambda: status, BUNDLE, "0" * 64, rule=rule))
    return app, metrics


def ask(app: FastAPI, method: str, path: str, **options: Any) -> httpx.Response:
    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.request(method, path, **options)

    return asyncio.run(asked())


def test_a_form_becomes_a_case(painted: CaseAnswer, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_disk(*_: object, **__: object) -> None:
        raise AssertionError("a photo was put on disk")

    monkeypatch.setattr("tempfile.SpooledTemporaryFile.rollover", on_disk)
    fake = Fake(painted)
    app, _ = served(fake)
    photos = [bytes([n]) * (3 << 20) for n in range(3)]
    reported = {"age": "54", "sex": "", "site": "back", "skin_type": "2", "include": "views,heat"}
    files = [("photo", (f"{n}.jpg", photo)) for n, photo in enumerate(photos)]
    answer = ask(app, "POST", "/v1/diagnose", files=files, data=reported)
    assert answer.status_code == 200
    assert fake.case.photos == tuple(photos)
    assert (fake.case.patient.age, fake.case.patient.site) == (54, "back")
    assert (fake.case.patient.sex, fake.case.patient.skin_type) == (None, 2)
    said = answer.json()
    assert said.keys() == {"diagnosis", "views", "heat"}
    assert said["diagnosis"]["notice"]
    assert [base64.b64decode(view) for view in said["views"]] == [v.jpeg for v in painted.views]
    pdf = ask(app, "POST", "/v1/diagnose", files={"photo": b"x"}, data={"include": "pdf"})
    assert base64.b64decode(pdf.json()["pdf"]).startswith(b"%PDF-")
    data = {"include": "pdf", "patient_id": "P-017"}
    named = ask(app, "POST", "/v1/diagnose", files={"photo": b"x"}, data=data)
    assert named.json().keys() == {"diagnosis", "pdf"}
    data["patient_id"] = "Maria Schneider"
    named = ask(app, "POST", "/v1/diagnose", files={"photo": b"x"}, data=data)
    assert "looks like the name of a person" in named.json()["patient_doubt"]
    alone = ask(app, "POST", "/v1/diagnose", files={"photo": b"x"})
    assert alone.json().keys() == {"diagnosis"}


def test_wide_photos_are_named_and_only_where_there_are_scans() -> None:
    answer = wide(Case((jpeg(WIDE, 500),)))
    (seen,) = answer.diagnosis.photos
    refused = Refused.from_photos([Refusal(0, "unfamiliar", "it is unlike others.", seen=seen)], 1)
    close = Refused.from_photos([Refusal(0, "unfamiliar", "it is unlike others.")], 1)
    for fake, status, rule, named in (
        (answer, 200, WideRule(), [0]),
        (answer, 200, None, None),
        (refused, 422, WideRule(), [0]),
        (close, 422, WideRule(), None),
    ):
        app, _ = served(Fake(fake), rule=rule)
        said = ask(app, "POST", "/v1/diagnose", files={"photo": b"x"})
        assert said.status_code == status
        assert said.json().get("wide_photos") == named


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"json": {}}, "multipart"),
        ({"data": {"age": "3"}}, "multipart"),
        ({"files": [("photo", b"x")] * 4}, "4 photos"),
        ({"files": [("photo", b"x")] * 9}, "cannot be read"),
        ({"files": {"other": b"x"}}, "'other'"),
        ({"files": {"photo": b"x"}, "data": {"age": "old"}}, "age 'old'"),
        ({"files": {"photo": b"x"}, "data": {"age": "400"}}, "120"),
        ({"files": {"photo": b"x"}, "data": {"site": "nowhere"}}, "site"),
        ({"files": {"photo": b"x"}, "data": {"name": "Eve"}}, "unknown field 'name'"),
        ({"files": {"photo": b"x"}, "data": {"include": "all"}}, "'all' cannot be included"),
        ({"files": {"photo": b"x"}, "data": {"age": "x" * 5000}}, "exceeded"),
        ({"content": b"--x", "headers": {"content-type": "multipart/form-data"}}, "boundary"),
    ],
)
def test_a_wrong_form_is_one_sentence(
    painted: CaseAnswer, request_: dict[str, Any], said: str
) -> None:
    app, _ = served(Fake(painted))
    answer = ask(app, "POST", "/v1/diagnose", **request_)
    assert answer.status_code == 400
    assert said.lower() in answer.json()["error"].lower()
    assert answer.json()["error"].endswith(".")


@pytest.mark.parametrize(
    ("error", "status", "gate", "outcome"),
    [
        (Refused("blur", "it is blurred.", 1), 422, "blur", "refused"),
        (UserError("it is odd."), 422, None, "bad-input"),
        (Busy(7), 503, None, "busy"),
        (Unanswered("no answer."), 500, None, "failed"),
    ],
)
def test_errors_are_reported_and_counted(
    error: Exception, status: int, gate: str | None, outcome: str
) -> None:
    app, metrics = served(Fake(error))
    answer = ask(app, "POST", "/v1/diagnose", files={"photo": b"x"})
    assert answer.status_code == status
    said = answer.json()
    assert said["error"].lower() == str(error).lower()
    assert said["gate"] == gate
    assert said["photo"] == (1 if gate else None)
    assert answer.headers.get("retry-after") == ("7" if status == 503 else None)
    text = metrics.text().decode()
    assert f'skindx_cases_total{{outcome="{outcome}",way="api"}} 1.0' in text
    assert ('skindx_refusals_total{gate="blur"} 1.0' in text) == (gate == "blur")


def test_a_person_may_say_how_a_photo_was_taken() -> None:
    other = Refusal(0, "modality", "it seems to be no such photo.", unless="dermoscopic")
    fake = Fake(Refused.from_photos([other], 1, "Examine it now."))
    app, _ = served(fake)
    said = ask(app, "POST", "/v1/diagnose", files={"photo": b"x"})
    body = said.json()
    assert (said.status_code, body["refusals"][0]["unless"]) == (422, "dermoscopic")
    assert body["refusals"][0]["error"].startswith("Examine it now. ")
    assert body["next_step"]["advice"] == text("advice_now")
    assert fake.case.modality == ""
    ask(app, "POST", "/v1/diagnose", files={"photo": b"x"}, data={"modality": "dermoscopic"})
    assert fake.case.modality == "dermoscopic"
    wrong = ask(app, "POST", "/v1/diagnose", files={"photo": b"x"}, data={"modality": "macro"})
    assert (wrong.status_code, "dermoscopic" in wrong.json()["error"]) == (400, True)


def test_every_refused_photo_is_reported_and_counted() -> None:
    two = (Refusal(0, "blur", "it is blurred."), Refusal(2, "light", "it is dark."))
    app, metrics = served(Fake(Refused.from_photos(two, 3)))
    said = ask(
        app, "POST", "/v1/diagnose", files=[("photo", one) for one in (b"x", b"y", b"z")]
    ).json()
    assert said == {
        "error": f"Photo 1: it is blurred. Photo 3: it is dark. {not_judged()}",
        "gate": "blur",
        "photo": 0,
        "refusals": [
            {"photo": 0, "gate": "blur", "error": f"It is blurred. {not_judged()}", "unless": ""},
            {"photo": 2, "gate": "light", "error": f"It is dark. {not_judged()}", "unless": ""},
        ],
        "next_step": {
            "urgency": "unknown",
            "advice": "Examine or refer the lesion now, without waiting for another photo.",
            "sooner": "Refer it within days if it looks suspicious, is new, grows, changes, "
            "bleeds, hurts or does not heal.",
            "because": "",
        },
    }
    text = metrics.text().decode()
    for gate in ("blur", "light"):
        assert f'skindx_refusals_total{{gate="{gate}"}} 1.0' in text


def test_health_tells_when_nobody_works(painted: CaseAnswer) -> None:
    app, _ = served(Fake(painted))
    said = ask(app, "GET", "/v1/health")
    assert said.status_code == 200
    assert said.json()["ready"] == 1
    assert said.json()["digest"] == BUNDLE.digest
    app, _ = served(Fake(painted), replace(STATUS, ready=0))
    assert ask(app, "GET", "/v1/health").status_code == 503


def test_the_description_is_whole(painted: CaseAnswer) -> None:
    app, _ = served(Fake(painted))
    described = app.openapi()
    assert set(described["paths"]) == {"/v1/diagnose", "/v1/health", "/v1/metrics"}
    form = described["paths"]["/v1/diagnose"]["post"]["requestBody"]["content"]
    fields = form["multipart/form-data"]["schema"]["properties"]
    assert "skin_type" in fields
    assert str(MAX_BYTES >> 20)  # the limit itself is told by 413's sentence
    html = docs_html(described)
    assert "it rules out no disease" in html
    for name in (*fields, "/v1/metrics", "Retry-After", "too blurred"):
        assert name in html
    # What is inside a diagnosis is described too, down to the boxes of a photo.
    for name in (
        "candidates",
        "in_set",
        "urgent_missed",
        "x1",
        "Most probable first",
        "unknown_urgent",
    ):
        assert name in html
    assert html.count("<code>LesionBox</code>") == 1
    assert html.count("<code>RefusedPhoto</code>") == 1
    assert "The share of true conditions that the sets were fitted to hold" in html
    assert '<pre tabindex="0">curl -F' in html


def test_what_is_answered_is_counted(painted: CaseAnswer) -> None:
    app, metrics = served(Fake(painted))
    for _ in range(3):
        ask(app, "POST", "/v1/diagnose", files={"photo": b"x"})
    assert ask(app, "POST", "/v1/diagnose", files={"photo": b"x"}, data={"site": "knee"}).is_error
    text = ask(app, "GET", "/v1/metrics").text
    assert 'skindx_cases_total{outcome="bad-input",way="api"} 1.0' in text
    first = painted.diagnosis.candidates[0].key
    assert f'skindx_class_first_total{{key="{first}"}} 3.0' in text
    assert f'skindx_urgency_total{{tier="{painted.diagnosis.next_step.urgency}"}} 3.0' in text
    assert 'skindx_case_seconds_count{way="api"} 4.0' in text
    for line in (
        "skindx_queue_depth 3.0",
        "skindx_workers_ready 1.0",
        "skindx_worker_restarts 4.0",
    ):
        assert line in text
    assert 'skindx_class_first_expected{key="melanoma"} 0.4' in text
    assert 'skindx_top_probability_expected{le="0.5"} 0.25' in text
    assert "skindx_class_first_shift NaN" in text
    for _ in range(LEAST):
        metrics.answered(painted.diagnosis)
    assert "skindx_class_first_shift NaN" not in metrics.text().decode()


def test_expected_shares_by_hand() -> None:
    assert class_shares(MEASURED) == {"melanoma": 0.4, "nevus": 0.6}
    assert score_shares(MEASURED) == {0.5: 0.25, 1.0: 0.75}
    for none in (None, {}, {"classes": 3}, {"reliability": [{}]}, {"confusion": [[0]]}):
        assert class_shares(none) == {}  # type: ignore[arg-type]
        assert score_shares(none) == {}  # type: ignore[arg-type]


def test_the_index_by_hand() -> None:
    assert shift([0.5, 0.5], [0.5, 0.5]) == 0
    assert shift([0.75, 0.25], [0.25, 0.75]) == pytest.approx(1.0986122887)  # 0.5 ln 3 twice


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_the_index_is_symmetric_and_never_negative(shares: list[float]) -> None:
    other = shares[::-1]
    assert shift(shares, other) == pytest.approx(shift(other, shares))
    assert shift(shares, other) >= 0
