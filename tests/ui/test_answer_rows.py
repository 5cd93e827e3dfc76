"""Rows of many photos for the page: as predictions have them, and two at a time for a client."""

import asyncio
import csv
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from clinical_answers import WHEN
from clinical_answers import answered as clinical
from echo_app import ask
from fastapi import FastAPI
from painted_answers import BLURRED, CLOSE, Painter, jpeg
from pdf_words import words_of
from skin_photo import skin_photo

from skindx.api.predictions import iter_predictions
from skindx.core.errors import UserError
from skindx.diagnosis.case import Case
from skindx.diagnosis.diagnose import answer_many
from skindx.diagnosis.predictor import Predictor
from skindx.diagnosis.record import CaseAnswer
from skindx.diagnosis.report import pdf_sheet
from skindx.diagnosis.report.answer_report import report_pdf
from skindx.models.bundle.bundle import open_bundle
from skindx.ui.answers_page import shown_row
from skindx.ui.diagnosis_pool import Busy, Diagnoser
from skindx.ui.http.answer_rows import AT_A_TIME, COLUMNS, PATH, answer_row_routes, row_of


def app_of(diagnoser: Diagnoser, bundle: Path) -> FastAPI:
    app = FastAPI()
    app.include_router(answer_row_routes(diagnoser, open_bundle(bundle)))
    return app


def sent(photo: bytes, **fields: str) -> dict[str, Any]:
    return {"files": {"photo": ("photo", photo)}, "data": fields}


def test_a_row_has_what_a_prediction_of_the_photo_has(whole_bundle: Path) -> None:
    predictor = Predictor.load(whole_bundle)
    photos = [skin_photo(seed=1), skin_photo(blur=9), b"no photo", skin_photo(seed=2)]
    [batch] = iter_predictions(predictor, photos)
    named = [name for name in batch.schema.names if not name.startswith("probability_")]
    assert {"model_urgency", "checklist_score", "checklist_items"} < {*named}
    named = [one for one in named if one != "model_urgency" and not one.startswith("checklist_")]
    assert list(COLUMNS) == named
    guide = Path(__file__).parents[2] / "docs/howto/diagnose.md"
    assert [name for name in named if f"`{name}`" not in guide.read_text(encoding="utf-8")] == []
    rows = [row_of(one) for one in answer_many(predictor, [Case((photo,)) for photo in photos])]
    assert any(row["refused"] for row in rows)
    for row, predicted in zip(rows, batch.to_pylist(), strict=True):
        expected = {name: predicted[name] for name in COLUMNS[2:]}
        assert row == {
            name: pytest.approx(value, abs=1e-5) if isinstance(value, float) else value
            for name, value in expected.items()
        }


def test_an_answer_comes_as_text_to_show_and_as_a_line_without_formulas(tiny_bundle: Path) -> None:
    app = app_of(Painter(), tiny_bundle)
    answer = ask(app, "POST", PATH, **sent(jpeg(80, 60), file='=HYPERLINK("x")')).json()
    [cells] = csv.reader([answer["csv"]])
    assert cells[0] == '\'=HYPERLINK("x")'
    assert len(cells) == len(COLUMNS)
    assert answer["shown"]["kind"] == "soon"
    refused = ask(app, "POST", PATH, **sent(jpeg(BLURRED, 60), file="a.jpg"))
    assert refused.status_code == 200
    assert refused.json()["shown"]["text"].startswith("The photo is blurred")
    assert refused.json()["shown"]["to_say"] == {}


def test_a_row_offers_to_say_how_its_photo_was_taken_and_says_what_was_said(
    tiny_bundle: Path,
) -> None:
    app = app_of(Painter(), tiny_bundle)
    refused = ask(app, "POST", PATH, **sent(jpeg(CLOSE, 60), file="a.jpg")).json()["shown"]
    assert refused["kind"] == "refused"
    assert refused["to_say"]["unless"] == "dermoscopic"
    form = sent(jpeg(CLOSE, 60), file="a.jpg", modality="dermoscopic")
    answer = ask(app, "POST", PATH, **form).json()
    assert answer["shown"]["kind"] == "urgent"
    assert "If no dermatoscope was used" in answer["shown"]["warning"]
    assert answer["shown"]["warning"] not in answer["shown"]["remarks"]  # it is shown once
    [cells] = csv.reader([answer["csv"]])
    assert cells[-1].startswith(answer["shown"]["warning"])


NAMES = {"mel": "Melanoma", "nv": "Nevus", "akiec": "Actinic keratosis"}
ROW = dict.fromkeys(COLUMNS) | {
    "file": "a.jpg", "abstained": "", "first": "nv", "probability": 0.784, "set": ["nv", "mel"],
    "urgent_risk": 0.1, "urgent_threshold": 0.03, "soon_risk": 0.15, "soon_threshold": 0.12,
}  # fmt: skip


