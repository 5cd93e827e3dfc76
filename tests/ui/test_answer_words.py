"""An answer is read in ten seconds: its visible words, counted in a real chromium on a phone."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from windows import PHONE

from skindx.diagnosis.case import Case
from skindx.diagnosis.diagnose import answer
from skindx.diagnosis.photo_checks import Refused
from skindx.diagnosis.predictor import Predictor
from skindx.diagnosis.record import CaseAnswer
from skindx.texts import catalogue
from skindx.ui.page.answer_html import problem_html, result_html, top_html

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
SHIPPED = Path(__file__).parents[2] / "models/ham10000/skindx_ham10000"
MOST, MOST_WITH_WARNINGS = 200, 260
KINDS = {"01": "soon", "05": "urgent", "06": "unknown", "04": "abstained", "12": "cut"}
"""Examples of the shipped bundle, by their numbers."""


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    if not (SHIPPED / "bundle/bundle.json").is_file():
        pytest.skip("the bundle ham10000 is not in this checkout")
    return Predictor.load(SHIPPED / "bundle")


@pytest.fixture(scope="module")
def metrics() -> dict[str, Any]:
    figures: dict[str, Any] = json.loads((SHIPPED / "bundle/metrics.json").read_text())
    return figures


@pytest.fixture(scope="module")
def answers(predictor: Predictor) -> dict[str, CaseAnswer]:
    photos = {n: (SHIPPED / f"examples/example-{n}.jpg").read_bytes() for n in KINDS}
    return {KINDS[n]: answer(predictor, Case((photo,))) for n, photo in photos.items()}


def shown(browser: "Browser", html: str) -> "Page":
    page = browser.new_context(**PHONE).new_page()
    viewport = '<meta name="viewport" content="width=device-width">'
    page.set_content(f'{viewport}<div class="gradio-container">{top_html()}{html}</div>')
    return page


def words(page: "Page", part: str) -> list[str]:
    text: str = page.locator(part).evaluate("part => part.innerText")
    return text.split()


@pytest.mark.parametrize("kind", KINDS.values())
def test_an_answer_has_few_visible_words(
    browser: "Browser", answers: dict[str, CaseAnswer], metrics: dict[str, Any], kind: str
) -> None:
    said = answers[kind]
    page = shown(browser, result_html(said, metrics))
    count = len(words(page, ".sx-result"))
    assert 60 < count <= (MOST_WITH_WARNINGS if kind == "cut" else MOST), count
    seen = " ".join(words(page, ".sx-result")).replace("\xa0", " ")
    diagnosis = said.diagnosis
    indispensable = (
        diagnosis.next_step.advice, diagnosis.next_step.because, "rules out no disease",
        "knows 7 conditions and no others", "knows nothing about children, nails or mucosa",
        "missed 10 of 100 urgent lesions", "called 21 of 100 other lesions urgent",
    )  # fmt: skip
    assert all(part in seen for part in indispensable)
    assert "95 % interval" not in seen
    assert ("The model does not know." in seen) == bool(diagnosis.abstained)
    assert page.locator(".sx-bar").count() == sum(
        one.in_set and not diagnosis.abstained for one in diagnosis.candidates
    )
    page.context.close()


def test_the_order_is_that_of_a_reader_and_paper_has_what_is_folded(
    browser: "Browser", answers: dict[str, CaseAnswer], metrics: dict[str, Any]
) -> None:
    page = shown(browser, result_html(answers["urgent"], metrics))
    parts = (".sx-advice", ".sx-because", ".sx-risk", ".sx-set", ".sx-photo-shown", ".sx-scope")
    tops = [page.locator(part).bounding_box() for part in parts]
    places = [box["y"] for box in tops if box]
    assert len(places) == len(parts)
    assert places == sorted(places)
    assert "fitted on 79 calibration" not in " ".join(words(page, ".sx-result"))
    page.emulate_media(media="print")
    printed = " ".join(words(page, ".sx-result")).replace("\xa0", " ")
    for part in ("fitted on 79 calibration", "squamous cell carcinoma", "Its digest begins with"):
        assert part in printed
    page.context.close()


def test_a_refusal_is_shorter_still(browser: "Browser", predictor: Predictor) -> None:
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (400, 300), (30, 120, 40)).save(file, "PNG")
    with pytest.raises(Refused) as refused:
        answer(predictor, Case((file.getvalue(),)))
    page = shown(browser, problem_html(str(refused.value)))
    assert len(words(page, ".sx-problem")) <= 80
    assert catalogue.text("not_judged") in " ".join(words(page, ".sx-problem"))
    page.context.close()


def test_badges_that_differ_give_advice_that_differs(answers: dict[str, CaseAnswer]) -> None:
    steps = {one.diagnosis.next_step.urgency: one.diagnosis.next_step for one in answers.values()}
    assert set(steps) == {"urgent", "soon", "unknown"}
    assert len({step.advice for step in steps.values()}) == 3


def test_both_errors_agree_with_the_rows_of_the_release(
    answers: dict[str, CaseAnswer], metrics: dict[str, Any]
) -> None:
    """Counted again from the next steps and refusals of each test image."""
    import pyarrow.parquet as pq

    rows = pq.read_table(SHIPPED / "release/rows.parquet").to_pylist()
    test = [row for row in rows if row["part"] == "test"]
    refused = {row["sha256"] for row in test if row.get("other_modality")}
    refused |= {row["sha256"] for row in test if (row.get("ood_p_value") or 1) <= 0.01}
    called = [row["next_step"] == "urgent" and row["sha256"] not in refused for row in test]
    urgent = [row["label"] == "Melanoma" for row in test]
    pairs = list(zip(called, urgent, strict=True))
    errors = answers["urgent"].diagnosis.advice_errors
    assert errors is not None
    assert errors.missed.pictures == sum(urgent)
    missed = sum(of_urgent and not call for call, of_urgent in pairs)
    raised = sum(call and not of_urgent for call, of_urgent in pairs)
    assert errors.missed.value == pytest.approx(missed / sum(urgent))
    assert errors.raised.value == pytest.approx(raised / (len(test) - sum(urgent)))
    ppv = sum(call and of_urgent for call, of_urgent in pairs) / sum(called)
    assert errors.values[1].ppv == pytest.approx(ppv)
    html = result_html(answers["urgent"], metrics)
    assert len(re.findall(r"misse[sd] \d+ of 100", html)) == 1
