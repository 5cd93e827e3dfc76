"""Each answer of a bundle that states its use says it, on every way out; another's says nothing."""

import asyncio
import csv
import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clinical_answers import WHEN
from echo_app import ask
from fastapi import FastAPI
from forged_bundle import change_index, copy_bundle
from painted_answers import Painter, jpeg
from pdf_words import words_of
from rich.console import Console
from skin_photo import skin_photo
from tiny_bundle import SAYS, USE

from skindx.api.answer_file import write_table
from skindx.api.predictions import iter_predictions, schema_of
from skindx.clinic.fhir import fhir_json
from skindx.clinic.narrative import sections
from skindx.diagnosis.answer_figure import answer_html
from skindx.diagnosis.bundle_statement import source_of
from skindx.diagnosis.case import Case, Patient
from skindx.diagnosis.diagnose import answer
from skindx.diagnosis.predictor import Predictor
from skindx.diagnosis.record import CaseAnswer, Diagnosis
from skindx.diagnosis.report import pdf_sheet
from skindx.diagnosis.report.answer_report import print_diagnosis, report_pdf
from skindx.models.bundle.bundle import Bundle, open_bundle
from skindx.models.bundle.use_limits import MOST_WORDS
from skindx.texts import catalogue
from skindx.ui.http.answer_rows import COLUMNS, PATH, answer_row_routes
from skindx.ui.http.api_routes import routes
from skindx.ui.http.server_metrics import Metrics
from skindx.ui.page.answer_html import result_html, scope_html
from skindx.ui.page.form_html import many_html

LICENCE = USE.licence_text