def test_a_row_leads_with_the_condition_that_decides_and_the_risk_that_did() -> None:
    urgent = shown_row(ROW | {"urgency": "urgent", "decided_by": "mel"}, "", NAMES)
    assert urgent["first"] == "because of Melanoma"
    assert urgent["text"] == "The likeliest is Nevus, 78 %. It may be Nevus and Melanoma."
    assert urgent["risks"] == [("10 %", "risk of urgent, urgent from 3 %")]
    raised = {"urgency": "soon", "decided_by": "akiec", "urgent_risk": 0.01}
    soon = shown_row(ROW | raised, "", NAMES)
    assert soon["first"] == "because of Actinic keratosis"
    assert soon["risks"] == [
        ("15 %", "risk of urgent or soon, soon from 12 %"),
        ("1 %", "risk of urgent, urgent from 3 %"),
    ]
    not_ruled_out = shown_row(ROW | raised | {"soon_risk": 0.02}, "", NAMES)  # the set did
    assert [name for _, name in not_ruled_out["risks"]] == ["risk of urgent, urgent from 3 %"]
    likeliest = shown_row(ROW | {"urgency": "routine", "decided_by": "nv"}, "", NAMES)
    assert (likeliest["first"], likeliest["text"]) == (
        "Nevus, 78 %",
        "It may be Nevus and Melanoma.",
    )
    unsure = shown_row(
        ROW | {"urgency": "urgent", "decided_by": "mel", "abstained": "Blur."}, "", NAMES
    )
    said = ("Melanoma is suspected.", "The model is not sure. Blur.")
    assert (unsure["first"], unsure["text"]) == said
    unsure = shown_row(ROW | raised | {"abstained": "Blur."}, "", NAMES)
    assert (unsure["first"], unsure["text"]) == ("", "The model does not know. Blur.")


@pytest.mark.parametrize(
    "form",
    [
        sent(b"x", age="3"),
        sent(b"photo", modality="x-ray"),
        {"data": {"file": "a"}, "files": {"picture": ("a", b"x")}},
        {"files": [("photo", ("a", b"x")), ("photo", ("b", b"x"))]},
        {"content": b"x"},
    ],
)
def test_another_form_is_refused_in_a_sentence(tiny_bundle: Path, form: dict[str, Any]) -> None:
    answer = ask(app_of(Painter(), tiny_bundle), "POST", PATH, **form)
    assert answer.status_code == 400
    assert re.search("photo|modality", answer.json()["error"])


def test_a_client_has_two_photos_at_a_time_and_a_full_server_says_when_to_come_again(
    tiny_bundle: Path,
) -> None:
    class Waiting(Painter):
        begun, free = 0, asyncio.Event()

        async def diagnose(self, case: Case) -> CaseAnswer:
            self.begun += 1
            if self.begun > AT_A_TIME:
                raise Busy(7)
            await self.free.wait()
            return await super().diagnose(case)

    waiting = Waiting()
    app = app_of(waiting, tiny_bundle)

    async def asked() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            form = sent(jpeg(80, 60), file="a.jpg")
            first = [asyncio.create_task(client.post(PATH, **form)) for _ in range(AT_A_TIME)]
            while waiting.begun < AT_A_TIME:
                await asyncio.sleep(0.01)
            refused = await client.post(PATH, **form)
            waiting.free.set()
            return [*await asyncio.gather(*first), refused, await client.post(PATH, **form)]

    answers = asyncio.run(asked())
    assert [answer.status_code for answer in answers] == [200, 200, 429, 503]
    assert [answer.headers["retry-after"] for answer in answers[2:]] == ["1", "7"]


def test_a_fault_of_the_server_is_a_row_that_says_so(tiny_bundle: Path) -> None:
    class Failing(Painter):
        async def diagnose(self, case: Case) -> CaseAnswer:
            raise UserError("the photo could not be judged, the server failed at it.")

    answer = ask(app_of(Failing(), tiny_bundle), "POST", PATH, **sent(b"x", file="a.jpg"))
    assert answer.json()["csv"].split(",")[4] == "failed"


@pytest.mark.parametrize("abstained", [False, True])
def test_a_row_says_what_the_record_on_paper_says(
    abstained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)  # its letters can be read in the file
    answer = clinical(abstained=abstained)
    row, paper = row_of(answer), words_of(report_pdf(answer, None, WHEN))
    assert row["urgency"] in paper
    assert str(row["advice"])[:40] in paper
    assert bool(row["abstained"]) == ("The model does not know." in paper)
    if abstained:
        assert str(row["abstained"])[:40] in paper
