"""A bundle without an urgent class says nothing of urgency, in no output."""

import io
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pdf_words import words_of
from rich.console import Console
from skin_photo import skin_photo
from test_conclusion import CLASSES, RULE, concluded, of
from tiny_bundle import pack_tiny

from skindx.diagnosis.case import Case
from skindx.diagnosis.diagnose import answer
from skindx.diagnosis.predictor import Predictor
from skindx.diagnosis.record import CaseAnswer
from skindx.diagnosis.report import pdf_sheet
from skindx.diagnosis.report.answer_report import print_diagnosis, report_pdf
from skindx.models.conformal import Conformal
from skindx.taxonomy import SkinClass, Taxonomy
from skindx.texts import catalogue
from skindx.ui.page.answer_html import result_html

HARMLESS = tuple(
    SkinClass(key=f"h{n}", name=f"Harmless {n}", urgency="routine" if n else "soon")
    for n in range(4)
)
REASSURING = re.compile(r"stands out|most urgent|missed an? urgent|missed \d+ of")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    taxonomy = Taxonomy(name="harmless", title="Harmless", classes=HARMLESS)
    rule = Conformal(pictures=100, thresholds={"all": 0.05})
    folder = tmp_path_factory.mktemp("b") / "bundle"
    return pack_tiny(folder, taxonomy=taxonomy, conformal=rule).path


@pytest.fixture(scope="module")
def answered(bundle: Path) -> CaseAnswer:
    return answer(Predictor.load(bundle), Case((skin_photo(),)))


def test_no_output_speaks_of_urgency(answered: CaseAnswer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)
    console = Console(file=io.StringIO(), width=400)
    print_diagnosis(answered.diagnosis, console)
    texts = {
        "terminal": console.file.getvalue(),  # type: ignore[attr-defined]
        "paper": words_of(report_pdf(answered, None, datetime(2026, 1, 1, tzinfo=UTC))),
        "page": result_html(answered, None),
        "JSON": answered.diagnosis.model_dump_json(),
    }
    for name, text in texts.items():
        assert not REASSURING.search(" ".join(text.split())), name
    assert answered.diagnosis.no_urgent_risk == catalogue.text("no_urgent_classes")
    assert not answered.diagnosis.knows_urgent
    assert catalogue.text("no_urgent_classes") in texts["page"]


def test_the_next_step_names_no_tier_as_the_most_urgent() -> None:
    for urgency in ("soon", "routine"):
        classes = tuple(one.model_copy(update={"urgency": urgency}) for one in CLASSES)
        one = concluded(of(0.9), classes=classes)
        several = concluded(of(0.6, 0.3), classes=classes)
        without_sets = concluded(of(0.6, 0.2, 0.15), classes=classes, conformal=None)
        doubtful = concluded(of(0.9), classes=classes, ood_p_value=0.01)
        for said in (one, several, without_sets, doubtful):
            assert not REASSURING.search(said.next_step.because)
            assert "(routine)" not in said.next_step.because
    assert "knows no urgent condition" in doubtful.next_step.because
    assert doubtful.next_step.urgency == "unknown"
    assert "stands out" in concluded(of(0.99), ood_p_value=0.01, conformal=RULE).next_step.because


def test_the_card_says_that_no_class_is_urgent(bundle: Path) -> None:
    card = (bundle / "MODEL_CARD.md").read_text()
    assert "urgent risk: none, because no class is urgent" in card
    assert "too few calibration lesions" not in card