@pytest.fixture(scope="module")
def stating(whole_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Return a bundle that states its use."""
    bundle = copy_bundle(tmp_path_factory.mktemp("use"), whole_bundle)
    change_index(bundle, ("use",), USE.model_dump(mode="json"))
    return open_bundle(bundle)


def answered(bundle: Bundle) -> CaseAnswer:
    answer = asyncio.run(Painter().diagnose(Case((jpeg(640, 480),))))
    source = source_of(bundle, "eager")
    return CaseAnswer(
        answer.diagnosis.model_copy(update={"source": source}), answer.views, answer.thumbnails
    )


def said(answer: CaseAnswer) -> dict[str, str]:
    """Return the text of each way out."""
    terminal = StringIO()
    print_diagnosis(answer.diagnosis, Console(file=terminal, width=500))
    fhir = json.loads(fhir_json(answer.diagnosis, None, WHEN, None))
    kinds = {one["resource"]["resourceType"]: one["resource"] for one in fhir["entry"]}
    report = sections(answer.diagnosis, None, WHEN)  # the text of FHIR and of a structured report
    return {
        "page": result_html(answer, None),
        "PDF": words_of(report_pdf(answer, None, WHEN)),
        "terminal": terminal.getvalue(),
        "its text": kinds["DiagnosticReport"]["text"]["div"],
        "its device": json.dumps(kinds["Device"]["note"]),
        "notebook": answer_html(answer, None),
        "SR": " ".join(sentence for part in report for sentence in part.sentences),
        "tables, pages and JSON of a scan": answer.diagnosis.source.limits,
    }


def test_every_way_out_says_it_once_in_few_words(
    stating: Bundle, whole_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)  # its letters can be read in the file
    assert len(SAYS.split()) <= MOST_WORDS
    found = said(answered(stating))
    for name in ("page", "PDF"):  # in fewer words
        short = "and nothing about children, nails or mucosa", "learned from dermoscopic images of"
        assert [" ".join(found[name].split()).count(one) for one in short] == [1, 1], name
        found[name] += USE.learned
    for sentence in (USE.purpose_text, USE.learned):
        counts = {name: " ".join(text.split()).count(sentence) for name, text in found.items()}
        assert counts == dict.fromkeys(found, 1)
    assert SAYS in scope_html(stating.taxonomy, stating.warning)
    for text in said(answered(open_bundle(whole_bundle))).values():
        assert "commercial" not in text
        assert "knows nothing about" not in text


def test_a_case_beyond_the_limits_gets_no_name_and_never_time_to_wait(stating: Bundle) -> None:
    predictor = replace(Predictor.load(stating.path), ood=None)  # which would refuse the photo
    photo = skin_photo(seed=1)
    plain = answer(predictor, Case((photo,), Patient(age=40, site="back"))).diagnosis
    beyond = answer(predictor, Case((photo,), Patient(age=5, site="nail"))).diagnosis
    words = "The age given is 5, and the model learned from few or no images of children. The place"
    assert words not in plain.abstained
    assert beyond.abstained.startswith(words)
    assert beyond.next_step.urgency != "routine"
    assert beyond.next_step.more == ()  # a risk below the threshold would reassure
    assert beyond.next_step.because == catalogue.text("because_precaution")
    assert beyond.similar == ()
    assert {one.name: one.probability for one in beyond.candidates} == {
        one.name: one.probability for one in plain.candidates
    }


def test_json_has_it_as_a_field_each_and_a_kept_case_keeps_it(
    stating: Bundle, whole_bundle: Path
) -> None:
    plain = json.loads(answered(stating).diagnosis.model_dump_json())
    assert plain["source"]["use"] == USE.model_dump(mode="json")
    assert plain["source"]["learned_from"] == SAYS
    assert Diagnosis.model_validate(plain).source.use == USE
    bare = answered(open_bundle(whole_bundle)).diagnosis.model_dump(mode="json")
    assert "use" not in bare["source"]


def test_the_api_says_it(stating: Bundle) -> None:
    answer = answered(stating)

    async def diagnose(case: Case) -> CaseAnswer:
        return answer

    app, status = FastAPI(), lambda: None
    fake: Any = SimpleNamespace(diagnose=diagnose)
    metrics = Metrics(stating, "0" * 64, status)  # type: ignore[arg-type]
    app.include_router(routes(fake, metrics, status, stating, "0" * 64))  # type: ignore[arg-type]
    form = {"files": {"photo": ("a.jpg", b"x")}}
    source = ask(app, "POST", "/v1/diagnose", **form).json()["diagnosis"]["source"]
    assert (source["learned_from"], source["use"]["not_for"]) == (SAYS, list(USE.not_for))


def test_each_row_of_a_table_says_it(stating: Bundle, whole_bundle: Path, tmp_path: Path) -> None:
    photos = [skin_photo(seed=1), b"no photo"]
    found = {}
    for name, bundle in (("stating", stating.path), ("bare", whole_bundle)):
        predictor = Predictor.load(bundle)
        rows = [row for batch in iter_predictions(predictor, photos) for row in batch.to_pylist()]
        write_table(tmp_path / f"{name}.csv", schema_of(predictor), rows)
        with (tmp_path / f"{name}.csv").open(newline="") as file:
            found[name] = list(csv.DictReader(file))
    assert [(row["use"], row["licence"]) for row in found["stating"]] == [(SAYS, LICENCE)] * 2
    assert found["stating"][1]["refused"] == "unreadable"
    assert all("use" not in row and "licence" not in row for row in found["bare"])


def test_the_page_of_many_photos_says_it(stating: Bundle, tiny_bundle: Path) -> None:
    html = many_html(64, stating.spec.use)
    [columns] = [part.split('"')[0] for part in html.split('data-columns="')[1:]]
    assert columns.split(",") == [*COLUMNS, "use", "licence"]
    assert SAYS in html
    assert ",use" not in many_html(64)
    for bundle, last in ((stating, [SAYS, LICENCE]), (open_bundle(tiny_bundle), [])):
        app = FastAPI()
        app.include_router(answer_row_routes(Painter(), bundle))
        form = {"files": {"photo": ("photo", jpeg(80, 60))}, "data": {"file": "a.jpg"}}
        [cells] = csv.reader([ask(app, "POST", PATH, **form).json()["csv"]])
        assert cells[len(COLUMNS) :] == last
